"""Nets whose rows are made of totals: a part is bound to a total of another one in each call."""

from typing import Any

import numpy as np
import pytest
from gradcheck import assert_gradient, numbers, segments_of
from interpreted import interpreted
from planned import schedule
from tolerance import assert_close

from stepnet.compiler.grad import vjp
from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, Recur, Type, widened
from stepnet.compiler.net.ends import Ends
from stepnet.compiler.targets import Call, engine_named
from stepnet.ragged import Positions, offsets_of

LENGTHS = (3, 0, 1, 7, 2)


def whitened() -> Net:
    """Every step's values by a matrix that is made of all of them, and a recurrence with it."""
    builder, inside = Builder(), Builder()
    x = builder.input(Type(STEPS, (3,), "float32"), "x")
    h0 = builder.input(Type(ROWS, (3,), "float32"), "h0")
    R = builder.input(Type(CONST, (3, 3), "float32"), "R")
    here, memory = (inside.input(Type(ROWS, (3,), "float32"), name) for name in "xh")
    A, B = (inside.input(Type(CONST, (3, 3), "float32"), name) for name in "AB")
    products = inside.add("add", inside.add("matmul", here, A), inside.add("matmul", memory, B))
    after = inside.add("tanh", products)
    total = builder.add("tanh", builder.add("contract", x, x))
    y = builder.add("matmul", x, total)
    outputs, final = Recur(inside.net([after, after]), 1, 1).add_results(builder, [x, h0, R, total])
    mean = builder.add("expand", builder.add("reduce", final[0], how="mean"), extent=ROWS)
    return builder.net([builder.add("add", y, outputs[0]), builder.add("multiply", mean, h0), *final])


def squared_slopes() -> Net:
    """The sum of the squares of a weight's gradient, whose own gradient has a total in every step."""
    builder = Builder()
    net = vjp(whitened())
    place: list[int] = []
    for node in net.nodes:
        place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
    slope = place[net.results[-1]]
    return builder.net([builder.add("sum", builder.add("multiply", slope, slope), axes=(-2, -1))])


def call_of(net: Net, dtype: str, **options: Any) -> tuple[Call, list[np.ndarray]]:
    segments, ends = segments_of(LENGTHS), Ends.of(net)
    arrays = [
        numbers(net.type_of(one), segments, place).astype(dtype) for place, one in enumerate(net.inputs)
    ]
    kinds = ([arrays[place] for place in places] for places in (ends.sequences, ends.memories, ends.statics))
    sequences, initial, statics = kinds
    call = Call(Positions.end_to_end(offsets_of(LENGTHS)), sequences, initial, statics, **options)
    return call, [arrays[place] for place in ends.parameters]


@pytest.mark.parametrize(
    "make", [whitened, squared_slopes, lambda: vjp(whitened()), lambda: vjp(squared_slopes())]
)
def test_rows_that_are_made_of_totals(make: Any) -> None:
    net = make()
    call, parameters = call_of(net, "float32")
    made = engine_named("llvm").compile(schedule(net)).bind(parameters)(call).arrays
    wide, parameters = call_of(widened(net), "float64")
    right = interpreted(widened(net), parameters, wide).arrays
    assert [one.dtype for one in made] == ["float32"] * len(right)
    for one, other in zip(made, right, strict=True):
        assert_close(one, other, sum(LENGTHS), 64)


@pytest.mark.parametrize("make", [whitened, squared_slopes])
def test_their_gradients(make: Any) -> None:
    assert_gradient(widened(make()), segments_of(LENGTHS))
