"""Nets whose totals are those of each sequence: against the totals of nets that are given one sequence."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gradcheck import arrays_for, assert_gradient, assert_tangent, segments_of
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.compiler.grad import per_sequence, vjp
from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, Type, interpret
from stepnet.errors import RefusedError

LENGTHS = (3, 1, 0, 4)
SEGMENTS = segments_of(LENGTHS)


def model() -> Net:
    """Layers, with parameters that are combined ahead of their products, and one that is never read."""
    lstm = rnn_of("lstm", 3, 2, dtype="float64")

    def run(x: Any, p: Any) -> Any:
        h, _ = lstm(x @ (p["A"] * p["scale"]) @ p["B"].T, initial="zeros")
        return np.tanh(sn.reduce(h, "sum") @ np.concatenate([p["C"], p["C"]], axis=1) + p["bias"])

    shapes = {"A": (3, 4), "scale": (4,), "B": (3, 4), "C": (2, 2), "bias": (4,), "unread": (2,)}
    params = {name: uniform(*shape, dtype="float64") for name, shape in shapes.items()}
    return sn.Graph(run, params, inputs=sn.Spec(3, "float64")).net


def rows_of(net: Net, arrays: list[Any], row: int) -> list[Any]:
    """The inputs of a net for one of the sequences alone."""
    places = slice(sum(LENGTHS[:row]), sum(LENGTHS[: row + 1]))
    picked = {CONST: slice(None), ROWS: slice(row, row + 1), STEPS: places}
    types = [net.type_of(number) for number in net.inputs]
    return [array[picked[type_.extent]] for array, type_ in zip(arrays, types, strict=True)]


def test_the_gradients_of_each_sequence_are_those_of_the_sequence_alone() -> None:
    net = vjp(model())
    own, arrays = per_sequence(net), arrays_for(net, SEGMENTS)
    made = interpret(own, arrays, SEGMENTS)
    assert all(own.type_of(number).extent != CONST for number in own.results)
    totals = [place for place, number in enumerate(net.results) if net.type_of(number).extent == CONST]
    assert len(totals) == 10  # of the parameters, and of the arrays of the captured layer
    for row, length in enumerate(LENGTHS):
        right = interpret(net, rows_of(net, arrays, row), segments_of([length]))
        for place in totals:
            np.testing.assert_allclose(made[place][row], right[place], 1e-12, 1e-12)


def test_they_have_derivatives_themselves() -> None:
    own = per_sequence(vjp(model()))
    assert_gradient(own, SEGMENTS)
    assert_tangent(own, SEGMENTS)


def test_a_contract_whose_sums_nothing_else_computes() -> None:
    builder = Builder()
    x, y = (builder.input(Type(STEPS, (2, size), "float64"), name) for name, size in (("x", 2), ("y", 3)))
    net = per_sequence(builder.net([builder.add("contract", x, y)]))
    given = arrays_for(net, SEGMENTS)
    places = np.cumsum([0, *LENGTHS])
    right = [np.einsum("tka,tkb->ab", *(one[a:b] for one in given)) for a, b in pairwise(places)]
    np.testing.assert_allclose(interpret(net, given, SEGMENTS)[0], right)


def test_totals_that_are_multiplied() -> None:
    """As in the gradient of a function of a gradient: a total before it, and behind it."""
    builder = Builder()
    x = builder.input(Type(STEPS, (2,), "float64"), "x")
    W = builder.input(Type(CONST, (3, 2), "float64"), "W")
    total = builder.add("contract", x, x)
    products = [builder.add("matmul", one, total) for one in (x, W)]
    net = builder.net([*products, builder.add("matmul", total, builder.add("transpose", W, order=(1, 0)))])
    given = arrays_for(net, SEGMENTS)
    made = interpret(per_sequence(net), given, SEGMENTS)
    for row, (first, last) in enumerate(pairwise(np.cumsum([0, *LENGTHS]))):
        right = interpret(net, rows_of(net, given, row), segments_of([last - first]))
        np.testing.assert_allclose(made[0][first:last], right[0], 1e-12)
        for one, other in zip(made[1:], right[1:], strict=True):
            np.testing.assert_allclose(one[row], other, 1e-12)


def test_what_has_no_gradient_of_each_sequence() -> None:
    indices = sn.Spec((), "int64")
    table = sn.RNN(lambda x, h, p: (h + p[x], h + p[x]), uniform(5, 2), memory=2, inputs=indices)
    with pytest.raises(RefusedError, match=r"^a parameter that is read at indices has no gradient per"):
        per_sequence(vjp(table.net))
    builder = Builder()
    inner = builder.input(Type((*STEPS, "words"), (2,), "float32"), "words")
    nested = builder.net([builder.add("contract", inner, inner)])
    with pytest.raises(RefusedError, match=r"^a model with sequences inside a step has no gradients per"):
        per_sequence(nested)
    x = builder.input(Type(STEPS, (2,), "float32"), "x")
    read = builder.add("gather", builder.add("contract", x, x), builder.add("cast", x, dtype="int64"))
    with pytest.raises(RefusedError, match=r"^gather would take a parameter of its own for each seq"):
        per_sequence(builder.net([read]))
