"""Known cells are recognised however they are written, and their arrays make the same function."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close

import stepnet as sn
from stepnet.cells import CELLS, rnn
from stepnet.compiler.plan.recognise import Recognised, check, recognise
from stepnet.layout.equations import ACTIVATIONS
from tests.compiler.plan.recognise.cell_spellings import (
    BIASES,
    CHOICES,
    MATRICES,
    SIGMOIDS,
    TANHS,
    H,
    Spelling,
    X,
    both,
)

GRUS: list[dict[str, Any]] = [
    {"cell": "gru", "reset": reset, "update": update}
    for reset in ("after", "before")
    for update in ("keep", "write")
]
ALL: list[dict[str, Any]] = [{"cell": "rnn"}, *GRUS, {"cell": "lstm"}]
SPELLINGS = [
    *(Spelling(**cell, matrices=matrices) for cell in ALL for matrices in MATRICES),
    *(Spelling(**cell, bias=bias) for cell in ALL for bias in BIASES),
    *(Spelling(**cell, sigmoid=sigmoid) for cell in ALL[1:] for sigmoid in SIGMOIDS),
    *(Spelling(**cell, tanh=tanh) for cell in ALL for tanh in TANHS),
    *(
        Spelling(**cell, choice=choice, flipped=flip)
        for cell in GRUS
        for choice in CHOICES
        for flip in (False, True)
    ),
    *(Spelling(**cell, candidate=name) for cell in ALL for name in ACTIVATIONS),
    *(Spelling(**cell, gate=name) for cell in ALL[1:] for name in ACTIVATIONS if name != "linear"),
    *(Spelling("lstm", output=name) for name in ACTIVATIONS),
    *(
        Spelling("lstm", memory=memory, peephole=p, flipped=f)
        for memory in ("hc", "ch")
        for p in (False, True)
        for f in (False, True)
    ),
    *(Spelling("lstm", coupled=True, choice=choice, peephole=p) for choice in CHOICES for p in (False, True)),
    *(Spelling("lstm", coupled=True, gate=gate) for gate in ("hard_sigmoid", "hard_sigmoid_fifth")),
    *(Spelling("lstm", projected=True, matrices=matrices) for matrices in MATRICES),
    *(Spelling(**cell, clip=0.5) for cell in ALL),
    Spelling("lstm", cell_clip=0.25),
    Spelling("lstm", cell_clip=0.25, clip=0.5, peephole=True, projected=True),
]


def assert_recognised(spelling: Spelling, dtype: Any = np.float64) -> Recognised:
    """Asserts that a spelling is recognised as its cell, with the arrays that make the same function."""
    recur = spelling.rnn(dtype).program.traced.recur()
    known = recognise(recur)
    assert isinstance(known, Recognised), str(known)
    assert known.cell == spelling.cell
    assert {name: getattr(known.semantics, name) for name in spelling.semantics} == spelling.semantics
    assert known.outputs == ("h",)
    assert (known.inputs, known.hidden) == (X, H)
    for ours, theirs in zip(*both(recur, known), strict=True):
        assert_close(theirs, ours, length=3, width=X + H, dtype=dtype)
    check(known)
    return known


@pytest.mark.long(every=4)
@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
def test_a_spelling_is_recognised(spelling: Spelling) -> None:
    assert_recognised(spelling)


@pytest.mark.parametrize("spelling", SPELLINGS[::7], ids=str)
def test_a_spelling_in_float32_is_recognised(spelling: Spelling) -> None:
    known = assert_recognised(spelling, np.float32)
    assert {known.weights.type_of(result).dtype for result in known.weights.results} == {"float32"}


@st.composite
def drawn(draw: Any) -> Spelling:
    """A spelling that differs in everything."""
    fields: dict[str, Any] = {
        name: draw(st.sampled_from(list(ways)))
        for name, ways in (
            ("cell", ("rnn", "gru", "lstm")),
            ("reset", ("after", "before")),
            ("update", ("keep", "write")),
            ("matrices", MATRICES),
            ("bias", BIASES),
            ("sigmoid", SIGMOIDS),
            ("tanh", TANHS),
            ("choice", CHOICES),
            ("flipped", (False, True)),
            ("memory", ("hc", "ch")),
            ("peephole", (False, True)),
            ("coupled", (False, True)),
            ("projected", (False, True)),
        )
    }
    only = {"peephole", "coupled", "projected"}
    if fields["cell"] != "lstm":
        fields = {name: value for name, value in fields.items() if name not in only}
    return Spelling(**fields)


@pytest.mark.long(examples=25)
@settings(max_examples=100)
@given(drawn())
def test_any_mixture_of_spellings_is_recognised(spelling: Spelling) -> None:
    assert_recognised(spelling)


@pytest.mark.parametrize("name", CELLS)
def test_named_cells_are_recognised(name: str) -> None:
    sizes = (3, 5, 2) if name == "lstm_projection" else (3, 5)
    recur = rnn(name, CELLS[name].parameters(*sizes)).program.traced.recur()
    known = recognise(recur)
    assert isinstance(known, Recognised), str(known)
    shapes = {
        array: known.weights.type_of(n).shape
        for array, n in zip(known.names, known.weights.results, strict=True)
    }
    # Two biases that are added are one bias.
    assert shapes == {
        array: shape for array, shape in CELLS[name].shapes(*sizes).items() if array != "d" or name == "gru"
    }
    for ours, theirs in zip(*both(recur, known), strict=True):
        assert_close(theirs, ours, length=3, width=8)
    check(known)


# ---- what enters -------------------------------------------------------------------------------------------


def test_several_sequences_are_one_input() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x["b"] @ p["B"] + h @ p["R"] + np.concatenate([x["a"], h], axis=-1) @ p["A"])
        return h, h

    params = {"A": np.ones((2 + H, H)), "B": np.ones((3, H)), "R": np.ones((H, H))}
    net = sn.RNN(step, params, memory=H, inputs={"a": 2, "unread": 7, "b": 3}).net
    known = recognise(net)
    assert isinstance(known, Recognised)
    assert known.sequences == (0, 2)
    assert known.inputs == 5
    ours, theirs = both(known.recur, known)
    assert_close(theirs[0], ours[0], length=3, width=9)


def test_no_input_is_a_matrix_without_rows() -> None:
    net = sn.RNN(lambda x, h, p: (h, np.tanh(h @ p)), np.ones((H, H)), memory=H, inputs=2).net
    known = recognise(net)
    assert isinstance(known, Recognised)
    assert known.sequences == ()
    assert known.inputs == 0
    assert known.outputs == (None,)
    assert known.weights.type_of(known.weights.results[0]).shape == (0, H)


def test_an_input_that_was_multiplied_before_has_no_matrix() -> None:
    def step(x: Any, h: Any, R: Any) -> Any:
        z, r = (sn.sigmoid(x[:, k * H : (k + 1) * H] + h @ R[:, k * H : (k + 1) * H]) for k in (0, 1))
        n = np.tanh(x[:, 2 * H :] + (r * h) @ R[:, 2 * H :])
        h = z * n + (1 - z) * h
        return h, h

    recur = sn.RNN(
        step, np.ones((H, 3 * H)), memory=H, inputs=sn.Spec(3 * H, "float64")
    ).program.traced.recur()
    known = recognise(recur)
    assert isinstance(known, Recognised)
    assert known.names == ("R",)
    assert known.projected == (*range(H, 2 * H), *range(H), *range(2 * H, 3 * H))  # r z n
    ours, theirs = both(recur, known)
    assert_close(theirs[0], ours[0], length=3, width=3 * H)
    check(known)


def test_outputs_that_are_no_memory_do_not_matter() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x @ p["W"] + h @ p["R"])
        return {"a": np.sin(h) @ p["W"].T, "b": h}, h

    params = {"W": np.ones((2, H)), "R": np.ones((H, H))}
    known = recognise(sn.RNN(step, params, memory=H, inputs=2).net)
    assert isinstance(known, Recognised)
    assert known.outputs == (None, "h")
