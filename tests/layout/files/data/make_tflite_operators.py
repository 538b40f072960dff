"""Makes tflite_operators.tar.xz: a model with every operator that stepnet has a row for, and its results.

The model is an LSTM, and one output for each operator of its outputs y [batch, steps, 5]. A second use of an
operator has a word behind its name. `operators.npz` has what TensorFlow's interpreter computes, and the name
of each output in the file, as name/OPERATOR.

Needs TensorFlow with tf_keras, which the tests do not: python make_tflite_operators.py
"""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

FOLDER = Path(__file__).parent
FEATURES, CELLS, LENGTHS = 4, 5, (7, 3, 1)
RANDOM = np.random.default_rng(0)
TWO = tf.constant([0.3, -0.2, 0.1, 0.5, -0.4], tf.float32)


def floats(*shape: int) -> Any:
    return tf.constant(RANDOM.normal(0, 0.5, shape), tf.float32)


def positive(y: Any) -> Any:
    return tf.abs(y) + 0.1


def either(condition: Any, y: Any) -> Any:
    return tf.where(condition, y, TWO)


def backward(last: bool) -> Callable[[Any], Any]:
    layer = tf.keras.layers.LSTM(CELLS, return_sequences=not last, go_backwards=True)
    return lambda y: layer(y) if last else tf.reverse(layer(y), [1])


DENSE, BOTH = (
    tf.keras.layers.Dense(3, activation="relu6"),
    tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(3, return_sequences=True)),
)
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "ABS": tf.abs,
    "AVERAGE_POOL_2D": lambda y: tf.nn.avg_pool1d(y, 3, 1, "SAME"),
    "ADD": lambda y: tf.nn.relu(y + TWO),
    "BATCH_MATMUL": lambda y: tf.matmul(y, y, transpose_a=True),
    "CAST": lambda y: tf.cast(y > 0, tf.float32),
    "CEIL": lambda y: tf.math.ceil(4 * y),
    "CONCATENATION": lambda y: tf.concat([y, tf.abs(y)], -1),
    "CONV_2D": lambda y: tf.nn.relu(tf.nn.conv1d(y, floats(3, CELLS, 4), 1, "SAME", dilations=2)),
    "CONV_2D valid": lambda y: tf.nn.conv1d(y, floats(1, CELLS, 4), 1, "VALID"),
    "CONV_2D rows": lambda y: tf.nn.conv2d(y[..., None], floats(3, 2, 1, 3), [1, 1, 2, 1], "SAME"),
    "COS": tf.cos,
    "CUMSUM": lambda y: tf.cumsum(y, 2, exclusive=True, reverse=True),
    "CUMSUM steps": lambda y: tf.cumsum(y, 1),
    "DEPTHWISE_CONV_2D": lambda y: tf.nn.depthwise_conv2d(
        y[:, None], floats(1, 3, CELLS, 2), [1, 1, 1, 1], "SAME"
    )[:, 0],
    "DIV": lambda y: y / positive(y),
    "ELU": tf.nn.elu,
    "EQUAL": lambda y: either(tf.equal(tf.floor(y), 0.0), y),
    "EXP": tf.exp,
    "EXPAND_DIMS": lambda y: tf.expand_dims(y, 1),
    "FLOOR": lambda y: tf.floor(4 * y),
    "FULLY_CONNECTED": DENSE,
    "GATHER": lambda y: tf.gather(y, [3, 0], axis=2),
    "GELU": lambda y: tf.nn.gelu(y, True),
    "GREATER": lambda y: either(y > 0.1, y),
    "GREATER_EQUAL": lambda y: either(y >= 0.1, y),
    "HARD_SWISH": lambda y: 6 * y * tf.nn.relu6(6 * y + 3) * (1 / 6),
    "LEAKY_RELU": lambda y: tf.nn.leaky_relu(y, 0.3),
    "LESS": lambda y: either(y < 0.1, y),
    "LESS_EQUAL": lambda y: either(y <= 0.1, y),
    "LOG": lambda y: tf.math.log(positive(y)),
    "LOGICAL_AND": lambda y: either((y > 0) & (tf.cos(y) > 0.9), y),
    "LOGICAL_NOT": lambda y: either(~((y > 0) & (tf.cos(y) > 0.9)), y),
    "LOGICAL_OR": lambda y: either((y > 0) | (tf.cos(y) > 0.9), y),
    "LOGISTIC": tf.sigmoid,
    "LOG_SOFTMAX": tf.nn.log_softmax,
    "MAXIMUM": lambda y: tf.maximum(y, TWO),
    "MAX_POOL_2D": lambda y: tf.nn.max_pool1d(y, 2, 1, "SAME"),
    "MEAN": lambda y: tf.reduce_mean(y, 1),
    "MEAN features": lambda y: tf.reduce_mean(y, 2, keepdims=True),
    "MINIMUM": lambda y: tf.minimum(y, TWO),
    "MUL": lambda y: y * TWO,
    "NEG": tf.negative,
    "NOT_EQUAL": lambda y: either(tf.not_equal(tf.floor(y), 0.0), y),
    "PACK": lambda y: tf.stack([y, tf.abs(y)], 2),
    "PAD": lambda y: tf.abs(tf.pad(y, [[0, 0], [2, 1], [0, 0]])),
    "PADV2": lambda y: tf.abs(tf.pad(y, [[0, 0], [0, 0], [1, 2]], constant_values=0.5)),
    "POW": lambda y: tf.pow(positive(y), 1.5),
    "PRELU": lambda y: tf.nn.relu(y) - TWO * tf.nn.relu(-y),
    "REDUCE_MAX": lambda y: tf.reduce_max(y, 1),
    "REDUCE_MIN": lambda y: tf.reduce_min(y, 2),
    "RELU": tf.nn.relu,
    "RELU6": lambda y: tf.nn.relu6(7 * y),
    "RELU_0_TO_1": lambda y: tf.minimum(tf.maximum(2 * y, 0.0), 1.0),
    "RELU_N1_TO_1": lambda y: tf.minimum(tf.maximum(2 * y, -1.0), 1.0),
    "RESHAPE": lambda y: tf.reshape(y, [1, -1, CELLS, 1]),
    "REVERSE_V2": backward(False),
    "REVERSE_V2 last": backward(True),
    "ROUND": lambda y: tf.round(4 * y),
    "RSQRT": lambda y: tf.math.rsqrt(positive(y)),
    "SELECT_V2": lambda y: either(y > 0, y),
    "SHAPE": lambda y: tf.reshape(y, tf.concat([tf.shape(y), [1]], 0)),
    "SIGN": tf.sign,
    "SIN": tf.sin,
    "SLICE": lambda y: tf.slice(y, [0, 0, 1], [-1, -1, 3]),
    "SOFTMAX": tf.nn.softmax,
    "SPLIT": lambda y: tf.subtract(*tf.split(tf.concat([y, tf.abs(y)], 2), 2, 2)),
    "SPLIT_V": lambda y: tf.concat(tf.split(y, [2, 3], 2)[::-1], 2),
    "SQRT": lambda y: tf.sqrt(positive(y)),
    "SQUARE": tf.square,
    "SQUARED_DIFFERENCE": lambda y: tf.math.squared_difference(y, TWO),
    "SQUEEZE": lambda y: tf.squeeze(tf.expand_dims(y, 1), 1),
    "STRIDED_SLICE": lambda y: y[:, -1],
    "STRIDED_SLICE features": lambda y: y[:, :, 1:5:2],
    "SUB": lambda y: TWO - y,
    "SUM": lambda y: tf.reduce_sum(y, [1, 2]),
    "TANH": tf.tanh,
    "TRANSPOSE": lambda y: tf.transpose(y, [0, 2, 1]),
    "UNPACK": lambda y: tf.multiply(*tf.unstack(y, axis=2)[1:3]),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lambda y: tf.abs(BOTH(y)),
}
OTHERS: dict[str, tuple[Callable[[Any], Any], int | None, bool]] = {
    "DEQUANTIZE": (DENSE, None, True),
    "FLOOR_MOD": (lambda y: tf.math.floormod(y, TWO), None, False),
    "RESHAPE fixed": (
        lambda y: tf.nn.conv1d(tf.reshape(y, [1, 7, CELLS]), floats(3, CELLS, 4), 1, "SAME"),
        7,
        False,
    ),
}
"""Models of one operator, with the number of their steps, and whether weights are of half precision."""


def converted(functions: dict[str, Callable[[Any], Any]], steps: int | None, halves: bool) -> bytes:
    """The model of an LSTM and of functions of its outputs."""
    x = tf.keras.Input(batch_shape=(1, steps, FEATURES), name="frames")
    y = tf.keras.layers.LSTM(CELLS, return_sequences=True)(x)
    outputs = {
        name: tf.keras.layers.Activation("linear", name=name)(function(y))
        for name, function in functions.items()
    }
    converter = tf.lite.TFLiteConverter.from_keras_model(tf.keras.Model(x, outputs))
    if halves:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def results(data: bytes, given: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Results of TensorFlow's interpreter, and the names of the tensors, by the names of the outputs."""
    interpreter = tf.lite.Interpreter(model_content=data)
    (entry,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(entry["index"], given.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(entry["index"], given)
    interpreter.invoke()
    places = interpreter._get_full_signature_list()["serving_default"]["outputs"]
    names = {each["index"]: each["name"] for each in interpreter.get_output_details()}
    arrays = {name: interpreter.get_tensor(place) for name, place in places.items()}
    return arrays, {name: names[place] for name, place in places.items()}


def main() -> None:
    arrays: dict[str, np.ndarray] = {
        f"{length}/frames": RANDOM.normal(size=(1, length, FEATURES)).astype("float32") for length in LENGTHS
    }
    plain = {name.replace(" ", "_"): function for name, function in OPERATORS.items()}
    models = {"operators": (plain, None, False)}
    models |= {name: ({name.replace(" ", "_"): one}, *more) for name, (one, *more) in OTHERS.items()}
    with TemporaryDirectory() as folder:
        for title, model in models.items():
            tf.keras.utils.set_random_seed(0)
            data = converted(*model)
            (Path(folder) / f"{title}.tflite").write_bytes(data)
            for length in LENGTHS if model[1] is None else LENGTHS[:1]:
                found, names = results(data, arrays[f"{length}/frames"])
                for name, array in found.items():
                    arrays[f"{length}/{name}"] = array
                    arrays[f"name/{name}"] = np.array(names[name])
            print(title, flush=True)
        np.savez(Path(folder) / "operators.npz", **arrays)
        with tarfile.open(FOLDER / "tflite_operators.tar.xz", "w:xz") as packed:
            for each in sorted(Path(folder).iterdir()):
                packed.add(each, each.name)


if __name__ == "__main__":
    main()
