"""Streams of stacks: all layers in one step, with the bits and the errors of the layers one by one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_bits import assert_same_bits
from zoo import normal, rnn_of

import stepnet as sn
from stepnet.errors import InputError

Array = np.ndarray
RANDOM = np.random.default_rng(11)
numbers = partial(normal, seed=RANDOM)


def layer(name: str, inputs: int, dtype: str = "float32") -> sn.RNN:
    return rnn_of(name, inputs, 4, dtype=dtype)


def of_structures() -> sn.Stack:
    """Layers with several outputs, and with memories of equal shapes in another order than they are made."""

    def below(x: Any, memory: Any, params: Any) -> Any:
        a, b = np.tanh(x @ params + memory["b"]), np.tanh(memory["a"] - x @ params)
        return {"left": a, "right": b}, {"b": a, "a": b}

    def above(x: Any, memory: Any, params: Any) -> Any:
        first, second = memory["first"], memory["second"]
        return first + x["right"], {"second": first, "first": second * params + x["left"]}

    return sn.Stack(
        [
            sn.RNN(below, numbers(5, 4), memory={"b": 4, "a": 4}),
            sn.RNN(above, numbers(4), memory={"first": 4, "second": 4}),
        ]
    )


def indexing() -> sn.Stack:
    """Whole numbers between two layers, the second of which reads a table."""

    def below(x: Any, total: Any, params: Any) -> Any:
        return total + x, total + x

    def above(x: Any, h: Any, table: Any) -> Any:
        h = np.tanh(table[x] + h)
        return h, h

    counted = sn.RNN(below, memory=sn.Spec((), "int64"))
    return sn.Stack([counted, sn.RNN(above, numbers(9, 4), memory=4)])


STACKS: dict[str, Callable[[], sn.Stack]] = {
    "gru, lstm": lambda: sn.Stack([layer("gru", 5), layer("lstm", 4)]),
    "a stack in a stack": lambda: sn.Stack(
        [layer("lstm", 5), sn.Stack([layer("gru", 4), layer("gru", 4)]), layer("lstm", 4)]
    ),
    "float64": lambda: sn.Stack([layer("lstm", 5, "float64"), layer("lstm", 4, "float64")]),
    "structures": of_structures,
}


def one_by_one(stack: sn.Stack, **options: Any) -> Any:
    """A stream whose layers take their steps one by one."""
    stream: Any = stack.stream(**options)
    stream.layers = replace(stream.layers, as_one=lambda _: None)
    return stream


@pytest.mark.parametrize("name", STACKS)
def test_layers_as_one_have_the_bits_of_layers_one_by_one(name: str, tmp_path: Path) -> None:
    stack = STACKS[name]()
    dtype = stack.layers[0].params["W"].dtype.name if isinstance(stack.layers[0].params, dict) else "float32"
    streams = stack.stream(rows=3), one_by_one(stack, rows=3)

    def both(change: Callable[[Any], Any]) -> None:
        made = [change(stream) for stream in streams]
        assert_same_bits(*made)

    def step(count: int, rows: Any = None) -> None:
        x = numbers(count, 5, dtype=dtype)
        both(lambda stream: stream.step(x, rows))

    for _ in range(3):
        step(3)
    assert streams[0]._whole is not None
    assert streams[1]._whole is None
    step(2, [2, 0])
    step(3)
    both(lambda stream: stream.add(4))
    step(7)
    assert streams[0]._whole.layers is streams[0]._steps
    both(lambda stream: stream.reset([1, 5]))
    both(lambda stream: stream.reorder([6, 5, 4, 3, 2, 1, 0]))
    step(7)
    both(lambda stream: stream.drop([0, 3]))
    step(5)
    step(1, 4)
    both(lambda stream: stream.state)
    paths = [tmp_path / f"{place}.safetensors" for place in range(2)]
    for stream, path in zip(streams, paths, strict=True):
        stream.save(path)
    both(lambda stream: stream.load(paths[0]))
    other = stack.stream(rows=0)
    other.load(paths[1])
    assert other._whole is not None
    x = numbers(5, 5, dtype=dtype)
    assert_same_bits(other.step(x), streams[1].step(x, rows=[5, 6, 7, 8, 9]))


def test_a_whole_sequence_has_the_bits_of_a_call() -> None:
    stack, x = STACKS["a stack in a stack"](), numbers(3, 8, 5)
    outputs, final = stack(x)
    stream = stack.stream(rows=3)
    made = [stream.step(np.ascontiguousarray(x[:, step])) for step in range(8)]
    assert_same_bits(np.stack(made, axis=1), outputs)
    assert_same_bits(stream.state, final)


def with_statics() -> sn.Stack:
    def step(x: Any, h: Any, params: Any, statics: Any) -> Any:
        return h + x * statics, h + x

    return sn.Stack([sn.RNN(step, memory=5), layer("gru", 5)])


def counting() -> sn.Stack:
    def step(x: Any, h: Any, params: Any, index: Any) -> Any:
        h = h + x * (index[:, None] + 1).astype(x.dtype)
        return h, h

    return sn.Stack([sn.RNN(step, memory=5), layer("gru", 5)])


APART: dict[str, tuple[Callable[[], sn.Stack], dict[str, Any]]] = {
    "the interpreter": (STACKS["gru, lstm"], {"engine": "interpret"}),
    "statics": (with_statics, {"statics": (numbers(2, 5), None)}),
    "counts of steps": (counting, {}),
}


@pytest.mark.parametrize("name", APART)
def test_some_layers_run_one_by_one(name: str) -> None:
    make, options = APART[name]
    stack, x = make(), numbers(2, 4, 5)
    stream = stack.stream(rows=2, **options)
    statics = {"statics": options["statics"]} if "statics" in options else {}
    expected = stack(x, engine=options.get("engine", "auto"), **statics)[0]
    made = [stream.step(np.ascontiguousarray(x[:, step])) for step in range(4)]
    assert stream._whole is None
    np.testing.assert_allclose(np.stack(made, axis=1), expected, rtol=1e-5, atol=1e-6)


def test_layers_in_int8_run_one_by_one() -> None:
    stack, x = STACKS["gru, lstm"](), [numbers(4, 6, 5)]
    quantized = sn.quantize(stack, x, "int8", engine="llvm")
    stream = quantized.stream(rows=4)
    made = [stream.step(np.ascontiguousarray(x[0][:, step])) for step in range(6)]
    assert stream._whole is None
    assert_same_bits(np.stack(made, axis=1), quantized(x[0])[0])


def test_an_error_names_the_layer_and_changes_nothing() -> None:
    stream = indexing().stream(rows=2)
    stream.step(np.array([1, 2]))
    assert stream._whole is not None
    before = stream.state
    for x, message in (
        (np.array([1, 100]), "layer 1: .*outside"),
        (np.array([1.5, 2.5]), "layer 0: input x is float64"),
        (np.array([1, 2, 3]), "layer 0: input x is .3.; the stream has 2 rows"),
    ):
        with pytest.raises(InputError, match=message):
            stream.step(x)
        assert_same_bits(stream.state, before)
    stream.step(np.array([1, 2]))


def test_an_error_names_the_only_layer_of_a_stack() -> None:
    stream = sn.Stack([layer("gru", 5)]).stream(rows=2)
    stream.step(numbers(2, 5))
    with pytest.raises(InputError, match="layer 0: input x is"):
        stream.step(numbers(2, 4))
