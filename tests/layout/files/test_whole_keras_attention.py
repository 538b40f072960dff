"""Attention between steps in Keras models that are read whole, against Keras itself and sequences alone."""

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

FEATURES, HIDDEN, TIME = 3, 4, 6
X = np.random.default_rng(0).normal(size=(3, TIME, FEATURES)).astype("float32")
CAUSAL: Any = {"use_causal_mask": True}
pytestmark = pytest.mark.filterwarnings("ignore")  # .h5 is called legacy
LAYERS: dict[str, Callable[[Any, Any], Any]] = {
    "dot": lambda x, y: layers.Attention()([x, y]),
    "scaled and causal": lambda x, y: layers.Attention(use_scale=True)([y, x, y], **CAUSAL),
    "concat": lambda x, y: layers.Attention(use_scale=True, score_mode="concat")([x, y], **CAUSAL),
    "additive": lambda x, y: layers.AdditiveAttention()([x, y]),
    "additive, causal": lambda x, y: layers.AdditiveAttention(use_scale=False)([y, y], **CAUSAL),
    "heads": lambda x, y: layers.MultiHeadAttention(2, 3, value_dim=5)(x, y),
    "heads, causal": lambda x, y: layers.MultiHeadAttention(2, 3, output_shape=7)(x, y, key=y, **CAUSAL),
    "grouped": lambda x, y: layers.GroupQueryAttention(3, 4, 2)(x, y),
    "grouped, causal": lambda x, y: layers.GroupQueryAttention(3, 2, 1, use_bias=False)(x, x, **CAUSAL),
}


def saved(made: Any, path: Path) -> sn.Graph:
    """The graph of a file of a model with random weights."""
    rng = np.random.default_rng(1)
    for variable in made.variables:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    made.save(path)
    graph: Any = sn.load(path)
    assert isinstance(graph, sn.Graph)
    return graph


def by_keras(made: Any, x: Any) -> Any:
    """The result of a model in use; a call takes less time than `predict`."""
    return keras.ops.convert_to_numpy(made(x, training=False))


def two_layers(function: Callable[[Any, Any], Any]) -> Any:
    """A model of a function of the outputs of two recurrent layers."""
    x = keras.Input((None, FEATURES))
    states = (layers.GRU(HIDDEN, return_sequences=True)(each) for each in (x, layers.Dense(FEATURES)(x)))
    return keras.Model(x, layers.Dense(2)(function(*states)))


IN_BOTH = ("concat", "heads", "grouped")
"""The layers whose arrays have other names in .h5 files, and one of them."""
FILES = [*((name, ".keras") for name in LAYERS), *((name, ".h5") for name in IN_BOTH)]


@pytest.mark.long(every=4)
@pytest.mark.parametrize(("name", "ending"), FILES)
def test_each_sequence_attends_as_keras_computes_it_alone(tmp_path: Path, name: str, ending: str):
    made = two_layers(LAYERS[name])
    graph = saved(made, tmp_path / f"m{ending}")
    assert_close(graph(X), by_keras(made, X), TIME, 4 * HIDDEN)
    ragged = sn.Ragged.from_list([X[0], X[1, :2], X[2, :1]])
    for found, one in zip(graph(ragged).to_list(), ragged.to_list(), strict=True):
        assert_close(found, by_keras(made, one[None])[0], TIME, 4 * HIDDEN)


ACROSS = ("dot", "concat", "additive", "heads", "grouped")
"""The layers above whose keys and values are of one sequence."""


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ACROSS)
def test_queries_and_values_of_different_lengths(tmp_path: Path, name: str):
    """Words that an Embedding masks are no keys."""
    x, words = keras.Input((None, FEATURES), name="x"), keras.Input((None,), dtype="int32", name="words")
    y = layers.GRU(HIDDEN, return_sequences=True)(layers.Embedding(7, FEATURES, mask_zero=True)(words))
    made = keras.Model([x, words], LAYERS[name](layers.GRU(HIDDEN, return_sequences=True)(x), y))
    graph = saved(made, tmp_path / "m.keras")
    rows = (
        [X[0], X[1, :2], X[2, :3]],
        [np.array([1, 0, 3]), np.array([3, 1, 5, 2, 0, 6, 2]), np.array([2, 5, 1])],
    )
    found = graph(dict(zip(("x", "words"), map(sn.Ragged.from_list, rows), strict=True)))
    for own, *one in zip(found.to_list(), *rows, strict=True):
        assert_close(own, by_keras(made, [each[None] for each in one])[0], TIME, 4 * HIDDEN)


MASKED: dict[str, Callable[[Any], Any]] = {
    "dot": lambda y: layers.Attention()([y, y]),
    "additive, causal": lambda y: layers.AdditiveAttention()([y, y], **CAUSAL),
    "heads": lambda y: layers.MultiHeadAttention(2, 3)(y, y),
    "heads, causal": lambda y: layers.MultiHeadAttention(2, 3)(y, y, **CAUSAL),
    "grouped": lambda y: layers.GroupQueryAttention(3, 4, 2)(y, y),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MASKED)
def test_masks_leave_out_keys(tmp_path: Path, name: str):
    """Steps that an Embedding masks are no keys, nor do they count in the mean of the results."""
    tokens = np.array([[1, 2, 3, 4, 5, 6], [3, 1, 0, 0, 0, 0], [2, 0, 5, 1, 0, 4]])
    x = keras.Input((None,), dtype="int32")
    y = layers.LSTM(HIDDEN, return_sequences=True)(layers.Embedding(7, FEATURES, mask_zero=True)(x))
    made = keras.Model(x, layers.GlobalAveragePooling1D()(MASKED[name](y)))
    graph = saved(made, tmp_path / "m.keras")
    right = by_keras(made, tokens)
    assert_close(graph(tokens), right, TIME, 4 * HIDDEN)
    alone = graph(sn.Ragged.from_list([tokens[1, :2]]))
    assert_close(alone, right[1:2], TIME, 4 * HIDDEN)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MASKED)
def test_masked_queries_have_the_numbers_that_keras_has(tmp_path: Path, name: str):
    """A convolution drops the mask, and reads the results of masked steps beside those of others."""
    tokens = np.array([[1, 0, 3, 0, 0, 6], [0, 5, 4, 3, 2, 0], [2, 3, 5, 1, 6, 4]])
    x = keras.Input((None,), dtype="int32")
    y = layers.LSTM(HIDDEN, return_sequences=True)(layers.Embedding(7, FEATURES, mask_zero=True)(x))
    made = keras.Model(x, layers.Conv1D(3, 3, padding="same")(MASKED[name](y)))
    graph = saved(made, tmp_path / "m.keras")
    assert_close(graph(tokens), by_keras(made, tokens), TIME, 4 * HIDDEN)
