"""Loops whose steps the host gives one by one, as products of all sequences that still run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from constants import Constants
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
import stepnet.cuda
from stepnet.compiler.targets.cuda import RECORDED
from stepnet.compiler.values import leaves, transform

Array = np.ndarray
WIDTH, FEATURES = 76, 5
LENGTHS = np.array([3, 0, 5, 1, 5, 2])
X = np.random.default_rng(0).normal(size=(6, 5, FEATURES))
ENGINE = "cuda-emulated"


@pytest.fixture(autouse=True)
def launches_are_free(constants: Constants) -> None:
    """Makes launches cost nothing, so that steps are given one by one that else are too small for that."""
    constants("stepnet.compiler.targets.cuda.loops.stepped", LAUNCH=0.0)
    rates = {"float32": 1e12, "plain": 1e12}
    constants("stepnet.compiler.targets.cuda.stage_costs", FLOPS=rates, FEW=1e12, MANY=1e12)


def cell(name: str) -> Callable[[str, bool], sn.RNN]:
    """A function that makes a recurrence of a cell."""
    return lambda dtype, reverse: rnn_of(name, FEATURES, WIDTH, dtype=dtype, reverse=reverse)


def mixed(dtype: str, reverse: bool) -> sn.RNN:
    """A step whose memories wait, swap and are outputs, with statics, masks and reductions."""

    def step(x: Any, m: Any, p: Any, statics: Any) -> Any:
        h = np.tanh(m["h"] @ p + x.sum(axis=-1, keepdims=True) * statics)
        h = h - h.mean(axis=-1, keepdims=True)
        new = {"h": h, "a": m["b"], "b": m["a"], "x": x, "n": m["n"] + (x[:, 0] > 0)}
        return (m["a"], x, statics, h[:, :3], m["n"]), new

    floats = {"h": WIDTH, "a": WIDTH, "b": 3, "x": FEATURES} | {"b": WIDTH}
    memory: Any = {name: sn.Spec((size,), dtype) for name, size in floats.items()}
    params = np.random.default_rng(1).normal(0, 0.1, (WIDTH, WIDTH)).astype(dtype)
    return sn.RNN(
        step,
        params,
        memory=memory | {"n": sn.Spec((), "int64")},
        inputs=sn.Spec(FEATURES, dtype),
        statics=sn.Spec(WIDTH, dtype),
        reverse=reverse,
    )


MODELS = {"gru": cell("gru"), "lstm": cell("lstm"), "minimal": cell("minimal_gated_unit"), "mixed": mixed}


def given(name: str, rnn: sn.RNN, rows: slice, dtype: str) -> dict[str, Any]:
    """The arguments of a call for some of the sequences."""
    chance = np.random.default_rng(2)
    made: dict[str, Any] = {"sequences": X[rows].astype(dtype), "lengths": LENGTHS[rows]}
    memories = rnn(made["sequences"], statics=statics_of(name, rows, dtype), engine="interpret")[1]

    def filled(leaf: Array) -> Array:
        """Numbers for a memory."""
        return (
            leaf if leaf.dtype.kind == "i" else chance.normal(size=(6, *leaf.shape[1:]))[rows].astype(dtype)
        )

    made["initial"] = transform(filled, memories)
    return made | ({"statics": statics_of(name, rows, dtype)} if name == "mixed" else {})


def statics_of(name: str, rows: slice, dtype: str) -> Any:
    """The statics of a call."""
    numbers = np.random.default_rng(3).normal(size=(6, WIDTH))
    return numbers[rows].astype(dtype) if name == "mixed" else None


def results(rnn: sn.RNN, call: dict[str, Any], engine: str) -> list[Array]:
    """The outputs and last memories."""
    options = {name: value for name, value in call.items() if name != "sequences"}
    return [np.asarray(leaf) for leaf in leaves(rnn(call["sequences"], **options, engine=engine))]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "reverse"), [("float32", True), ("float64", False)])
def test_steps_give_what_the_interpreter_gives(name: str, dtype: str, reverse: bool) -> None:
    rnn, exact = MODELS[name](dtype, reverse), MODELS[name]("float64", reverse)
    assert "step by step, by products of all sequences that still run" in " ".join(
        rnn.explain(ENGINE, rows=6, steps=5).split()
    )
    whole = slice(0, 6)
    call = given(name, rnn, whole, dtype)
    right = results(exact, {n: in_float64(value) for n, value in call.items()}, "interpret")
    found = results(rnn, call, ENGINE)
    for one, other in zip(found, right, strict=True):
        assert_close(one, other, 5, 4 * WIDTH, dtype)
    again = results(rnn, call, ENGINE)  # as recorded
    assert [each.tobytes() for each in again] == [each.tobytes() for each in found]
    for row in (0, 4):
        alone = results(rnn, {n: rows_of(value, row) for n, value in call.items()}, ENGINE)
        for one, both in zip(alone, found, strict=True):
            assert one[0].tobytes() == both[row].tobytes()


def in_float64(value: Any) -> Any:
    """Floats as float64."""
    return transform(lambda leaf: leaf.astype("float64") if leaf.dtype.kind == "f" else leaf, value)


def rows_of(value: Any, row: int) -> Any:
    """The part of a row."""
    return transform(lambda leaf: leaf[row : row + 1], value)


def test_gradients_of_steps() -> None:
    made = list[list[Array]]()
    for engine in (ENGINE, "interpret"):
        rnn = MODELS["gru"]("float64", False)
        (outputs, final), backward = sn.vjp(rnn)(X, lengths=LENGTHS, engine=engine)
        found = backward(outputs, final)
        made.append([np.asarray(each) for each in leaves((found.params, found.inputs))])
    for one, other in zip(*made, strict=True):
        assert_close(one, other, 16, 4 * WIDTH)


def test_both_directions_of_steps(codes: list[Any]) -> None:
    """Neither is resident, and each takes all of the GPU; and their gradients."""
    cells = [rnn_of("minimal_gated_unit", FEATURES, WIDTH, reverse=reverse) for reverse in (False, True)]
    model = sn.Bidirectional(cells[0], cells[1])
    x, found = X[:2, :3].astype("f4"), list[list[Array]]()
    for engine in (ENGINE, "interpret"):
        outputs, backward = sn.vjp(model)(x, lengths=[3, 1], engine=engine)
        gradients = backward(*outputs)
        found.append([np.asarray(each) for each in leaves((outputs, gradients.params, gradients.inputs))])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 16, 4 * WIDTH)
    assert not [code.name for code in codes if code.name.startswith("loop")]


def test_no_sequence_has_a_step() -> None:
    rnn = MODELS["gru"]("float32", False)
    initial = np.ones((6, WIDTH), "f4")
    outputs, final = rnn(X.astype("f4"), initial=initial, lengths=np.zeros(6, int), engine=ENGINE)
    assert not outputs.any()
    np.testing.assert_array_equal(final, initial)
    outputs, final = rnn(X[:0].astype("f4"), engine=ENGINE)
    assert (outputs.shape, final.shape) == ((0, 5, WIDTH), (0, WIDTH))


def test_a_call_is_recorded_whatever_its_number_of_steps_and_takes_no_more_memory() -> None:
    rnn, arenas = MODELS["gru"]("float32", False), list[int]()
    for steps in (4, 40):
        RECORDED.clear()
        for _ in range(3):
            rnn(np.zeros((2, steps, FEATURES), "f4"), engine=ENGINE)
        *_, call = RECORDED.values()
        assert not isinstance(call, str)
        assert len(call.notes.work) >= 4 * steps
        arenas.append(call.recording.arena - 2 * steps * (7 * WIDTH + FEATURES) * 4)
    assert arenas[1] <= arenas[0] + 4096  # values per step aside


def test_ptx_has_the_kernels_of_a_step() -> None:
    params = MODELS["minimal"]("float32", False).params
    rnn = sn.RNN(sn.cells.CELLS["minimal_gated_unit"].step, params, memory=WIDTH, inputs=FEATURES)
    assert [name for name in stepnet.cuda.ptx(rnn) if "step" in name] == ["part 0: step 0", "part 0: step 1"]


def test_a_step_that_reads_its_number_runs_in_one_launch() -> None:
    def step(x: Any, h: Any, p: Any, index: Any) -> Any:
        h = np.tanh(h @ p + x * index.astype("float32")[:, None])
        return h, h

    rnn = sn.RNN(step, np.zeros((WIDTH, WIDTH), "f4"), memory=WIDTH, inputs=WIDTH)
    assert "step by step" not in rnn.explain(ENGINE, rows=16, steps=5)
