"""The results of Keras for files that stepnet wrote: models are loaded, weights go into such a model.

Keras 3 on torch, and Keras 2 where a third argument names tf_keras.
"""

import os
import sys
from importlib import import_module

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")

from judge import main

LEGACY = "tf_keras" in sys.argv[3:]
keras = import_module("tf_keras" if LEGACY else "keras")
CLASSES = {"rnn": "SimpleRNN", "gru": "GRU", "gru_reset_before": "GRU", "lstm": "LSTM"}
MERGES = {"concat": "concat", "sum": "sum", "average": "ave", "product": "mul"}


def layers_of(part):
    """The layers that a part is in Keras, each with its weights still to come."""
    cell, sizes = part.layout.partition(".")[2], part.sizes
    options = {"return_sequences": True, "go_backwards": part.reverse, **part.settings}
    if CLASSES[cell] == "GRU":
        options["reset_after"] = cell == "gru"
    for _ in range(sizes["layers"]):
        layer = getattr(keras.layers, CLASSES[cell])(sizes["hidden"], use_bias=sizes["bias"], **options)
        if sizes["directions"] == 2:
            layer = keras.layers.Bidirectional(layer, merge_mode=MERGES[part.merge])
        yield layer


def model_of(job):
    """The model of a file: loaded, or made of such layers, into which the weights are loaded."""
    if job.path.endswith(".keras"):
        return keras.models.load_model(job.path, compile=False)
    layers = [layer for part in job.parts for layer in layers_of(part)]
    model = keras.Sequential([keras.layers.Input((None, job.parts[0].sizes["inputs"])), *layers])
    model.load_weights(job.path)
    return model


def numpy(tensor):
    return tensor.numpy() if LEGACY else keras.ops.convert_to_numpy(tensor)


def judged(job):
    model = model_of(job)
    for x in job.inputs:
        given = model(x)
        y = numpy(given[0] if isinstance(given, list | tuple) else given)  # last states may be behind it
        yield y[:, ::-1] if job.parts[-1].reverse and y.ndim == 3 else y


if __name__ == "__main__":
    main(judged, {"tf_keras" if LEGACY else "keras": keras.__version__})
