"""Steps of a stream as one call of machine code, on the arrays of the caller: the bits of other steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from constants import Constants
from same_bits import assert_same_bits
from sharing import every_step_shared
from zoo import normal, rnn_of, uniform

import stepnet as sn
from stepnet.errors import InputError

Array = np.ndarray
ROWS = 5
pytestmark = pytest.mark.usefixtures("same_threads")


def counting(x: Any, h: Any, p: Any, index: Any) -> tuple[Any, Any]:
    h = 0.9 * h + x @ p
    return {"h": h + index.astype(np.float32)[:, None], "x": x}, h


def spoken(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    h = np.tanh(h + p[x])
    return h, h


MODELS: dict[str, Callable[[], Any]] = {
    "gru": lambda: rnn_of("gru", 4, 8),
    "stack": lambda: sn.Stack([rnn_of("gru", 4, 8), rnn_of("lstm", 8, 8)]),
    "counting": lambda: sn.RNN(counting, normal(4, 4), memory=4),
    "spoken": lambda: sn.RNN(spoken, normal(9, 4), memory=4),
}


def steps(name: str, count: int = 12) -> list[tuple[Array, list[int] | None]]:
    """Inputs of steps, and the rows that take them: all, one, some in another order, in turn."""
    random, made = np.random.default_rng(0), list[tuple[Array, list[int] | None]]()
    for number in range(count):
        rows = (None, [3], [4, 0, 2], None, [1, 3])[number % 5]
        shape = (ROWS if rows is None else len(rows),)
        x = random.integers(0, 9, shape) if name == "spoken" else random.normal(size=(*shape, 4)).astype("f4")
        made.append((x, rows))
    return made


def spread(x: Array) -> Array:
    """The same numbers with gaps: such inputs are copied in, and outputs out, as if threads share a step."""
    return np.repeat(x, 2, axis=-1)[..., ::2]


def taken(model: Any, inputs: list[tuple[Any, Any]], stream: Any = None) -> list[Any]:
    stream, results = stream or model.stream(rows=ROWS), list[Any]()
    for number, (x, rows) in enumerate(inputs):
        results.append(stream.step(x, rows=rows))
        if number % 4 == 3:
            stream.drop(2)
            stream.add()
            stream.reorder([1, 0, 2, 4, 3])
    return [results, stream.state]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_one_call_of_machine_code(name: str):
    sn.set_threads(1)
    model, inputs = MODELS[name](), steps(name)
    stream = model.stream(rows=ROWS)
    results = taken(model, inputs, stream)
    step = stream._steps[0][1] if stream._whole is None else stream._whole.step
    assert not any(len(chosen.slots) for chosen in step.chosen)  # which other steps note
    assert_same_bits(taken(model, [(spread(x), rows) for x, rows in inputs]), results)


@pytest.mark.parametrize("name", ["gru", "spoken"])
def test_arrays_of_any_layout(name: str):
    model, inputs = MODELS[name](), steps(name)
    ways: list[Callable[[Array], Array]] = [np.asarray, spread, lambda x: x.copy("F")]
    others = [(ways[number % 3](x), rows) for number, (x, rows) in enumerate(inputs)]
    assert_same_bits(taken(model, others), taken(model, inputs))


@pytest.mark.parametrize("name", MODELS)
def test_steps_of_rows_in_another_order_between_ones_on_arrays_with_gaps(name: str):
    model, order = MODELS[name](), [4, 0, 2, 1, 3]
    inputs = [x for x, rows in steps(name, 30) if rows is None]
    ways: list[tuple[Callable[[Array], Array], list[int] | None]] = [(spread, None)] * 2
    ways += [(lambda x: np.ascontiguousarray(x[order]), order)] * 2
    stream, other = model.stream(rows=ROWS), model.stream(rows=ROWS)
    for number, x in enumerate(inputs):
        way, rows = ways[number % 4]
        expected = other.step(np.ascontiguousarray(way(x)), rows=rows)
        assert_same_bits(stream.step(way(x), rows=rows), expected)
    assert_same_bits(stream.state, other.state)


def test_outputs_that_machine_code_does_not_allocate(constants: Constants):
    model, inputs = MODELS["gru"](), steps("gru")
    expected = taken(model, inputs)
    constants("stepnet.compiler.targets.cpu.running.new_arrays", MOSTLY_FULL=2 * 8 * 4)
    assert_same_bits(taken(model, inputs), expected)


@pytest.mark.parametrize("name", MODELS)
def test_steps_that_threads_share(name: str):
    model, inputs = MODELS[name](), steps(name)
    sn.set_threads(1)
    expected = taken(model, inputs)
    sn.set_threads(2)
    with every_step_shared():
        assert_same_bits(taken(model, inputs), expected)


def test_outputs_are_arrays_of_their_own():
    stream, x = MODELS["gru"]().stream(rows=ROWS), uniform(ROWS, 4)
    results = [stream.step(x) for _ in range(4)]
    kept = [each.copy() for each in results]
    for each in results:
        stream.step(x)
        each[...] = np.nan
    other = MODELS["gru"]().stream(rows=ROWS)
    assert_same_bits([other.step(x) for _ in range(8)], [*kept, *(stream_of(x, 4))])
    assert_same_bits(stream.state, other.state)


def stream_of(x: Array, first: int) -> list[Array]:
    """The outputs of the steps from one on, of 8 steps with the same inputs."""
    outputs = MODELS["gru"]()(np.repeat(x[:, None], 8, axis=1))[0]
    return [np.ascontiguousarray(outputs[:, step]) for step in range(first, 8)]


def test_an_index_outside_leaves_the_stream_as_it_was():
    stream, other = (MODELS["spoken"]().stream(rows=3) for _ in range(2))
    for x in ([1, 2, 3], [4, 5, 6], [7, 8, 0]):
        stream.step(np.array(x))
        other.step(np.array(x))
    before = stream.state
    for rows, place in ((None, 2), ([1], 0)):
        with pytest.raises(InputError, match=rf"in row {place}"):
            stream.step(np.array([1, 2, 9] if rows is None else [9]), rows=rows)
        assert_same_bits(stream.state, before)
    assert_same_bits(*(each.step(np.array([1]), rows=[1]) for each in (stream, other)))


@pytest.mark.parametrize("count", [64, 65])
def test_rows_that_come_when_all_others_are_gone(count: int):
    model, x = MODELS["gru"](), uniform(count, 4)
    stream, other = model.stream(rows=1), model.stream(rows=count)
    stream.step(x[:1])
    stream.drop(0)
    assert stream.add(count).tolist() == [*range(count)]
    for rows in ([3, 1], [*range(count)], [2]):
        assert_same_bits(*(each.step(x[rows], rows=rows) for each in (stream, other)))
    assert_same_bits(stream.state, other.state)
