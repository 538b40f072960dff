"""Layers over windows in Keras models that are read whole: over grids, adaptive, and over steps of a number
that the file states.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers

import stepnet as sn
from stepnet.errors import InputError, ModelError
from tests.layout.files.test_whole_keras import EVERY, FEATURES, TIME, X, check, edited, row, saved, setting

pytestmark = pytest.mark.filterwarnings("ignore")
PLACES = (6, 2)


def grid(*made: Any) -> Any:
    """A model over grids [steps, 6 rows, 2 features], made of the steps' features."""
    first = [layers.Dense(12), layers.Reshape((-1, *PLACES))]
    return row(*first, *made)


def pictures(*made: Any) -> Any:
    """A model over a picture [3, 6, 2] of each step."""
    first = [layers.Dense(36), layers.Reshape((-1, 3, *PLACES))]
    return row(*first, *(layers.TimeDistributed(layer) for layer in made))


WINDOWS: dict[str, Callable[[], Any]] = {
    "AdaptiveAveragePooling1D": lambda: row(
        layers.AdaptiveAveragePooling1D(4), layers.Flatten(), layers.Dense(2)
    ),
    "AdaptiveMaxPooling1D": lambda: row(layers.AdaptiveMaxPooling1D(4), layers.Flatten(), layers.Dense(2)),
    "AdaptiveAveragePooling2D": lambda: grid(layers.AdaptiveAveragePooling2D((2, 4))),
    "AdaptiveMaxPooling2D": lambda: grid(layers.AdaptiveMaxPooling2D((2, 4))),
    "Conv2D": lambda: grid(layers.Conv2D(3, (3, 2), padding="same", strides=(2, 1), activation="relu")),
    "Conv2D groups": lambda: grid(layers.Conv2D(4, (2, 3), groups=2, dilation_rate=(2, 1))),
    "Cropping2D": lambda: grid(layers.Cropping2D(cast(Any, ((1, 2), (0, 1))))),
    "DepthwiseConv2D": lambda: grid(layers.DepthwiseConv2D((3, 2), depth_multiplier=2, padding="same")),
    "SeparableConv2D": lambda: grid(layers.SeparableConv2D(3, (2, 3), strides=2, padding="same")),
    "MaxPooling2D": lambda: grid(layers.MaxPooling2D((2, 3), padding="same")),
    "AveragePooling2D": lambda: grid(layers.AveragePooling2D((3, 4), strides=(1, 2), padding="same")),
    "GlobalAveragePooling2D": lambda: grid(layers.GlobalAveragePooling2D(keepdims=True)),
    "GlobalMaxPooling2D": lambda: grid(layers.GlobalMaxPooling2D()),
    "UpSampling2D": lambda: grid(layers.UpSampling2D((2, 3))),
    "ZeroPadding2D": lambda: grid(layers.ZeroPadding2D(cast(Any, ((2, 0), (1, 2)))), layers.Conv2D(3, 3)),
    "pictures": lambda: pictures(
        layers.ZeroPadding2D(1), layers.Conv2D(3, 2), layers.MaxPooling2D(2), layers.Flatten()
    ),
    "lines": lambda: row(
        layers.Dense(12),
        layers.Reshape((-1, *PLACES)),
        layers.TimeDistributed(layers.ZeroPadding1D(1)),
        layers.TimeDistributed(layers.Conv1D(4, 3, padding="causal")),
        layers.TimeDistributed(layers.Cropping1D(cast(Any, (1, 2)))),
        layers.TimeDistributed(layers.UpSampling1D(2)),
        layers.TimeDistributed(layers.AveragePooling1D(3, strides=1, padding="same")),
    ),
    "ConvLSTM1D": lambda: grid(layers.ConvLSTM1D(3, 3, padding="same", return_sequences=True)),
    "ConvLSTM1D last": lambda: grid(layers.ConvLSTM1D(3, 2, strides=2, use_bias=False, activation="relu")),
    "ConvLSTM2D": lambda: row(
        layers.Dense(24), layers.Reshape((-1, 4, 3, 2)), layers.ConvLSTM2D(2, (2, 3), padding="same", **EVERY)
    ),
    "steps that are joined": lambda: row(layers.Reshape((-1, 2 * FEATURES)), layers.GRU(4, **EVERY)),
    "steps that are split": lambda: row(layers.Dense(6), layers.Reshape((-1, 2)), layers.GRU(4, **EVERY)),
}
"""Models with each class of windows that test_whole_keras.py has none of."""


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_those_of_keras(tmp_path: Path, name: str):
    check(WINDOWS[name](), tmp_path / "m.keras")


def test_a_sequence_alone_has_the_bits_that_it_has_in_a_batch(tmp_path: Path):
    graph: Any = sn.load(saved(WINDOWS["Conv2D"](), tmp_path / "m.keras"))
    several = graph(sn.Ragged.from_list([X[0], X[1, :3]])).to_list()
    for array, found in zip((X[0], X[1, :3]), several, strict=True):
        assert np.array_equal(graph(array[None])[0], found)


# ---- numbers of steps --------------------------------------------------------------------------------------


def u_net(x: Any) -> Any:
    """Two levels of halves and thirds of the steps, and back."""
    first = layers.Conv1D(2, 3, padding="same")(x)
    second = layers.Conv1D(3, 3, padding="same")(layers.MaxPooling1D(2)(first))
    third = layers.Conv1D(4, 3, padding="same")(layers.MaxPooling1D(3)(second))
    y = layers.Concatenate()([layers.UpSampling1D(3)(third), second])
    y = layers.Conv1DTranspose(2, 2, strides=2)(y)
    return layers.Add()([y, first])


def test_levels_of_a_u_net_are_brought_together(tmp_path: Path):
    x = keras.Input((None, FEATURES))
    graph: Any = check(keras.Model(x, u_net(x)), tmp_path / "m.keras")
    whole = graph(X)
    longer = graph(np.concatenate([X, X[:, :1]], axis=1))
    assert longer.shape[1] == TIME  # the seventh step is left over: Keras has an error for seven
    assert np.array_equal(np.isfinite(longer), np.isfinite(whole))


FIXED: dict[str, Callable[[Any], Any]] = {
    "all steps side by side": lambda x: layers.Dense(2)(layers.Flatten()(layers.Conv1D(4, 3)(x))),
    "a product over steps": lambda x: layers.Dense(2)(layers.Permute((2, 1))(layers.Conv1D(4, 3)(x))),
    "what steps explain": lambda x: layers.Subtract()(
        [
            y := layers.Reshape((TIME,))(x[:, :, :1]),
            layers.Dense(TIME)(layers.Flatten()(x)) + layers.Dense(TIME)(y),
        ]
    ),
}


@pytest.mark.parametrize("name", FIXED)
def test_steps_of_a_stated_number_may_be_features(tmp_path: Path, name: str):
    x = keras.Input((TIME, FEATURES))
    graph: Any = check(keras.Model(x, FIXED[name](x)), tmp_path / "m.keras")
    for steps in (TIME - 1, 1):
        assert np.isnan(graph(X[:, :steps])).all()
    assert np.isnan(graph(np.concatenate([X, X], axis=1))).all()


def test_an_adaptive_pooling_to_many_parts_is_refused(tmp_path: Path):
    path = saved(row(layers.AdaptiveMaxPooling1D(300)), tmp_path / "m.keras")
    with pytest.raises(ModelError, match="it pools to 300 parts: 1 to 256 are supported"):
        sn.load(path)


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "a kernel beyond a feature": ({"pool_size": [1, 9]}, "its kernel reaches over 9 of 6 features"),
    "a kernel of three axes": ({"pool_size": [1, 2, 3]}, "its pool_size is .* and should be 2 whole numbers"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_pooling_is_refused(tmp_path: Path, name: str):
    settings, words = DAMAGED[name]
    x = keras.Input((None, FEATURES))
    y = layers.Reshape((-1, *PLACES))(layers.Dense(12)(x))
    path = saved(keras.Model(x, layers.MaxPooling2D(2, name="d")(y)), tmp_path / "m.keras")
    with pytest.raises(ModelError, match=words):
        sn.load(edited(path, setting(**settings)))


def test_a_kernel_that_spectral_normalization_made_is_used_as_it_is(tmp_path: Path):
    made = row(
        layers.SpectralNormalization(layers.Conv1D(4, 3, padding="same")),
        layers.GRU(4, **EVERY),
        layers.SpectralNormalization(layers.Dense(2)),
    )
    check(made, tmp_path / "m.keras")


def test_attention_by_hand_repeats_the_weights_of_steps(tmp_path: Path):
    x = keras.Input((TIME, FEATURES))
    scores = layers.Softmax()(layers.Flatten()(layers.Dense(1)(x)))
    y = layers.Multiply()([x, layers.Permute((2, 1))(layers.RepeatVector(FEATURES)(scores))])
    graph: Any = check(keras.Model(x, layers.GRU(3)(y)), tmp_path / "m.keras")
    assert_close(graph(X[:1]), graph(X)[:1])


def test_an_input_of_as_many_steps_as_follow_from_another(tmp_path: Path):
    """Steps of two inputs are combined one by one where a call has as many of both."""
    notes, sounds = keras.Input((None, 2), name="notes"), keras.Input((None, 2), name="sounds")
    joined = layers.Concatenate()([layers.UpSampling1D(3)(notes), layers.GRU(2, **EVERY)(sounds)])
    made: Any = keras.Model([notes, sounds], layers.Dense(2)(joined))
    graph = cast("sn.Graph", sn.load(saved(made, tmp_path / "m.keras")))
    x = {"notes": X[:, :2, :2], "sounds": np.ascontiguousarray(X[:, :6, 1:3])}
    assert_close(graph(x), made.predict(x, verbose=0), TIME, 8)
    short = {name: sn.Ragged.from_list([each[0]]) for name, each in x.items()}
    assert_close(graph(short).values, made.predict(x, verbose=0)[0], TIME, 8)
    short["sounds"] = sn.Ragged.from_list([x["sounds"][0, :5]])
    for _ in range(2):
        with pytest.raises(InputError, match=r"sequence 0 has 5 steps\[sounds\] and 6 steps\[\*3\+0\]"):
            graph(short)


def test_steps_of_other_lengths_are_named_in_words(tmp_path: Path) -> None:
    x = keras.Input((5, 2))
    repeated = layers.RepeatVector(3)(layers.GlobalAveragePooling1D()(x))
    made = keras.Model(x, layers.Add()([layers.Conv1D(2, 3)(x), repeated]))
    words = r"\[sequences, steps of other lengths, 2\] and .*of other lengths, 2\] do not fit"
    with pytest.raises(ModelError, match=words):
        sn.load(saved(made, tmp_path / "m.keras"))
