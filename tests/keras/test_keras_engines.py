"""The argument `engine=` of Keras' layers: in configs and files where it was chosen, and on every backend."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepnet.keras
from stepnet.errors import InputError
from stepnet.keras.array_steps import ArraySettings
from tests.keras.keras_cases import BATCH, INPUTS, STEPS, UNITS, keras, numbers

KINDS = ["SimpleRNN", "LSTM", "GRU", "RNN"]
SEVERAL = ["interpret", "llvm"]


def made(kind: str, **options: Any) -> Any:
    first = keras.layers.GRUCell(UNITS) if kind == "RNN" else UNITS
    return getattr(stepnet.keras, kind)(first, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_configs_have_engines_that_were_chosen(kind: str):
    plain, chosen, several = (made(kind, **one) for one in ({}, {"engine": "interpret"}, {"engine": SEVERAL}))
    assert plain.engine == "auto"
    assert "engine" not in plain.get_config()
    assert chosen.get_config()["engine"] == "interpret"
    for layer in (plain, chosen, several):
        assert type(layer).from_config(layer.get_config()).engine == layer.engine
        copied = keras.layers.deserialize(keras.layers.serialize(layer))
        assert (type(copied), copied.engine) == (type(layer), layer.engine)
    theirs = getattr(keras.layers, kind).from_config({**plain.get_config()})
    assert theirs.get_config() == plain.get_config()


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_engines_are_refused(kind: str):
    with pytest.raises(InputError, match="no engine is called 'tpu'"):
        made(kind, engine="tpu")
    with pytest.raises(InputError, match="no engine is called 'tpu'"):
        stepnet.keras.accelerate(engine="tpu")
    with pytest.raises(ValueError, match="Unrecognized keyword"):
        made(kind, engines="auto")


def test_files_and_both_directions_keep_the_engine(tmp_path: Path):
    both = stepnet.keras.Bidirectional(stepnet.keras.LSTM(UNITS, engine=SEVERAL))
    model = keras.Sequential([keras.Input((STEPS, INPUTS)), both])
    x = numbers(BATCH, STEPS, INPUTS)
    right = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    (layer,) = loaded.layers
    assert layer.forward_layer.engine == layer.backward_layer.engine == tuple(SEVERAL)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), right)


def test_layers_of_keras_have_the_engines_of_the_last_acceleration():
    theirs, ours = keras.layers.GRU(UNITS), stepnet.keras.GRU(UNITS, engine="llvm")

    def engines() -> tuple[Any, Any]:
        return ArraySettings.of(theirs).engine, ArraySettings.of(ours).engine

    first = stepnet.keras.accelerate(engine="interpret")
    second = stepnet.keras.accelerate(engine=SEVERAL)
    assert engines() == (tuple(SEVERAL), "llvm")
    second.undo()
    second.undo()
    assert engines() == ("interpret", "llvm")
    first.undo()
    assert engines() == ("auto", "llvm")
