"""Streams on the emulated device: as whole calls, few launches, copies of inputs and outputs alone."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda import DeviceArray, EmulatedDevice
from stepnet.compiler.values import leaves
from stepnet.errors import IndexOutsideError, InputError

Array = np.ndarray
ROWS, STEPS, FEATURES, UNITS = 4, 5, 3, 16
ENGINE = "cuda-emulated"
X = np.random.default_rng(0).normal(size=(ROWS, STEPS, FEATURES)).astype("f4")


@cache
def cell(name: str, inputs: int) -> sn.RNN:
    return sn.cells.rnn(name, sn.cells.CELLS[name].parameters(inputs=inputs, hidden=UNITS))


@cache
def counting() -> sn.RNN:
    """A recurrence that reads the number of the step, a static, and a table."""
    table = np.random.default_rng(1).normal(size=(9, UNITS)).astype("f4")

    def step(x: Any, h: Any, p: Any, index: Any, statics: Any) -> Any:
        h = np.tanh(h + p[x] * statics + index.astype(np.float32)[:, None] * 0.1)
        return {"h": h, "last": h[:, 0]}, h

    return sn.RNN(step, table, memory=UNITS)


def models() -> dict[str, Any]:
    gru, lstm = cell("gru", FEATURES), cell("lstm", UNITS)
    graph = sn.Graph(lambda x, _: sn.softmax(lstm(gru(x)[0])[0]), inputs=FEATURES)
    return {"gru": gru, "stack": sn.Stack([gru, lstm]), "graph": graph}


@pytest.mark.parametrize("name", ["gru", "stack", "graph"])
def test_a_step_is_one_loop_and_the_products_ahead_of_it(name: str, done: list[str]) -> None:
    model = models()[name]
    stream, outputs = model.stream(rows=ROWS, engine=ENGINE), list[Array]()
    for time in range(STEPS):
        done.clear()
        outputs.append(stream.step(X[:, time]))
    ahead, behind = ["stage 4", "loop"], ["stage 4"]
    launched = {"gru": ahead, "stack": ahead * 2, "graph": [*ahead, *behind]}
    assert done == ["write", *launched[name], "read"]
    whole = leaves(model(X, engine=ENGINE))[0]
    if name == "graph":  # one recurrence in a stream, and two in a call
        assert_close(np.stack(outputs, axis=1), whole, STEPS, 2 * UNITS)
    else:
        np.testing.assert_array_equal(np.stack(outputs, axis=1), whole)
        theirs = model.stream(rows=ROWS, engine="interpret")
        for time in range(STEPS):
            theirs.step(X[:, time])
        for ours, exact in zip(leaves(stream.state), leaves(theirs.state), strict=True):
            assert_close(ours, exact, STEPS, 2 * UNITS)


def test_arrays_of_the_device_are_taken_and_given(done: list[str]) -> None:
    engine: Any = engine_named(ENGINE)
    for name, model in models().items():
        stream, plain = (model.stream(rows=ROWS, engine=ENGINE) for _ in range(2))
        for time in range(3):
            given = engine.memory.put(X[:, time])
            done.clear()
            outputs = stream.step(given)
            if time and name != "graph":
                assert set(done) == {"stage 4", "loop"}
            assert isinstance(outputs, DeviceArray)
            np.testing.assert_array_equal(outputs.numpy(), plain.step(X[:, time]))


def changes(stream: Any, x: Array) -> Iterator[Any]:
    """Steps of rows that move, wait, come and go; yields outputs and memories."""
    yield stream.step(x[:, 0])
    stream.reorder([1, 0, 3, 3])
    yield stream.step(x[:2, 1], rows=[2, 0])
    yield stream.step(x[:, 2])
    stream.add(2)
    yield stream.step(np.concatenate([x[:, 3], x[:2, 0]]))
    stream.drop([0, 2])
    yield stream.step(x[:, 4])
    stream.reset(rows=1)
    yield stream.step(x[:, 1])
    yield stream.state


@pytest.mark.parametrize("name", ["gru", "stack"])
def test_rows_move_wait_come_and_go(name: str) -> None:
    model = models()[name]
    pairs = zip(
        changes(model.stream(rows=ROWS, engine=ENGINE), X),
        changes(model.stream(rows=ROWS, engine="interpret"), X),
        strict=True,
    )
    for ours, theirs in pairs:
        for a, b in zip(leaves(ours), leaves(theirs), strict=True):
            assert_close(a, b, STEPS, 2 * UNITS)


def test_statics_counts_of_steps_and_tables() -> None:
    model, x = counting(), np.array([[0, 8, 3], [1, 2, 7]])
    given = np.random.default_rng(2).normal(size=(2, 2, UNITS)).astype("f4")
    streams = [model.stream(2, statics=given[0], begun=[0, 5], engine=name) for name in (ENGINE, "interpret")]
    for time in range(3):
        ours, theirs = (stream.step(x[:, time]) for stream in streams)
        for a, b in zip(ours.values(), theirs.values(), strict=True):
            assert_close(a, b, 3, 1)
        for stream in streams:
            stream.reset(rows=[1], statics=given[1, :1])
    before = streams[0].state
    with pytest.raises(IndexOutsideError, match="9"):
        streams[0].step(np.array([1, 9]))
    np.testing.assert_array_equal(streams[0].state, before)


def test_inputs_that_do_not_fit_are_named() -> None:
    engine: Any = engine_named(ENGINE)
    stream = cell("gru", FEATURES).stream(rows=2, engine=ENGINE)
    stream.step(X[:2, 0])
    before = stream.state
    wrong = {
        r"input x is \[3, 3\]; the stream has 2 rows": X[:3, 0],
        r"input x is float32\[2, 5\]; those before were float32\[2, 3\]": np.zeros((2, 5), "f4"),
        r"input x is float64\[2, 3\]; those before were float32": np.zeros((2, 3)),
        r"a step's inputs are \{x: array\}; those before were array": {"x": X[:2, 0]},
    }
    for message, given in wrong.items():
        for value in (given, engine.memory.put(given) if isinstance(given, np.ndarray) else given):
            with pytest.raises(InputError, match=message):
                stream.step(value)
    other = EmulatedDevice()
    with pytest.raises(InputError, match="input x is on another device than the stream"):
        stream.step(DeviceArray(other, other.allocate(24), (2, 3), "float32", None))
    np.testing.assert_array_equal(stream.state, before)


def test_memories_stay_between_chunks(done: list[str]) -> None:
    gru, x = cell("gru", FEATURES), np.concatenate([X, X], axis=1)
    plain = sn.Graph(lambda frames, _: gru(frames)[0], inputs=FEATURES)
    weights = np.random.default_rng(1).normal(size=(UNITS, FEATURES, 3)).astype("f4")
    waiting = sn.Graph(
        lambda frames, p: sn.softmax(gru(frames)[0] + sn.conv1d(frames, p, padding="same")), weights
    )
    for model in (plain, waiting):
        ours, theirs = (model.stream_chunks(rows=ROWS, engine=name) for name in (ENGINE, "llvm"))
        for begin in (0, 2, 4):
            done.clear()
            part, other = (stream.chunk(x[:, begin : begin + 2]) for stream in (ours, theirs))
            assert_close(part, other, 10, 2 * UNITS)
        more = model is waiting
        assert done == ["write", *["write"] * more, "stage 8", "loop", *["stage 8"] * more, "read"]
        for stream in (ours, theirs):
            stream.reorder([1, 0, 3, 3])
        part, other = (stream.chunk(x[:, 6:8]) for stream in (ours, theirs))
        assert_close(part, other, 10, 2 * UNITS)
        for stream in (ours, theirs):
            stream.drop([0])
            stream.add(1)
        for last in (False, True):
            steps = sn.Ragged.from_padded(x[:, 8:9])
            part, other = (stream.chunk(steps, last=last) for stream in (ours, theirs))
            np.testing.assert_array_equal(part.lengths, other.lengths)
            assert_close(part.values, other.values, 10, 2 * UNITS)
