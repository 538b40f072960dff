"""Axes of ONNX inputs that are sequences and steps: by names of sizes, by operators, and by the user."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import InputError, ModelError
from tests.onnx.onnx_models import model_of, node, random, read, theirs, value

BATCH_FIRST = ("batch", "time"), ("batch_size", "seqLen"), ("N", "T"), ("B", "num_frames")
TIME_FIRST = ("time", "batch"), ("sequence_length", "bsz"), ("t", "n")
SILENT = ("s77", "s0"), ("x_dynamic_axes_1", "x_dynamic_axes_2"), ("unk__3", "unk__4"), ("p", "q")
ACROSS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "a factor that is the first size": (
        [node("Shape", "x", "s", start=0, end=1), node("Cast", "s", "f", to=1), node("Mul", "x f")],
        {},
    ),
    "a running sum": ([node("CumSum", "x a")], {"a": np.array(0)}),
    "the first": ([node("Gather", "x a", axis=0)], {"a": np.array(0)}),
    "a squeeze after the first": (
        [node("Slice", "x a b a", "f"), node("Squeeze", "f a", "y")],
        {"a": np.array([0]), "b": np.array([1])},
    ),
}
"""Operators over the first axis, which are of a model if that is the steps, and mix sequences otherwise."""


def made(name: str, sizes: tuple[str, str]) -> Any:
    """A model of one of `ACROSS`, whose input has these names of sizes."""
    nodes, arrays = ACROSS[name]
    rank = 2 if name in ("the first", "a squeeze after the first") else 3
    return model_of(nodes, [value("x", *sizes, 4)], [value("y", *[None] * rank)], arrays)


@pytest.mark.parametrize("sizes", BATCH_FIRST, ids=" ".join)
@pytest.mark.parametrize("name", ACROSS)
def test_names_of_sizes_decide_that_sequences_are_first(name: str, sizes: tuple[str, str]):
    with pytest.raises(ModelError) as error:
        read(made(name, sizes))
    assert "does not say which axes" not in str(error.value)


@pytest.mark.parametrize("sizes", TIME_FIRST, ids=" ".join)
@pytest.mark.parametrize("name", ACROSS)
def test_names_of_sizes_decide_that_steps_are_first(name: str, sizes: tuple[str, str]):
    model, x = made(name, sizes), random(5, 1, 4)
    (wanted,) = theirs(model, {"x": x})
    found = np.asarray(read(model)(x.swapaxes(0, 1)))
    assert_close(found.swapaxes(0, 1) if found.ndim == 3 else found, wanted, 5, 4)


@pytest.mark.parametrize("sizes", SILENT, ids=" ".join)
@pytest.mark.parametrize("name", ACROSS)
def test_where_nothing_decides_the_user_says_which_axes_are_which(name: str, sizes: tuple[str, str]):
    model, x = made(name, sizes), random(5, 1, 4)
    words = r"the file does not say which axes are the sequences; the model runs if its inputs are "
    with pytest.raises(ModelError, match=words + r"\[steps, sequences, features\]\n  axes= says what"):
        read(model)
    with pytest.raises(ModelError):
        read(model, axes={"x": "NT"})
    (wanted,) = theirs(model, {"x": x})
    found = np.asarray(read(model, axes={"x": "TN"})(x.swapaxes(0, 1)))
    assert_close(found.swapaxes(0, 1) if found.ndim == 3 else found, wanted, 5, 4)


def test_loading_a_file_takes_the_axes_that_its_refusal_advises(tmp_path: Path):
    model, x = made("a running sum", ("p", "q")), random(5, 1, 4)
    path = tmp_path / "sum.onnx"
    path.write_bytes(model.SerializeToString())
    (wanted,) = theirs(model, {"x": x})
    found = np.asarray(sn.load(path, axes={"x": "TN"})(x.swapaxes(0, 1)))
    assert_close(found.swapaxes(0, 1), wanted, 5, 4)
    with pytest.raises(InputError, match="axes= names 'y', and the inputs are x"):
        sn.load(path, axes={"y": "TN"})
    wrongs: list[Any] = [5, ["x"], {"x": 1}]
    for wrong in wrongs:
        with pytest.raises(InputError, match=re.escape(f'{{"x": "NT"}}, not {wrong}')):
            sn.load(path, axes=wrong)
    with pytest.raises(InputError, match="axes= is for the whole graph of a file, and not for recurrent"):
        sn.load(path, axes={"x": "TN"}, recurrent_only=True)
    with pytest.raises(InputError, match=r"axes= is for files of \.onnx and \.pt2 and programs of Paddle"):
        sn.load("m.keras", axes={"x": "TN"})


def test_what_runs_at_each_step_needs_no_names():
    model = model_of([node("Tanh", "x")], [value("x", "p", "q", 4)], [value("y", None, None, 4)])
    x = random(2, 5, 4)
    (wanted,) = theirs(model, {"x": x})
    assert_close(read(model)(x), wanted, 5, 4)


def test_a_recurrence_says_more_than_names():
    """Names are only words of a person: ONNX's GRU runs over the first axis of its input."""
    gru = node("GRU", "x W R", "h", hidden_size=3, linear_before_reset=1)
    arrays = {"W": random(1, 9, 4), "R": random(1, 9, 3, seed=1)}
    model = model_of([gru], [value("x", "batch", "time", 4)], [value("h", *[None] * 4)], arrays)
    x = random(5, 2, 4)
    (wanted,) = theirs(model, {"x": x})
    assert_close(read(model)(x.swapaxes(0, 1)), wanted.transpose(2, 0, 1, 3), 5, 4)


def test_one_name_decides_for_its_axis():
    model = model_of(
        [node("CumSum", "x a")], [value("x", "time", 1, 4)], [value("y", None, 1, 4)], {"a": np.array(0)}
    )
    x = random(5, 1, 4)
    (wanted,) = theirs(model, {"x": x})
    assert_close(read(model)(x.swapaxes(0, 1)), wanted.swapaxes(0, 1), 5, 4)
