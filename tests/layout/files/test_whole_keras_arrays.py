"""Keras files that lost outputs, loaded with arrays of wrong shapes, or were refused for a wrong reason."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import numpy as np
import pytest
from tolerance import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
import h5py
import keras
from keras import layers

import stepnet as sn
from stepnet.errors import LayoutError, ModelError, StepnetError

EVERY: Any = {"return_sequences": True}
X = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
TOKENS = np.random.default_rng(0).integers(0, 5, (2, 6))
pytestmark = pytest.mark.filterwarnings("ignore")  # .h5 is called legacy, and a shared layer is skipped


def entrance() -> Any:
    return keras.Input((None, 3))


def saved(made: Any, path: Path) -> Path:
    made.save(path)
    return path


def check(made: Any, path: Path, x: Any = X) -> sn.Graph:
    graph: Any = sn.load(saved(made, path))
    assert_close(graph(x), made.predict(x, verbose=0), 6, 12)
    return graph


def test_outputs_of_equal_names_are_all_there(tmp_path: Path):
    """The second output of "o" would be numbered as another layer is called."""
    x, first, other = entrance(), layers.Dense(2, name="o"), layers.Dense(2, name="o_1")
    y = layers.GRU(3, **EVERY)(x)
    made: Any = keras.Model(x, [first(y), first(y * 2), other(y)])
    graph: Any = sn.load(saved(made, tmp_path / "m.keras"))
    found = graph(X)
    assert list(found) == ["o", "o_2", "o_1"]
    for actual, right in zip(found.values(), made.predict(X, verbose=0), strict=True):
        assert_close(actual, right, 6, 12)


# ---- arrays and configurations that differ -----------------------------------------------------------------

LAYERS: dict[str, Callable[[], Any]] = {
    "Dense": lambda: layers.Dense(2, name="own"),
    "Conv1D": lambda: layers.Conv1D(4, 3, name="own"),
    "Conv1DTranspose": lambda: layers.Conv1DTranspose(4, 3, name="own"),
    "DepthwiseConv1D": lambda: layers.DepthwiseConv1D(3, name="own"),
    "SeparableConv1D": lambda: layers.SeparableConv1D(4, 2, name="own"),
    "LayerNormalization": lambda: layers.LayerNormalization(name="own"),
    "BatchNormalization": lambda: layers.BatchNormalization(name="own"),
    "PReLU": lambda: layers.PReLU(shared_axes=[1], name="own"),
    "Embedding": lambda: layers.Embedding(5, 3, name="own"),
    "Normalization": lambda: layers.Normalization(name="own"),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "twice as many": lambda array: np.concatenate([array, array]),
    "a number": lambda array: np.float32(1),
    "one more axis": lambda array: array[None],
    "whole numbers": lambda array: array.astype("int64"),
}
SETTINGS = {
    "Dense": {"units": 7},
    "Conv1D": {"kernel_size": [5], "filters": 8, "groups": 3},
    "Conv1DTranspose": {"kernel_size": [5], "filters": 8},
    "DepthwiseConv1D": {"kernel_size": [5], "depth_multiplier": 2},
    "SeparableConv1D": {"kernel_size": [5], "filters": 8},
    "Embedding": {"input_dim": 8, "output_dim": 4},
}


def members_of(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as source:
        return {name: source.read(name) for name in source.namelist()}


def refused(path: Path, members: dict[str, bytes], words: str) -> None:
    """Asserts that the file of these members is refused, by the name of its layer."""
    with ZipFile(path, "w") as target:
        for name, data in members.items():
            target.writestr(name, data)
    with pytest.raises(ModelError, match=rf"(?s){words}.* at own \("):
        sn.load(path)


@pytest.mark.parametrize("name", LAYERS)
def test_arrays_that_do_not_fit_the_configuration_are_refused(tmp_path: Path, name: str):
    made = keras.Sequential([keras.Input((None,) if name == "Embedding" else (None, 3)), LAYERS[name]()])
    made.add(layers.GRU(3))
    path = tmp_path / "m.keras"
    check(made, path, TOKENS if name == "Embedding" else X)
    members = members_of(path)
    opened: Any = h5py.File(io.BytesIO(members["model.weights.h5"]))
    with opened as file:
        places: list[str] = []
        file.visit(places.append)
        own = [each for each in places if "gru" not in each and isinstance(file[each], h5py.Dataset)]
        own = [each for each in own if file[each].ndim]  # without the count of Normalization
    for place in own:
        for change in CHANGES.values():
            data = io.BytesIO(members["model.weights.h5"])
            opened = h5py.File(data, "r+")
            with opened as file:
                array = file[place][...]
                del file[place]
                file[place] = change(array)
            refused(path, {**members, "model.weights.h5": data.getvalue()}, "its .*(shape|numbers)")
    config = json.loads(members["config.json"])
    settings = config["config"]["layers"][1]["config"]
    for key, value in SETTINGS.get(name, {}).items():
        before, settings[key] = settings[key], value
        refused(path, {**members, "config.json": json.dumps(config).encode()}, "its .*(shape|groups)")
        settings[key] = before


# ---- zeros around steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("convolution", [layers.Conv1D, layers.SeparableConv1D])
def test_zeros_are_put_around_steps_in_a_functional_model(tmp_path: Path, convolution: Any):
    x = entrance()
    padding: Any = (1, 2)
    y = convolution(4, 3)(layers.ZeroPadding1D(padding)(x))
    check(keras.Model(x, layers.GRU(2, **EVERY)(y)), tmp_path / "m.keras")


READERS: dict[str, Callable[[Any], Any]] = {
    "MaxPooling1D": layers.MaxPooling1D(2),
    "GRU": layers.GRU(2),
    "Add": lambda x: layers.Add()([x, x]),
    "ZeroPadding1D": layers.ZeroPadding1D(1),
    "Dropout": layers.Dropout(0.5),
    "multiply": lambda x: x * 2.0,
    "output": lambda x: x,
}


@pytest.mark.parametrize("name", READERS)
def test_zeros_around_steps_are_steps_like_others(tmp_path: Path, name: str):
    x = entrance()
    zeros = layers.ZeroPadding1D(cast(Any, (1, 2)))(x)
    check(keras.Model(x, READERS[name](zeros)), tmp_path / "m.keras")


def test_zeros_around_features_are_refused(tmp_path: Path):
    path = saved(
        keras.Sequential(
            [entrance(), layers.ZeroPadding1D(1, name="own"), layers.Conv1D(4, 3), layers.GRU(2)]
        ),
        tmp_path / "m.keras",
    )
    members = members_of(path)
    config = json.loads(members["config.json"])
    config["config"]["layers"][1]["config"]["data_format"] = "channels_first"
    refused(path, {**members, "config.json": json.dumps(config).encode()}, "data_format")


# ---- what is no recurrent layer of Keras' ------------------------------------------------------------------


@keras.saving.register_keras_serializable("my")
class Doubled(layers.GRU):
    def call(self, sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = False) -> Any:
        own: Any = super().call(sequences, initial_state, mask, training)
        return own * 2


@pytest.mark.parametrize("name", ["m.keras", "m.h5", "both.keras"])
def test_a_subclass_of_the_programs_own_is_not_run_as_keras_class(tmp_path: Path, name: str):
    own: Any = Doubled(3, name="own")
    made = layers.Bidirectional(own, name="own") if "both" in name else own
    path = saved(keras.Sequential([entrance(), made]), tmp_path / name)
    for recurrent_only in (False, True):
        with pytest.raises(LayoutError, match=r"own.*my>Doubled"):
            sn.load(path, recurrent_only=recurrent_only)


def test_a_layer_that_two_models_share_is_named(tmp_path: Path):
    """Keras itself does not load the file, in which the arrays are those of the inner model alone."""
    shared, x, own = layers.Dense(3, name="own"), entrance(), entrance()
    inner = keras.Model(own, layers.Dense(3)(shared(own)), name="inner")
    path = saved(keras.Model(x, layers.GRU(3)(shared(inner(x)))), tmp_path / "m.keras")
    with pytest.raises(ValueError, match="could not be loaded"):
        keras.models.load_model(path)
    with pytest.raises(StepnetError, match=r"own \(Dense\).*only at inner/own: where models share a layer"):
        sn.load(path)


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_a_model_without_recurrent_layers_is_read_whole(tmp_path: Path, ending: str):
    made = keras.Sequential([entrance(), layers.Conv1D(4, 3, padding="causal"), layers.Dense(2)])
    check(made, tmp_path / f"m.{ending}")
