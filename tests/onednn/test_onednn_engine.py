"""The engine onednn: recurrences of any spelling beside the interpreter, in every form of a call."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets import engine_names
from stepnet.compiler.targets.onednn import MISSING, OneDnnLibrary
from stepnet.compiler.targets.onednn import engine as module
from stepnet.errors import LibraryError, RefusedError

pytestmark = pytest.mark.usefixtures("dnnl")
Array = np.ndarray
INPUTS, HIDDEN = 4, 6


def sequences(*lengths: int, seed: int = 0) -> sn.Ragged:
    random = np.random.default_rng(seed)
    return sn.Ragged.from_list([random.normal(size=(n, INPUTS)).astype("f4") for n in lengths])


def leaves(value: Any) -> list[Array]:
    """All arrays of a result."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    return [value.values if isinstance(value, sn.Ragged) else value]


def same(rnn: Any, *arguments: Any, length: int = 12, **options: Any) -> None:
    """Asserts that both engines give the same."""
    ours = rnn(*arguments, engine="onednn", **options)
    theirs = rnn(*arguments, engine="interpret", **options)
    for made, right in zip(leaves(ours), leaves(theirs), strict=True):
        assert made.dtype == right.dtype
        assert_close(made, right, length, INPUTS + HIDDEN)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", cells.CELLS)
def test_named_cells(name: str, reverse: bool):
    rnn = rnn_of(name, INPUTS, HIDDEN, reverse=reverse)
    for lengths in ((2, 5, 0, 5), (3,), (4, 4), (0,), (1, 7, 2, 11)):
        same(rnn, sequences(*lengths))


def begin(name: str, rows: int) -> Any:
    """A memory to begin with."""
    h, c = np.random.default_rng(5).normal(size=(2, rows, HIDDEN)).astype("f4")
    return {"h": h, "c": c} if name == "lstm" else h


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["gru", "gru_reset_before", "lstm"])
def test_forms_of_calls(name: str, reverse: bool):
    rnn = rnn_of(name, INPUTS, HIDDEN, reverse=reverse)
    x = np.random.default_rng(0).normal(size=(3, 7, INPUTS)).astype("f4")
    for _ in range(3):  # the second call is frozen
        same(rnn, x)
        same(rnn, x, begin(name, 3))
        x = -2 * x
    same(rnn, x, begin(name, 3), lengths=[7, 0, 3])
    same(rnn, x, lengths=[2, 1, 5], last_only=True)
    same(rnn, np.ascontiguousarray(x.transpose(1, 0, 2)), time_major=True)
    same(rnn, np.ascontiguousarray(x.transpose(1, 0, 2)), lengths=[7, 0, 3], time_major=True)
    same(rnn, sequences(2, 0, 4), begin(name, 3), last_only=True)
    same(rnn, sn.Ragged.from_padded(np.zeros((0, 1, INPUTS), "f4")))


def test_stacks_and_both_directions():
    both = sn.Bidirectional(rnn_of("gru", INPUTS, HIDDEN), rnn_of("lstm", INPUTS, HIDDEN, reverse=True))
    same(both, sequences(2, 5, 0, 5))
    stack = sn.Stack([both, rnn_of("lstm", 2 * HIDDEN, HIDDEN), rnn_of("simple_rnn", HIDDEN, HIDDEN)])
    same(stack, sequences(2, 5, 0, 5), length=36)


def hand_written(x: Array, h: Array, p: Any) -> tuple[Array, Array]:
    both = np.concatenate([h, x], axis=-1)
    z = sn.sigmoid(both @ p["Z"] + p["z"])
    r = 1 / (1 + np.exp(-(both @ p["R"])))
    n = np.tanh(np.concatenate([r * h, x], axis=-1) @ p["N"])
    h = (1 - z) * h + z * n
    return h, h


def test_a_hand_written_step():
    random = np.random.default_rng(0)
    params = {name: random.normal(size=(HIDDEN + INPUTS, HIDDEN)).astype("f4") / 3 for name in "ZRN"}
    params["z"] = np.ones(HIDDEN, "f4")
    for reverse in (False, True):
        rnn = sn.RNN(hand_written, params, memory=HIDDEN, inputs=INPUTS, reverse=reverse)
        same(rnn, sequences(2, 5, 0, 5))
    other = rnn.with_params({name: -array for name, array in params.items()})
    same(other, sequences(2, 5))


def test_several_inputs_and_two_memories_the_other_way_round():
    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        c, h = memory["first"], memory["second"]
        i, f, g, o = np.split(x["a"] @ p["A"] + h @ p["R"] + x["b"] @ p["B"], 4, axis=-1)
        c = sn.sigmoid(f + 1) * c + sn.sigmoid(i) * np.tanh(g)
        h = sn.sigmoid(o) * np.tanh(c)
        return {"both": (c, h), "again": h}, {"first": c, "second": h}

    random = np.random.default_rng(0)
    shapes = {"A": (INPUTS, 4 * HIDDEN), "B": (2, 4 * HIDDEN), "R": (HIDDEN, 4 * HIDDEN)}
    params = {name: random.normal(size=shape).astype("f4") / 3 for name, shape in shapes.items()}
    rnn = sn.RNN(step, params, memory={"first": HIDDEN, "second": HIDDEN})
    a = sequences(2, 5, 0, 5)
    b = a.with_values(a.values[:, :2] + 1)
    same(rnn, {"a": a, "b": b})
    same(rnn, {"a": a, "b": b}, last_only=True)


def test_inputs_of_two_axes():
    """A frame of 2 x 2 features, which the step lays flat."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x.reshape(-1, INPUTS) @ p["W"] + h @ p["R"])
        return h, h

    random = np.random.default_rng(0)
    params = {"W": random.normal(size=(INPUTS, HIDDEN)).astype("f4"), "R": np.eye(HIDDEN, dtype="f4") / 2}
    rnn = sn.RNN(step, params, memory=HIDDEN)
    x = sequences(2, 5)
    same(rnn, x.with_values(x.values.reshape(-1, 2, 2)))
    for _ in range(3):
        same(rnn, random.normal(size=(3, 4, 2, 2)).astype("f4"))


def test_inputs_that_enter_as_they_are():
    """As Paddle's operator gru takes them: already multiplied."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        u, r = np.split(sn.sigmoid(x[:, : 2 * HIDDEN] + h @ p["G"]), 2, axis=-1)
        n = np.tanh(x[:, 2 * HIDDEN :] + (r * h) @ p["C"])
        h = u * n + (1 - u) * h
        return h, h

    random = np.random.default_rng(0)
    params = {"G": random.normal(size=(HIDDEN, 2 * HIDDEN)).astype("f4"), "C": np.eye(HIDDEN, dtype="f4")}
    x = sn.Ragged.from_list([random.normal(size=(n, 3 * HIDDEN)).astype("f4") for n in (2, 5)])
    same(sn.RNN(step, params, memory=HIDDEN), x)


def test_a_nested_recurrence_runs_in_parts():
    words = rnn_of("gru", INPUTS, HIDDEN)

    def sentence(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        _, last = words(x, initial="zeros")
        h = np.tanh(last @ p["W"] + h @ p["R"])
        return h, h

    params = {name: np.full((HIDDEN, HIDDEN), 0.1, "f4") for name in "WR"}
    documents = sn.RNN(sentence, params, memory=HIDDEN)
    same(documents, sequences(2, 5, 0, 3, 1).group([2, 0, 3]))


def stepped(step: Callable[..., Any], **options: Any) -> sn.RNN:
    return sn.RNN(step, {"R": np.eye(HIDDEN, dtype="f4")}, memory=HIDDEN, inputs=HIDDEN, **options)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "activation": (lambda x, h, p: (sn.elu(x + h @ p["R"]),) * 2, "oneDNN has no activation elu"),
    "no cell": (lambda x, h, p: (x * h, x * h), "oneDNN has no such cell: "),
    "another output": (
        lambda x, h, p: (2 * np.tanh(x + h @ p["R"]), np.tanh(x + h @ p["R"])),
        "it has other results than its memories after each step",
    ),
}


@pytest.mark.parametrize(("step", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(step: Callable[..., Any], reason: str):
    rnn = stepped(step)
    with pytest.raises(RefusedError) as error:
        rnn(np.ones((1, 2, HIDDEN), "f4"), engine="onednn")
    assert f"onednn: {reason}" in str(error.value)
    rnn(np.ones((1, 2, HIDDEN), "f4"), engine=("onednn", "llvm"))


def test_float64_is_refused():
    rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(INPUTS, HIDDEN, dtype="float64"))
    with pytest.raises(
        RefusedError, match="onednn: oneDNN takes sequences and memories of float32, and these are float64"
    ):
        rnn(np.ones((1, 2, INPUTS)), engine="onednn")


def test_it_is_refused_without_the_library(monkeypatch: pytest.MonkeyPatch):
    def missing() -> OneDnnLibrary:
        raise LibraryError(MISSING)

    monkeypatch.setattr(module, "library", missing)
    rnn = rnn_of("gru", INPUTS, HIDDEN)
    with pytest.raises(RefusedError, match="onednn: oneDNN is not installed: pip install"):
        rnn(sequences(2), engine="onednn")
    rnn(sequences(2), engine=("onednn", "auto"))


def test_explain_says_so():
    text = rnn_of("gru", INPUTS, HIDDEN).explain("onednn")
    assert "engine: onednn\n" in text
    assert "onednn" not in rnn_of("gru", INPUTS, HIDDEN).explain()
    assert list(engine_names()) == ["llvm", "onednn", "interpret", "cuda", "cuda-emulated"]


def test_streams():
    rnn = rnn_of("gru", INPUTS, HIDDEN)
    x = sequences(3).values
    stream = rnn.stream(rows=1, engine="onednn")
    made = np.concatenate([stream.step(frame[None]) for frame in x])
    assert_close(made, rnn(x[None], engine="interpret")[0][0], 3, 10)
