"""Layers that give their last output alone: the new model gives it too, in Keras and in onnxruntime."""

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tolerance import assert_close

from tests.layout.files.test_keras_uses import converted, saved

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import onnxruntime
import torch

from stepnet.layout.files import read

layers = keras.layers
INPUTS = HIDDEN = 3
TIME = 5
X = np.random.default_rng(4).normal(size=(2, TIME, INPUTS)).astype(np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")


def both(merge: str) -> Any:
    return layers.Bidirectional(layers.GRU(HIDDEN), merge_mode=merge, name="both")


def stack() -> Any:
    return layers.RNN([layers.LSTMCell(HIDDEN), layers.LSTMCell(HIDDEN)], name="stack")


def row() -> Any:
    every = layers.LSTM(HIDDEN, return_sequences=True, name="below")
    return lambda x: layers.LSTM(HIDDEN, name="above")(every(x))


MADE: dict[str, Any] = {
    "LSTM": lambda: layers.LSTM(HIDDEN, name="lstm"),
    "from the end": lambda: layers.GRU(HIDDEN, go_backwards=True, name="gru"),
    "row": row,
    "stack of cells": stack,
    **{merge: lambda merge=merge: both(merge) for merge in ("concat", "sum", "mul", "ave")},
}


def in_keras(path: Path) -> Any:
    model: Any = keras.saving.load_model(path)
    return keras.ops.convert_to_numpy(model(X))


def in_onnxruntime(path: Path) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = [one.name for one in session.get_inputs()]
    return session.run(["output"], {name: X})[0]


RUNS = {".keras": in_keras, ".onnx": in_onnxruntime}
ADDED = ("sum", "mul", "ave")  # which no ONNX node does
CASES = [(name, ending) for name in MADE for ending in RUNS if ending == ".keras" or name not in ADDED]


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("name", "ending"), CASES)
def test_a_new_model_gives_the_last_output(tmp_path: Path, name: str, ending: str):
    source, out = saved(tmp_path, MADE[name]()), tmp_path / f"out{ending}"
    stated = converted(source, "--to", out.suffix[1:], "-o", out, "--verify")
    assert not any(
        "which the new file does not say" in note for notes in stated["notes"].values() for note in notes
    )
    found, wanted = RUNS[ending](out), in_keras(source)
    assert found.shape == wanted.shape
    assert_close(found, wanted, length=2 * TIME, width=INPUTS + HIDDEN)
    assert [module.last_only for module in read(out).modules][-1]


def test_it_goes_from_onnx_to_keras(tmp_path: Path):
    source, onnx, out = saved(tmp_path, row()), tmp_path / "out.onnx", tmp_path / "out.keras"
    converted(source, "--to", "onnx", "-o", onnx)
    converted(onnx, "--to", "keras", "-o", out, "--verify")
    assert_close(in_keras(out), in_keras(source), length=2 * TIME, width=INPUTS + HIDDEN)


class Last(torch.nn.Module):
    """An encoder whose last state is all that is used."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(INPUTS, HIDDEN, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.gru(x)[1][0]


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_the_last_state_of_an_exported_model_is_its_last_output(tmp_path: Path):
    model, source, out = Last().eval(), tmp_path / "last.onnx", tmp_path / "out.keras"
    torch.onnx.export(model, (torch.from_numpy(X),), source, dynamo=False, input_names=["x"])
    (module,) = read(source).modules
    assert (module.last_only, module.states) == (True, False)
    stated = converted(source, "--to", "keras", "-o", out, "--verify")
    assert not any(stated["notes"].values())
    assert_close(in_keras(out), model(torch.from_numpy(X)).detach().numpy(), length=TIME, width=2 * HIDDEN)


def test_states_that_a_graph_gives_are_noted(tmp_path: Path):
    def made(x: Any) -> Any:
        return layers.LSTM(HIDDEN, return_sequences=True, return_state=True, name="lstm")(x)

    source, onnx, out = saved(tmp_path, made), tmp_path / "out.onnx", tmp_path / "out.keras"
    converted(source, "--to", "onnx", "-o", onnx)
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    found: Any = session.run(["output", "final_h_0", "final_c_0"], {"input": X})
    model: Any = keras.saving.load_model(source)
    wanted = [keras.ops.convert_to_numpy(y) for y in model(X)]
    for y, right in zip((found[0], found[1][0], found[2][0]), wanted, strict=True):
        assert_close(y, right, length=TIME, width=2 * HIDDEN)
    stated = converted(onnx, "--to", "keras", "-o", out)
    assert stated["notes"] == {"lstm": ["it also returns its final states, which the new file does not say"]}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN", "both", "stack"])
def test_states_that_a_keras_model_gives_are_given_by_the_new_one(tmp_path: Path, name: str, every: bool):
    def made(x: Any) -> Any:
        options: dict[str, Any] = {"return_sequences": every, "return_state": True}
        if name == "both":
            return layers.Bidirectional(layers.LSTM(HIDDEN, **options), name="both")(x)
        if name == "stack":
            return layers.GRU(HIDDEN, **options)(layers.GRU(HIDDEN, return_sequences=True)(x))
        return getattr(layers, name)(HIDDEN, **options)(x)

    source, between, out = saved(tmp_path, made), tmp_path / "out.safetensors", tmp_path / "out.keras"
    stated = converted(source, "--to", "keras", "-o", out, "--verify")
    assert not any(stated["notes"].values())
    wanted, found = (cast("Any", keras.saving.load_model(path))(X) for path in (source, out))
    assert len(found) == len(wanted)
    for y, right in zip(found, wanted, strict=True):
        first, second = (np.asarray(keras.ops.convert_to_numpy(output)) for output in (y, right))
        assert np.array_equal(first, second)
    assert [one.states for one in read(out).modules] == [one.states for one in read(source).modules]
    notes = converted(source, "--to", "torch", "-o", between)["notes"]
    assert any(
        "it also returns its final states, which the new file does not say" in said for said in notes.values()
    )
