"""Keras models written as ONNX models: run by onnxruntime, beside `model.predict` at several sizes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers

import stepnet as sn
from tests.onnx.onnx_models import stepnet_onnx
from tests.onnx.onnx_saved import operators, run, saved

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = [(2, 9), (1, 6), (3, 12)]
"""Numbers of sequences and of steps."""
Layers = list[Callable[[], Any]]


def recurrent(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(layers, name)(4, return_sequences=True, **options)


def in_both(merge: str) -> Layers:
    return [
        lambda: layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode=merge),
        lambda: layers.Dense(2),
    ]


SEQUENTIAL: dict[str, tuple[Layers, list[str]]] = {
    **{
        f"both directions, {merge}": (in_both(merge), ["LSTM", "LSTM"])
        for merge in ("concat", "sum", "mul", "ave")
    },
    "GRU with relu": ([recurrent("GRU", activation="relu")], ["GRU"]),
    "LSTM with hard sigmoids": ([recurrent("LSTM", recurrent_activation="hard_sigmoid")], ["Scan"]),
    "LSTM with softsign": ([recurrent("LSTM", activation="softsign")], ["LSTM"]),
    "GRU with gelu": ([recurrent("GRU", activation="gelu")], ["Scan"]),
    "RNN with elu": ([recurrent("SimpleRNN", activation="elu")], ["RNN"]),
    "between recurrences": (
        [
            recurrent("LSTM"),
            layers.LayerNormalization,
            lambda: layers.Dropout(0.1),
            recurrent("GRU", reset_after=False),
            layers.BatchNormalization,
            lambda: layers.Dense(3, activation="softmax"),
        ],
        ["LSTM", "GRU"],
    ),
    "over columns of features": (
        [
            lambda: layers.Conv1D(8, 5, strides=2, padding="same", activation="relu"),
            layers.BatchNormalization,
            lambda: layers.MaxPooling1D(2),
            lambda: layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode="sum"),
            lambda: layers.Dense(7, activation="softmax"),
        ],
        ["LSTM", "LSTM"],
    ),
    "fewer and more steps": (
        [
            lambda: layers.SeparableConv1D(6, 3),
            lambda: layers.AveragePooling1D(2),
            lambda: layers.Conv1DTranspose(4, 3, strides=2),
            recurrent("GRU"),
            layers.GlobalMaxPooling1D,
        ],
        ["GRU"],
    ),
    "each step by itself": (
        [lambda: layers.TimeDistributed(layers.Dense(4, activation="selu")), recurrent("LSTM")],
        ["LSTM"],
    ),
    "zeros around": (
        [lambda: layers.ZeroPadding1D(2), lambda: layers.Conv1D(4, 3), recurrent("GRU")],
        ["GRU"],
    ),
    "steps with zeros, cut, and repeated": (
        [
            lambda: layers.Cropping1D((1, 2)),
            lambda: layers.UpSampling1D(2),
            recurrent("GRU", go_backwards=True),
            layers.GlobalAveragePooling1D,
        ],
        ["GRU"],
    ),
}


def written(model: Any, path: Path) -> Any:
    """The ONNX model of a Keras model with random weights, by its file."""
    random = np.random.default_rng(0)
    for variable in model.variables:
        if "seed" not in variable.path:
            variable.assign(
                np.abs(random.normal(size=variable.shape)) * 0.4 + 0.1 * ("variance" in variable.path)
            )
    model.save(path / "m.keras")
    return saved(sn.load(path / "m.keras"), path / "m.onnx")


def assert_as_predicted(model: Any, made: Any, inputs: list[np.ndarray]) -> None:
    for x in inputs:
        wanted = model.predict(x, verbose=0)
        wanted = wanted if isinstance(wanted, list) else [wanted]
        # of a file with one recurrence, the ONNX model also has the final memory
        for actual, right in zip(run(made, [x])[: len(wanted)], wanted, strict=True):
            assert_close(actual, np.asarray(right), x.shape[1], 30)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_models_run_in_onnxruntime(name: str, tmp_path: Path) -> None:
    made, nodes = SEQUENTIAL[name]
    model: Any = keras.Sequential([keras.Input((None, 3)), *(layer() for layer in made)])
    onnx_model = written(model, tmp_path)
    assert operators(onnx_model) == nodes
    random = np.random.default_rng(1)
    inputs = [random.normal(size=(*sizes, 3)).astype("float32") for sizes in SIZES]
    assert_as_predicted(model, onnx_model, inputs)


WINDOWS: dict[str, Layers] = {
    "a pyramid": [recurrent("LSTM"), lambda: layers.Reshape((-1, 12)), recurrent("GRU")],
    "pictures": [
        lambda: layers.Reshape((-1, 3, 1)),
        lambda: layers.Conv2D(4, 3, strides=(2, 1), padding="same", activation="relu"),
        lambda: layers.MaxPooling2D((1, 2)),
        lambda: layers.Conv2D(5, (3, 1), padding="same"),
    ],
    "a U": [
        lambda: layers.Conv1D(4, 3, strides=2, padding="same"),
        lambda: layers.UpSampling1D(2),
        lambda: layers.Cropping1D((1, 2)),
    ],
    "a vector repeated": [lambda: layers.LSTM(4), lambda: layers.RepeatVector(5), recurrent("GRU")],
    "a vector of one step": [lambda: layers.LSTM(4), lambda: layers.RepeatVector(1), recurrent("GRU")],
}
"""Windows of steps that no convolution over steps alone reads, and steps whose number a layer states."""


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_and_repeated_vectors_are_read_back(name: str, tmp_path: Path) -> None:
    model: Any = keras.Sequential([keras.Input((None, 3)), *(layer() for layer in WINDOWS[name])])
    made, random = written(model, tmp_path), np.random.default_rng(1)
    inputs = [random.normal(size=(*sizes, 3)).astype("float32") for sizes in SIZES]
    assert_as_predicted(model, made, inputs)
    again = stepnet_onnx.load(tmp_path / "m.onnx")
    for x in inputs:
        found = again(x)
        assert_close(np.asarray(found), model.predict(x, verbose=0), x.shape[1], 30)


@pytest.mark.parametrize("masked", [False, True])
def test_words_with_a_mask_run_in_onnxruntime(masked: bool, tmp_path: Path) -> None:
    model: Any = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(10, 4, mask_zero=masked),
            layers.Bidirectional(layers.GRU(3, return_sequences=True)),
            layers.LSTM(3),
        ]
    )
    words = [np.random.default_rng(1).integers(1, 10, sizes).astype("int32") for sizes in SIZES]
    for each in words:
        each[0, 4:] = 0
    assert_as_predicted(model, written(model, tmp_path), words)


def test_a_functional_model_runs_in_onnxruntime(tmp_path: Path) -> None:
    x = keras.Input((None, 3))
    wide = layers.Concatenate()([x, layers.GRU(3, return_sequences=True)(x)])
    gated = layers.Multiply()([layers.Dense(6, activation="sigmoid")(wide), wide])
    lstm: Any = layers.LSTM(6, return_state=True)(gated)
    again = layers.LSTM(6, return_sequences=True)(gated, initial_state=lstm[1:])
    model = keras.Model(x, [layers.Add()([again, gated]), lstm[1]])
    random = np.random.default_rng(1)
    inputs = [random.normal(size=(*sizes, 3)).astype("float32") for sizes in SIZES]
    assert_as_predicted(model, written(model, tmp_path), inputs)
