"""Gradients of parameters for each sequence: number for number those of the sequence alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.errors import ArgumentError, InputError

Array = np.ndarray
LENGTHS = (4, 1, 0, 7)
ROWS, TIME, WIDTH = len(LENGTHS), 7, 16


def layers() -> sn.Stack:
    both = sn.Bidirectional(rnn_of("lstm", 4, 3), rnn_of("gru", 4, 3, reverse=True))
    return sn.Stack([rnn_of("gru", 3, 4), both])


def mixed() -> sn.Graph:
    """Attention, a convolution, and parameters that act on a sequence as a whole."""
    layer = rnn_of("gru", 3, 4)

    def model(x: Any, p: Any) -> Any:
        h, _ = layer(x)
        h = sn.conv1d(sn.attention(h @ p["q"], h, h, heads=2), p["w"])
        return np.tanh(sn.reduce(h, "mean") @ p["out"] + p["bias"])

    shapes = {"q": (4, 4), "w": (3, 4, 2), "out": (3, 5), "bias": (5,)}
    return sn.Graph(model, {name: uniform(*shape) for name, shape in shapes.items()})


def stopping() -> sn.RNN:
    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x @ p + h)
        return h, h

    return sn.RNN(step, uniform(3, 3), memory=3, until=lambda y, h: h[:, 0] > 0.4)


def ragged() -> sn.Ragged:
    return sn.Ragged.from_list([uniform(length, 3, seed=length) for length in LENGTHS])


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a recurrence": (lambda: rnn_of("lstm", 3, 5), {"sequences": ragged()}),
    "with lengths": (
        lambda: rnn_of("gru", 3, 5, reverse=True),
        {"sequences": uniform(ROWS, TIME, 3), "lengths": np.array(LENGTHS)},
    ),
    "layers": (layers, {"sequences": uniform(ROWS, TIME, 3), "last_only": True}),
    "a graph": (mixed, {"sequences": ragged()}),
    "an early end": (stopping, {"sequences": uniform(ROWS, TIME, 3)}),
}


def part(value: Any, row: int) -> Any:
    """The arguments of one sequence alone."""
    if isinstance(value, sn.Ragged):
        return sn.Ragged.from_list([value[row]])
    return value[row : row + 1] if isinstance(value, np.ndarray) else value


def slopes(model: Any, arguments: dict[str, Any], **options: Any) -> Any:
    """The gradients for the outputs themselves as cotangents: some numbers that differ from row to row."""
    run = sn.vjp(model, **options)
    made, backward = run(**arguments)
    return backward(made[0] if model.gives_final else made)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_the_sequence_alone(case: str) -> None:
    make, arguments = CASES[case]
    model = make()
    found = slopes(model, arguments, per_sequence=True)
    for row in range(ROWS):
        alone = slopes(model, {name: part(value, row) for name, value in arguments.items()})
        for one, right in zip(leaves(found.params), leaves(alone.params), strict=True):
            np.testing.assert_array_equal(one[row], right, strict=True)  # but for the sign of a zero
    together = slopes(model, arguments)
    assert_same_bits((found.inputs, found.initial), (together.inputs, together.initial))
    wide = slopes(model, {**arguments, "engine": "interpret"}, per_sequence=True)
    for one, right in zip(leaves(found.params), leaves(wide.params), strict=True):
        assert_close(one, right, TIME, WIDTH)


def test_later_calls_have_the_same_bits() -> None:
    run, x = sn.vjp(rnn_of("gru", 3, 5), per_sequence=True), uniform(ROWS, TIME, 3)
    known = list[Any]()
    for _ in range(3):
        (outputs, final), backward = run(x)
        known.append(backward(outputs, final))
        assert_same_bits(vars(known[-1]), vars(known[0]))
    assert known[0].params["W"].shape == (ROWS, 3, 15)


def test_they_are_explained() -> None:
    text = sn.vjp(rnn_of("gru", 3, 5), per_sequence=True).explain("params")
    assert text.count("sum over its sequence of the outer products of") == text.count("outer products") > 0


def test_what_they_do_not_go_with() -> None:
    rnn = rnn_of("gru", 3, 5)
    with pytest.raises(InputError, match=r"^checkpoint= adds up the gradients of parameters piece by"):
        sn.vjp(rnn, per_sequence=True)(uniform(2, 3, 3), checkpoint=2)
    with pytest.raises((InputError, ArgumentError), match=r"per_sequence"):
        sn.vjp(rnn, per_sequence="yes")  # type: ignore[arg-type]
