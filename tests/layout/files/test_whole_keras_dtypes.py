"""Keras models read whole, against Keras: integers, dtypes, and what files of them do not say."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers, ops

import stepnet as sn
from stepnet.errors import LayoutError, ModelError

TIME, FEATURES, HIDDEN = 4, 3, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, TIME, FEATURES)).astype("float32")
WHOLE = RANDOM.integers(-5, 6, X.shape).astype("int32")
EVERY: Any = {"return_sequences": True}
DOUBLE: Any = {"dtype": "float64"}
pytestmark = pytest.mark.filterwarnings("ignore")  # .h5 is called legacy


def entrance(**options: Any) -> Any:
    return keras.Input((None, FEATURES), **options)


def gru(**options: Any) -> Any:
    return layers.GRU(HIDDEN, **EVERY, **options)


INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "times half": lambda a, b: a * 0.5,
    "minus half": lambda a, b: a - 0.5,
    "times two": lambda a, b: a * 2,
    "maximum": lambda a, b: ops.maximum(a, 0.5),
    "plus float": lambda a, b: a + b,
    "by three": lambda a, b: a / 3,
    "divide": lambda a, b: ops.divide(a, 2),
    "mean": lambda a, b: ops.mean(a, axis=1),
    "sum": lambda a, b: ops.sum(a, axis=1),
    "pooled": lambda a, b: layers.GlobalAveragePooling1D()(a),
    "average": lambda a, b: layers.Average()([a, a + 1]),
    "rescaled": lambda a, b: layers.Rescaling(0.3, 0.1)(a),
    "joined": lambda a, b: layers.Concatenate()([a, b]),
    "differs": lambda a, b: ops.not_equal(a, 0.5),
    "dense": lambda a, b: layers.Dense(2)(a),
    "dense by step": lambda a, b: layers.TimeDistributed(layers.Dense(2))(a),
    "recurrent": lambda a, b: gru()(a),
    "tanh": lambda a, b: ops.tanh(a),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_promoted_as_in_keras(name: str, tmp_path: Path) -> None:
    a, b = entrance(dtype="int32", name="a"), entrance(name="b")
    made: Any = keras.Model([a, b], [INTEGERS[name](a, b), gru()(b)])
    made.save(tmp_path / "m.keras")
    graph: Any = sn.load(tmp_path / "m.keras")
    found, right = [*graph({"a": WHOLE, "b": X}).values()], made.predict([WHOLE, X], verbose=0)
    for actual, array in zip(found, right, strict=True):
        assert actual.dtype == array.dtype
        assert_close(actual, array, TIME, 2 * FEATURES + 2 * HIDDEN)


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "relu (Activation)": ("called on int32", lambda: of_integers(layers.Activation("relu", name="relu"))),
    "masking (Masking)": ("mask_value", lambda: of_integers(layers.Masking(0.5, name="masking"))),
    "seen": (r"\[sequences, steps, ...\]", lambda: of_floats(gru(), layers.Permute((2, 1), name="seen"))),
    "act (Activation)": (
        "float64",
        lambda: of_floats(gru(), layers.Activation("tanh", name="act", **DOUBLE)),
    ),
    "rest (GRU)": ("float64", lambda: of_floats(gru(name="rest"), layers.Dense(2), **DOUBLE)),
    "inner": (
        "float64",
        lambda: of_floats(gru(), of_floats(layers.Activation("tanh", **DOUBLE), **DOUBLE, name="inner")),
    ),
}


def of_integers(layer: Any) -> Any:
    a, b = entrance(dtype="int32"), entrance()
    return keras.Model([a, b], [layer(a), gru()(b)])


def of_floats(*made: Any, name: str = "entrance", **options: Any) -> Any:
    return keras.Sequential([keras.Input((FEATURES, FEATURES), name=name, **options), *made])


@pytest.mark.parametrize("name", REFUSED)
def test_dtypes_and_outputs_that_are_not_supported_are_refused_by_name(name: str, tmp_path: Path) -> None:
    says, make = REFUSED[name]
    make().save(tmp_path / "m.keras")
    with pytest.raises(ModelError, match=says) as caught:
        sn.load(tmp_path / "m.keras")
    assert name in str(caught.value)


@pytest.mark.parametrize(("options", "dtype"), [({}, "float32"), (DOUBLE, "float64")])
def test_doubles_are_cast_to_the_dtype_of_the_model(options: Any, dtype: str, tmp_path: Path) -> None:
    made: Any = of_floats(gru(**options), layers.Dense(2, **options), **options)
    made.save(tmp_path / "m.keras")
    x = X.astype("float64")[:, :FEATURES]
    found: Any = sn.load(tmp_path / "m.keras")(x)  # type: ignore[operator]
    assert found.dtype == dtype
    assert_close(found.astype("float32"), made(x).detach().numpy(), TIME, 2 * FEATURES + 2 * HIDDEN)


def test_operation_of_h5_is_not_taken_for_the_layer_of_its_name(tmp_path: Path) -> None:
    a, b = entrance(), entrance()
    made: Any = keras.Model([a, b], ops.average(gru()(a), weights=layers.Dense(HIDDEN)(b), axis=-1))
    made.save(tmp_path / "m.h5")
    with pytest.raises(LayoutError, match=r"it has .*average\w* \(Average\)"):
        sn.load(tmp_path / "m.h5")
