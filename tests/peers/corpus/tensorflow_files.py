"""The files of tf_keras (Keras 2) and TensorFlow: .h5, .keras, weights, checkpoints, TFLite and others."""

import os
import sys

os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
os.environ.update(TF_ENABLE_ONEDNN_OPTS="0")

from pathlib import Path
from tempfile import TemporaryDirectory

import keras_cells
import numpy as np
import tensorflow as tf
import tf_keras as keras
from specimens import HIDDEN, INPUTS, ROWS, STEPS, Specimens, pack, random
from tf_keras import layers

EVERY = {"return_sequences": True}
USUAL = ("--semantics", "gate_activation=sigmoid", "--semantics", "candidate_activation=tanh")
UNCLIPPED = ("--semantics", "cell_clip=0", "--semantics", "projection_clip=0")
LSTMS = (*USUAL, "--semantics", "output_activation=tanh")


def filled(model):
    model.set_weights([random(*weight.shape) for weight in model.get_weights()])
    return model


def numbers(model, names=None):
    """The results of each recurrent layer for inputs; names: what the file calls them."""
    known = {}
    for layer in model.layers:
        if isinstance(layer, layers.RNN | layers.Bidirectional):
            x = random(ROWS, STEPS, layer.input_shape[-1])
            known[(names or {}).get(layer.name, layer.name)] = x, layer(x).numpy()
    return known


def speech():
    return filled(
        keras.Sequential(
            [
                keras.Input((None, INPUTS)),
                layers.GRU(HIDDEN, **EVERY, name="encoder"),
                layers.LayerNormalization(name="norm"),
                layers.LSTM(HIDDEN, **EVERY, name="decoder"),
                layers.Dense(2, name="head"),
            ]
        )
    )


def of_keras(made, folder):
    """One model in every kind of file of Keras 2."""
    model = speech()
    known = numbers(model)
    for file in ("speech.h5", "speech.keras"):
        model.save(folder / file)
        made.add(file, "tf_keras: GRU, LayerNormalization, LSTM, Dense", known)
    model.save_weights(folder / "speech_weights.h5")
    made.add("speech_weights.h5", "tf_keras: weights alone", known, "--from", "keras2", *LSTMS)
    model.save(folder / "saved", save_format="tf")
    made.add("saved", "tf_keras: SavedModel", known, *LSTMS)
    model.save_weights(folder / "weights" / "model")
    named = {"encoder": "layer_with_weights-0", "decoder": "layer_with_weights-2"}
    renamed = {named[name]: pair for name, pair in known.items()}
    made.add("weights/model.index", "tf_keras: a checkpoint of weights", renamed, *LSTMS)
    tf.train.Checkpoint(model=model).save(folder / "train" / "ckpt")
    renamed = {f"model/{named[name]}": pair for name, pair in known.items()}
    made.add("train/ckpt-1.index", "tf.train.Checkpoint", renamed, *LSTMS)


def of_cells(made, folder):
    """Cells in all that Keras 2 has around them."""
    for name, model in keras_cells.models(keras):
        filled(model).save(folder / f"{name}.h5")
        known = keras_cells.numbers(keras, np.array, name, model)
        made.add(f"{name}.h5", f"tf_keras: {keras_cells.MODELS[name]}", known)


def of_lite(made, folder):
    """A stack of LSTMs, converted for TFLite."""
    model = filled(
        keras.Sequential(
            [
                keras.Input((STEPS, INPUTS), batch_size=1),
                layers.LSTM(HIDDEN, **EVERY, name="lower"),
                layers.LSTM(HIDDEN, **EVERY, name="upper"),
            ]
        )
    )
    model.save(folder / "lite", save_format="tf")
    data = tf.lite.TFLiteConverter.from_saved_model(str(folder / "lite")).convert()
    (folder / "stack.tflite").write_bytes(data)
    x = random(ROWS, STEPS, INPUTS)
    y, known = x, {}
    names = {"lower": "tfl.unidirectional_sequence_lstm", "upper": "StatefulPartitionedCall:0"}
    for layer in model.layers:
        z = np.concatenate([layer(row[None]).numpy() for row in y])
        known[names[layer.name]], y = (y, z), z
    known["*"] = x, y
    made.add("stack.tflite", "TFLite: LSTM, LSTM, of which nothing reaches cell_clip", known, *UNCLIPPED)
    (folder / "clipped.tflite").write_bytes(data)
    made.add("clipped.tflite", "TFLite: LSTM, LSTM, with their cell_clip of 10", known)


if __name__ == "__main__":
    made = Specimens({"tensorflow": tf.__version__, "tf_keras": keras.__version__})
    with TemporaryDirectory() as name:
        of_keras(made, Path(name))
        of_lite(made, Path(name))
        of_cells(made, Path(name))
        pack("tensorflow", Path(name), made)
    sys.exit()
