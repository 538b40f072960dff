"""Padding by copies of steps and features in ONNX, written and read: against onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.errors import ModelError
from tests.onnx.onnx_models import FLOAT, model_of, node, random, read, theirs, value
from tests.onnx.onnx_saved import ort, right, run, saved

stepnet_onnx: Any = pytest.importorskip("stepnet.onnx")
InvalidArgument: Any = ort.capi.onnxruntime_pybind11_state.InvalidArgument
LENGTHS = [8, 0, 4, 5]
SETTINGS = {"reflect": (2, 1), "reflect ahead": (3, 0), "replicate": (1, 4)}


def padded_model(name: str) -> sn.Graph:
    """Copies at the ends of steps and of fewer steps, around a convolution and a recurrence."""
    mode = name.split()[0]

    def model(x: Any, params: Any) -> Any:
        made = sn.conv1d(
            sn.pad_steps(x, SETTINGS[name], mode=mode), random(5, 4, 3), stride=2, padding="valid"
        )
        ends = sn.pad_steps(rnn_of("gru", 5, 3, seed=1, reverse=True)(made)[0], (0, 1), mode=mode)
        return {"ends": ends, "mean": sn.reduce(ends, "mean")}

    return sn.Graph(model, inputs=sn.Spec(4, "float32"))


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal", "lengths"])
@pytest.mark.parametrize("name", SETTINGS)
def test_copies_are_written_as_onnxs_operators(name: str, lengths: list[int] | None, tmp_path: Path):
    graph, x = padded_model(name), random(4, 8, 4)
    model = saved(graph, tmp_path / "m.onnx", lengths=lengths is not None)
    made = run(model, [x], lengths)
    for actual, wanted in zip(made, right(graph, [x], lengths or [8] * 4), strict=True):
        assert_close(actual[:, : wanted.shape[1]], wanted, 8, 30)
    assert ("Pad" in {node.op_type for node in model.graph.node}) == (lengths is None)


@pytest.mark.parametrize("name", SETTINGS)
def test_written_copies_are_read_for_any_number_of_steps(name: str, tmp_path: Path):
    graph = padded_model(name)
    saved(graph, tmp_path / "m.onnx")
    again = stepnet_onnx.load(tmp_path / "m.onnx")
    x = sn.Ragged.from_list([random(length, 4, seed=length) for length in (6, 9, 5)])
    found, wanted = again(x), graph(x)
    assert_close(found["ends"].values, wanted["ends"].values, 12, 30)


@pytest.mark.parametrize("lengths", [None, [8, 3]], ids=["equal", "lengths"])
def test_onnxruntime_refuses_sequences_that_are_too_short(lengths: list[int] | None, tmp_path: Path):
    graph = sn.Graph(lambda x, params: sn.pad_steps(x, (3, 0)) * 2, inputs=sn.Spec(4, "float32"))
    model = saved(graph, tmp_path / "m.onnx", lengths=lengths is not None)
    run(model, [random(2, 8, 4)], lengths and [8, 4])
    with pytest.raises(
        InvalidArgument, match="exceeds maximum allowed" if lengths is None else "out of data"
    ):
        run(model, [random(2, 8 if lengths else 3, 4)], lengths)


# ---- reading -----------------------------------------------------------------------------------------------

READ: dict[str, tuple[str, list[int]]] = {
    "reflected steps": ("reflect", [0, 2, 0, 0, 1, 0]),
    "replicated steps": ("edge", [0, 1, 0, 0, 7, 0]),
    "reflected features": ("reflect", [0, 0, 3, 0, 0, 1]),
    "replicated features": ("edge", [0, 0, 0, 0, 0, 5]),
    "wrapped features": ("wrap", [0, 0, 3, 0, 0, 2]),
    "both": ("reflect", [0, 0, 1, 0, 3, 0]),
}


def model(mode: str, pads: list[int]) -> Any:
    """A model of x [batch, time, 4] that pads it, of an operator set that has the mode."""
    inputs, outputs = [value("x", "n", "t", 4)], [value("y", None, None, None)]
    return model_of([node("Pad", "x p", mode=mode)], inputs, outputs, {"p": np.array(pads)}, 19)


@pytest.mark.parametrize("name", READ)
def test_copies_are_those_of_onnxruntime(name: str):
    proto = model(*READ[name])
    graph = read(proto)
    for steps in (5, 9):
        x = random(2, steps, 4)
        assert_same_bits(graph(x), theirs(proto, {"x": x})[0])


@pytest.mark.parametrize(
    ("mode", "pads", "words"),
    [
        (
            "wrap",
            [0, 1, 0, 0, 0, 0],
            "its mode is 'wrap', and sequences are padded with copies of their steps",
        ),
        ("reflect", [0, 0, 4, 0, 0, 0], "it puts 4 and 0 copies by 'reflect' around an axis of 4 entries"),
        ("reflect", [0, -1, 0, 0, 1, 0], "steps are put at each end, not -1 and 1"),
        ("edge", [0, 0, -1, 0, 0, 0], "it puts -1 and 0 copies by 'edge' around an axis of 4 entries"),
        ("edge", [1, 0, 0, 0, 0, 0], "not a feature"),
    ],
)
def test_what_is_not_read_is_named(mode: str, pads: list[int], words: str):
    with pytest.raises(ModelError, match=words):
        read(model(mode, pads))


def test_copies_of_steps_in_a_model_with_lengths_are_refused():
    """They would be copies of padding, as ONNX pads the whole array."""
    nodes = [
        node("Pad", "x p", "z", mode="reflect"),
        node("GRU", "z w r - n", "h", hidden_size=2),
    ]
    arrays = {"p": np.array([0, 0, 0, 2, 0, 0]), "w": random(1, 6, 4), "r": random(1, 6, 2)}
    inputs = [value("x", "t", "b", 4), value("n", "b", kind=6)]
    proto = model_of(nodes, inputs, [value("h", *[None] * 4, kind=FLOAT)], arrays)
    with pytest.raises(
        ModelError, match="it is over all steps, padding included, in a model with the lengths"
    ):
        read(proto)
