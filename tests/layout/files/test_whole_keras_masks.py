"""Masks of Keras models that are read whole, against Keras itself: padding anywhere, and rows of it alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import pytest
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers, ops

import stepnet as sn
from stepnet.errors import ModelError
from tests.layout.files.test_whole_keras import saved

WORDS, FEATURES, HIDDEN, TIME = 9, 3, 4, 6
EVERY: Any = {"return_sequences": True}
COUNTS = np.array(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 1, 1],
        [0] * 6,
        [0, 0, 0, 1, 0, 0],
    ]
)
"""The steps that count: all, without the end, without the start, without the middle, none, and one."""
RANDOM = np.random.default_rng(3)
TOKENS, OTHERS = (RANDOM.integers(1, WORDS, COUNTS.shape) * mask for mask in (COUNTS, COUNTS[::-1]))
FRAMES = (RANDOM.normal(size=(*COUNTS.shape, FEATURES)) * COUNTS[..., None]).astype("float32")
pytestmark = pytest.mark.filterwarnings("ignore")  # .h5 is called legacy, and Keras says where a mask ends


def check(made: Any, path: Path, x: Any, inputs: Any = None) -> sn.Graph:
    """Asserts that stepnet computes from a file what the model computes, and returns the graph."""
    graph: Any = sn.load(saved(made, path))
    assert isinstance(graph, sn.Graph)
    found, right = graph(x), made.predict(x if inputs is None else inputs, verbose=0)
    if not isinstance(found, dict):
        found, right = {"": found}, [right]
    assert len(found) == len(right)
    for actual, array in zip(found.values(), right, strict=True):
        assert_close(actual, array, TIME, 2 * FEATURES + 2 * HIDDEN)
    return graph


def words(**options: Any) -> Any:
    return keras.Input((None,), dtype="int32", **options)


def embedding(mask_zero: bool = True) -> Any:
    return layers.Embedding(WORDS, FEATURES, mask_zero=mask_zero)


def of_words(*made: Any) -> Any:
    return keras.Sequential([words(), embedding(), *made])


def gru(**options: Any) -> Any:
    return layers.GRU(HIDDEN, **{**EVERY, **options})


def wired(function: Callable[[Any], Any]) -> Any:
    """A model of a function of embedded words."""
    x = words()
    return keras.Model(x, function(embedding()(x)))


def both(layer: Any, **options: Any) -> Any:
    return layers.Bidirectional(layer, **options)


# ---- one class after another -------------------------------------------------------------------------------

LAST: Any = {"return_sequences": False}
CASES: dict[str, Callable[[], Any]] = {
    "the last output": lambda: of_words(layers.LSTM(HIDDEN), layers.Dense(2)),
    "every output": lambda: of_words(layers.LSTM(HIDDEN, **EVERY), layers.Dense(2), gru()),
    "zeros": lambda: of_words(gru(zero_output_for_mask=True), layers.Dense(2), gru(**LAST)),
    "the last of zeros": lambda: of_words(gru(zero_output_for_mask=True, **LAST), layers.Dense(2)),
    "backwards": lambda: of_words(gru(go_backwards=True, **LAST), layers.Dense(2)),
    "every output, backwards": lambda: of_words(gru(go_backwards=True), layers.Dense(2), gru()),
    "both directions": lambda: of_words(both(layers.LSTM(HIDDEN, **EVERY)), gru(), layers.Dense(2)),
    "the last of both": lambda: of_words(both(gru(**LAST), merge_mode="sum"), layers.Dense(2)),
    "cells": lambda: of_words(
        layers.RNN([layers.GRUCell(HIDDEN), layers.LSTMCell(HIDDEN)], **EVERY), gru(), layers.Dense(2)
    ),
    "the mean": lambda: of_words(gru(), layers.GlobalAveragePooling1D()),
    "the mean, kept": lambda: of_words(gru(), layers.GlobalAveragePooling1D(keepdims=True), layers.Flatten()),
    "features alone": lambda: of_words(
        gru(),
        layers.Dropout(0.1),
        layers.SpatialDropout1D(0.1),
        layers.BatchNormalization(),
        layers.LayerNormalization(),
        layers.Dense(3, activation="softmax"),
        layers.TimeDistributed(layers.Dense(3)),
        layers.Activation("gelu"),
        layers.GlobalAveragePooling1D(),
    ),
    "more of features alone": lambda: of_words(
        *(layers.ELU(), layers.LeakyReLU(), layers.PReLU(shared_axes=[1]), layers.Rescaling(2.0)),
        *(layers.Identity(), layers.GaussianNoise(0.1), layers.GaussianDropout(0.1)),
        *(layers.AlphaDropout(0.1), layers.ActivityRegularization(), layers.Normalization()),
        gru(**LAST),
        layers.Dense(2),
    ),
    "a convolution": lambda: of_words(layers.Conv1D(4, 3, padding="same"), gru(**LAST)),
    "another shape": lambda: of_words(gru(), layers.Reshape((-1, 2, 2)), layers.Reshape((-1, 4)), gru()),
    "an operation": lambda: wired(lambda x: gru()(ops.softmax(ops.tanh(x) + x))),
    "a sum": lambda: wired(lambda x: gru(**LAST)(layers.Add()([x, gru_of(FEATURES)(x)]))),
    "a sum with no mask": lambda: wired(lambda x: gru(**LAST)(layers.Add()([x, ops.tanh(x)]))),
    "a product with no mask": lambda: wired(lambda x: gru(**LAST)(layers.Multiply()([x, ops.tanh(x)]))),
    "a maximum with no mask": lambda: wired(
        lambda x: gru(**LAST)(layers.Maximum()([x, ops.tanh(x), layers.ReLU()(x)]))
    ),
    "side by side with no mask": lambda: wired(
        lambda x: layers.GlobalAveragePooling1D()(layers.Concatenate()([gru()(x), ops.tanh(x)]))
    ),
    "final states": lambda: wired(lambda x: layers.Concatenate()(layers.LSTM(HIDDEN, return_state=True)(x))),
    "initial states": lambda: wired(from_states),
    "initial states of both": lambda: wired(from_states_of_both),
    "a model in the model": lambda: wired(through_a_model),
    "shared layers": lambda: wired(shared),
}


def gru_of(units: int) -> Any:
    return layers.GRU(units, **EVERY)


def from_states(x: Any) -> Any:
    """A layer that begins with states: Keras 3 does not hand it the mask, but passes the mask on."""
    state = layers.Dense(HIDDEN)(layers.GlobalMaxPooling1D()(x))
    return layers.GlobalAveragePooling1D()(gru()(x, initial_state=state))


def from_states_of_both(x: Any) -> Any:
    _, *states = both(layers.LSTM(HIDDEN, **EVERY, return_state=True))(x)
    return gru(**LAST)(both(layers.LSTM(HIDDEN, **EVERY))(x, initial_state=states))


def through_a_model(x: Any) -> Any:
    """A model of two inputs, of which one has a mask, and a Sequential on its result."""
    first, second = keras.Input((None, FEATURES)), keras.Input((None, FEATURES))
    inside = layers.Concatenate()([gru()(first), gru()(second)])
    inner = keras.Model([first, second], [layers.Dense(FEATURES)(inside), gru()(first)])
    mixed, own = inner([x, ops.tanh(x)])
    end = keras.Sequential([gru()])(own)
    return layers.Concatenate()([layers.GlobalAveragePooling1D()(each) for each in (mixed, end)])


def shared(x: Any) -> Any:
    """A layer that is called with a mask, and without one."""
    layer = gru(**LAST)
    return layers.Concatenate()([layer(x), layer(ops.tanh(x))])


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", CASES)
def test_a_mask_goes_where_keras_passes_it(tmp_path: Path, name: str):
    check(CASES[name](), tmp_path / "m.keras", TOKENS)


@pytest.mark.parametrize(("value", "ending"), [(0.0, ".keras"), (0.1, ".h5")])
def test_masking_leaves_out_the_steps_of_one_number(tmp_path: Path, value: float, ending: str):
    made = keras.Sequential(
        [keras.Input((None, FEATURES)), layers.Masking(value), both(gru()), layers.GlobalAveragePooling1D()]
    )
    x = np.where(COUNTS[..., None] == 1, FRAMES, np.float32(value))
    x[0, 2, 1] = value  # of a step, one number alone
    check(made, tmp_path / f"m{ending}", x)


def test_the_output_of_masking_is_zero_at_masked_steps(tmp_path: Path):
    x = keras.Input((None, FEATURES))
    made = keras.Model(x, layers.GRU(HIDDEN)(ops.tanh(layers.Masking(0.5)(x))))
    check(made, tmp_path / "m.keras", np.where(COUNTS[..., None] == 1, FRAMES, np.float32(0.5)))


MERGES = ["Add", "Concatenate", "Maximum", "Multiply"]


@pytest.mark.parametrize("merge", MERGES)
def test_masks_of_two_inputs_are_combined(tmp_path: Path, merge: str):
    first, second = words(name="first"), words(name="second")
    together = getattr(layers, merge)()([embedding()(first), embedding()(second)])
    ends = [layers.GlobalAveragePooling1D()(together), gru(**LAST)(together)]
    made = keras.Model([first, second], layers.Concatenate()(ends))
    check(made, tmp_path / "m.keras", {"first": TOKENS, "second": OTHERS}, [TOKENS, OTHERS])


def test_sequences_without_padding_give_the_same(tmp_path: Path):
    made = of_words(both(layers.LSTM(HIDDEN, **EVERY)), gru(), layers.GlobalAveragePooling1D())
    graph: Any = check(made, tmp_path / "m.keras", TOKENS)
    kept = [row[mask == 1] for row, mask in zip(TOKENS, COUNTS, strict=True) if mask.any()]
    alone, padded = graph(sn.Ragged.from_list(kept)), graph(TOKENS)
    assert_close(alone, padded[COUNTS.any(axis=1)], TIME, 2 * HIDDEN)


@pytest.mark.parametrize("state", [False, True])
def test_a_mask_that_a_call_states_is_the_mask(tmp_path: Path, state: bool):
    x, mask = words(name="x"), keras.Input((None,), dtype="bool", name="mask")
    y = embedding()(x)
    begun: Any = {"initial_state": layers.Dense(HIDDEN)(layers.GlobalMaxPooling1D()(y))} if state else {}
    made = keras.Model([x, mask], layers.GlobalAveragePooling1D()(gru()(y, mask=mask, **begun)))
    stated = COUNTS[::-1] == 1
    check(made, tmp_path / "m.keras", {"x": TOKENS, "mask": stated}, [TOKENS, stated])


def saved_as_keras_2(made: Any, path: Path) -> Path:
    """The .h5 file of a model as Keras 2 writes it: calls are lists of tensors, without masks."""
    saved(made, path)
    names = {layer.name for layer in made.layers}
    with h5py.File(path, "r+") as file:
        attributes: Any = file.attrs
        config = json.loads(attributes["model_config"])
        own = [layer for layer in config["config"]["layers"] if layer["config"]["name"] in names]
        for layer in own:
            for at, call in enumerate(layer["inbound_nodes"]):
                (given,) = call["args"]
                several = given if isinstance(given, list) else [given]
                layer["inbound_nodes"][at] = [[*each["config"]["keras_history"], {}] for each in several]
        config["config"]["layers"] = own
        attributes["model_config"] = json.dumps(config)
        for each in (attributes, cast(Any, file["model_weights"]).attrs):
            each["keras_version"] = "2.15.0"
    return path


OF_KERAS_2: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "Maximum": (lambda x, y: layers.Maximum()([x, y]), ops.logical_and),
    "Concatenate": (lambda x, y: layers.Concatenate()([x, y]), ops.logical_and),
    "a mask of one": (lambda x, y: layers.Add()([x, layers.Conv1D(FEATURES, 1)(y)]), lambda m, _: m),
    "no mask": (lambda x, y: layers.Identity()(x), lambda m, _: ops.ones_like(m)),
}
"""A function of two masked values, and its mask in Keras 2, of those of its arguments."""


@pytest.mark.parametrize("name", OF_KERAS_2)
def test_masks_of_keras_2_are_combined_as_it_did(tmp_path: Path, name: str):
    function, mask_of = OF_KERAS_2[name]
    x, y = words(name="x"), words(name="y")
    together = function(embedding()(x), embedding()(y))
    layer = gru(**LAST)
    made: Any = keras.Model([x, y], layer(together))
    graph: Any = sn.load(saved_as_keras_2(made, tmp_path / "m.h5"))
    unmasked = cast(Any, keras.Model([x, y], together)).predict([TOKENS, OTHERS], verbose=0)
    if name == "Maximum":  # Keras 3 replaces what is masked
        first, second = (each.get_weights()[0] for each in made.layers if isinstance(each, layers.Embedding))
        unmasked = np.maximum(first[TOKENS], second[OTHERS])
    mask = mask_of(ops.convert_to_tensor(TOKENS != 0), ops.convert_to_tensor(OTHERS != 0))
    right = ops.convert_to_numpy(layer(ops.convert_to_tensor(unmasked), mask=mask))
    assert_close(graph({"x": TOKENS, "y": OTHERS}), right, TIME, 2 * FEATURES + 2 * HIDDEN)


# ---- refusals ----------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a mask of numbers": (
        lambda: wired(lambda x: gru()(x, mask=layers.GlobalMaxPooling1D()(x))),
        "its mask is not of bools\n  at gru",
    ),
    "a softmax": (
        lambda: of_words(gru_of(TIME), layers.Softmax(name="s")),
        "it takes the mask of its operand, which Keras does not fit to the features\n  at s (Softmax) of ",
    ),
    "steps joined": (
        lambda: wired(lambda x: gru()(layers.Concatenate(axis=1, name="c")([x, gru_of(FEATURES)(x)]))),
        "c (Concatenate) of ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_use_of_masks_that_is_not_supported_is_refused(tmp_path: Path, name: str):
    made, expected = REFUSED[name]
    with pytest.raises(ModelError) as raised:
        sn.load(saved(made(), tmp_path / "m.keras"))
    assert expected in str(raised.value)
