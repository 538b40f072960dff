"""Makes saved/keras2.tar.xz and saved/tflite.tar.xz: models of Keras 2 as .h5, and models that TFLite runs.

Needs what the group peer-tensorflow of pyproject.toml has, in an environment of its own:

    .peers/tensorflow/bin/python tests/conformance/whole/make_tensorflow.py
"""

import os

os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
os.environ.update(TF_ENABLE_ONEDNN_OPTS="0")

from collections.abc import Callable
from pathlib import Path

import keras_2_models
import numpy as np
import tensorflow as tf
import tf_keras as keras
from keras_table import EXAMPLES, KerasExample, add, draw_weights, drawn
from recording import Arrays, Recorder


def converted(model: keras.Model, path: Path, halves: bool) -> None:
    """Saves a model as TFLite's, for one sequence, with weights in float16 where `halves` says so."""
    one = model.inputs[0]
    call = tf.function(lambda given: model(given, training=False))
    signature = call.get_concrete_function(tf.TensorSpec((1, *one.shape[1:]), one.dtype, name=one.name))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([signature], model)
    if halves:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    path.write_bytes(converter.convert())


def interpreted(path: Path) -> Callable[[Arrays], Arrays]:
    """Returns the results of TFLite's reference operators for a file."""
    reference = tf.lite.experimental.OpResolverType.BUILTIN_REF
    interpreter = tf.lite.Interpreter(str(path), experimental_op_resolver_type=reference)

    def run(given: Arrays) -> Arrays:
        interpreter.allocate_tensors()
        interpreter.reset_all_variables()
        (entry,), (value,) = interpreter.get_input_details(), given.values()
        rows = []
        for row in value:
            interpreter.reset_all_variables()
            interpreter.set_tensor(entry["index"], row[None])
            interpreter.invoke()
            rows.append([interpreter.get_tensor(one["index"])[0] for one in interpreter.get_output_details()])
        return {f"{place}": np.stack(arrays) for place, arrays in enumerate(zip(*rows, strict=True))}

    return run


def main() -> None:
    """Makes the models of both archives."""
    recorder = Recorder("keras2", f"tf_keras {keras.__version__}")
    for example in EXAMPLES["keras2"]:
        keras.backend.clear_session()
        add(recorder, example, ".h5")
    recorder.pack()
    recorder = Recorder("tflite", f"tensorflow {tf.__version__}")
    for make in keras_2_models.TFLITE:
        keras.backend.clear_session()
        model, name = make(), make.__name__
        draw_weights(model, name)
        path = recorder.folder / f"{name}.tflite"
        converted(model, path, name == "halves")
        example = KerasExample(name, "", make)
        padded, alone = [
            {model.inputs[0].name: drawn(model.inputs[0], example, 0, rows, seed)}
            for rows, seed in ((3, "padded"), (1, "alone"))
        ]
        about = (make.__doc__ or "").rstrip(".")
        recorder.add(name, path.name, about, interpreted(path), padded, [alone])
    recorder.pack()


if __name__ == "__main__":
    main()
