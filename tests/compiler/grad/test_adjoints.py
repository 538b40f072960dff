"""The adjoint of every operation against central differences, by itself; and the table of adjoints."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradcheck import assert_gradient, segments_of

from stepnet.compiler.grad import vjp
from stepnet.compiler.grad.adjoints import ADJOINTS
from stepnet.compiler.net import CONST, OPERATIONS, ROWS, STEPS, Builder, Extent, Net, Type

SEGMENTS = segments_of()


def test_every_operation_has_a_row():
    assert set(ADJOINTS) == set(OPERATIONS)


def test_a_row_without_an_adjoint_says_why():
    reasons = [row for row in ADJOINTS.values() if isinstance(row, str)]
    assert all(len(reason) > 20 for reason in reasons)


class Values:
    """A net in the making: inputs of any extent, and operations on them."""

    def __init__(self) -> None:
        self.builder = Builder()

    def x(self, *shape: int, extent: Extent = STEPS, dtype: str = "float64") -> int:
        return self.builder.input(Type(extent, shape, dtype), f"x{len(self.builder.nodes)}")

    def parameter(self, *shape: int) -> int:
        return self.x(*shape, extent=CONST)

    def number(self, value: Any) -> int:
        return self.builder.constant(np.asarray(value))

    def __getattr__(self, operation: str) -> Callable[..., int]:
        def add(*operands: int, **attributes: Any) -> int:
            return self.builder.add(operation.rstrip("_"), *operands, **attributes)

        return add


def positive(v: Values, x: int) -> int:
    """x away from 0."""
    return v.add(x, v.number(2.0))


POINTWISE = (
    "negative",
    "absolute",
    "exp",
    "expm1",
    "sin",
    "cos",
    "tan",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "sigmoid",
    "erf",
)
OF_POSITIVE = ("sqrt", "log", "log1p")
TWO = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder")

CASES: dict[str, Callable[[Values], int]] = {
    **{name: lambda v, name=name: v.builder.add(name, v.x(3)) for name in POINTWISE},
    **{name: lambda v, name=name: v.builder.add(name, positive(v, v.x(3))) for name in OF_POSITIVE},
    **{name: lambda v, name=name: v.builder.add(name, v.x(2, 3), positive(v, v.x(1, 3))) for name in TWO},
    **{
        f"{name} of a parameter": lambda v, name=name: v.builder.add(
            name, v.x(2, 1), positive(v, v.parameter(2, 3))
        )
        for name in TWO
    },
    **{
        f"{name} of parameters": lambda v, name=name: v.builder.add(
            name, v.parameter(2, 1), positive(v, v.parameter(3))
        )
        for name in TWO
    },
    "maximum of a number": lambda v: v.maximum(v.x(3), v.number(0.1)),
    "minimum of a number": lambda v: v.minimum(v.number(0.1), v.x(3)),
    "where": lambda v: v.where(v.less(v.x(1, 3), v.number(0.25)), v.x(2, 3), v.parameter(3)),
    "floor_divide": lambda v: v.floor_divide(v.x(3), v.number(0.3)),
    "sign": lambda v: v.sign(v.x(3)),
    "floor": lambda v: v.multiply(v.floor(v.x(3)), v.x(3)),
    "ceil": lambda v: v.ceil(v.x(3)),
    "rint": lambda v: v.rint(v.x(3)),
    "power": lambda v: v.power(positive(v, v.x(3)), exponent=2.5),
    "power 2": lambda v: v.power(v.x(3), exponent=2.0),
    "power 1": lambda v: v.power(v.x(3), exponent=1.0),
    "power 0": lambda v: v.power(v.x(3), exponent=0.0),
    "cast": lambda v: v.tanh(v.cast(v.x(3), dtype="float64")),
    "an integer beside": lambda v: v.multiply(v.x(3), v.x(3, dtype="int64")),
    "slice": lambda v: v.slice(v.x(4, 5), slices=((1, 3, 1), (0, 5, 1))),
    "slice backwards": lambda v: v.slice(v.x(4, 5), slices=((3, -1, -1), (4, 0, -2))),
    "slice with a stride": lambda v: v.slice(v.x(7), slices=((1, 7, 3),)),
    "slice of nothing": lambda v: v.slice(v.x(7), slices=((3, 3, 1),)),
    "slice of a parameter": lambda v: v.slice(v.parameter(4, 5), slices=((1, 3, 1), (0, 5, 2))),
    "reshape": lambda v: v.reshape(v.x(4, 3), rank=2, shape=(2, 6)),
    "transpose": lambda v: v.transpose(v.x(2, 3, 4), order=(2, 0, 1)),
    "broadcast": lambda v: v.broadcast(v.x(3, 1), rank=2, shape=(2, 3, 4)),
    "take": lambda v: v.take(v.x(2, 5), axis=-1, indices=(3, 0, -1)),
    "take twice": lambda v: v.take(v.x(5, 2), axis=-2, indices=(3, 0, 3, 3, 1, 0)),
    "concatenate": lambda v: v.concatenate(v.x(2, 3), v.x(1, 3), v.x(4, 3), axis=-2),
    "sum": lambda v: v.sum(v.x(2, 3, 4), axes=(-3, -1)),
    "max": lambda v: v.max(v.x(2, 3, 4), axes=(-2,)),
    "min": lambda v: v.min(v.x(2, 3, 4), axes=(-3, -1)),
    "argmax": lambda v: v.multiply(v.argmax(v.x(4), axes=(-1,)), v.x()),
    "cumsum": lambda v: v.cumsum(v.x(4, 3), axis=-2),
    "cumprod": lambda v: v.cumprod(v.x(4), axis=-1),
    "cumprod of an inner axis": lambda v: v.cumprod(v.x(4, 3), axis=-2),
    "cumprod of one": lambda v: v.cumprod(v.x(1), axis=-1),
    "matmul": lambda v: v.matmul(v.x(3), v.parameter(3, 4)),
    "matmul of rows": lambda v: v.matmul(v.x(3, extent=ROWS), v.parameter(3, 4)),
    "matmul of a matrix": lambda v: v.matmul(v.x(2, 5, 3), v.parameter(3, 4)),
    "matmul of parameters": lambda v: v.matmul(v.parameter(2, 3), v.parameter(3, 4)),
    "matmul of a parameter's row": lambda v: v.matmul(v.parameter(3), v.parameter(3, 4)),
    "matmul of integers": lambda v: v.matmul(v.x(3, dtype="int64"), v.parameter(3, 4)),
    "contract": lambda v: v.contract(v.x(3), v.x(4)),
    "contract of nothing": lambda v: v.contract(v.x(0), v.x(4)),
    "contract of matrices": lambda v: v.contract(v.x(2, 3), v.x(2, 4)),
    "gather": lambda v: v.gather(v.parameter(2, 3), v.x(4, dtype="int64")),
    "gather of one": lambda v: v.gather(v.parameter(2), v.x(dtype="int64")),
    "gather of a parameter": lambda v: v.gather(v.parameter(2, 3), v.number(np.array([1, -2, 1]))),
    "scatter": lambda v: v.scatter(v.x(4, dtype="int64"), v.x(4, 3), rows=3),
    "index": lambda v: v.x(3),
    "expand": lambda v: v.tanh(v.expand(v.x(3, extent=ROWS), extent=STEPS)),
    "expand a parameter": lambda v: v.expand(v.parameter(3), extent=ROWS),
    "expand a parameter to steps": lambda v: v.tanh(v.expand(v.parameter(3), extent=STEPS)),
    "expand to the first": lambda v: v.expand(v.x(3, extent=ROWS), extent=STEPS, how="first"),
    "expand to the last": lambda v: v.expand(v.x(3, extent=ROWS), extent=STEPS, how="last"),
    "expand a parameter to the last": lambda v: v.expand(v.parameter(3), extent=ROWS, how="last"),
    "windows": lambda v: v.tanh(v.windows(v.x(3), size=3, dilation=1, before=2)),
    "windows of matrices": lambda v: v.windows(v.x(2, 3), size=2, dilation=2, before=1),
    "overlap": lambda v: v.tanh(v.overlap(v.x(4, 3), size=4, dilation=2, before=3)),
    "scores, mix": lambda v: v.mix(
        v.tanh(v.scores(v.x(2, 3), v.x(2, 3), causal=False)), v.x(2, 4), over="keys"
    ),
    "scores, mix over the queries": lambda v: v.mix(
        v.tanh(v.scores(v.x(3), v.x(3), causal=True)), v.x(2), over="queries"
    ),
    "arrange": lambda v: v.tanh(v.arrange(v.x(3), steps="steps", reverse=True)),
    "extend": lambda v: v.tanh(v.extend(v.x(3), before=3, after=2, how="replicate")),
    **{
        f"reduce {how}": lambda v, how=how: v.reduce(v.x(3), how=how)
        for how in ("sum", "mean", "max", "first", "last")
    },
    **{
        f"reduce {how} of rows": lambda v, how=how: v.reduce(v.x(3, extent=ROWS), how=how)
        for how in ("sum", "mean", "max", "first", "last")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_an_adjoint_agrees_with_central_differences(name: str) -> None:
    values = Values()
    net = values.builder.net([CASES[name](values)])
    assert_gradient(net, SEGMENTS, order=2)
    assert_gradient(net, segments_of([]))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (0, 2), (1, 0)])
def test_the_adjoint_of_reflection_agrees_with_central_differences(before: int, after: int) -> None:
    values = Values()
    made = values.tanh(values.extend(values.x(3, 2), before=before, after=after, how="reflect"))
    assert_gradient(values.builder.net([made]), segments_of((3, 0, 5)), order=2)


def test_every_operation_with_an_adjoint_is_tried():
    tried: set[str] = set()
    for make in CASES.values():
        values = Values()
        make(values)
        tried |= {node.operation for node in values.builder.nodes}
    assert {name for name, row in ADJOINTS.items() if not isinstance(row, str)} <= tried


# ---- parts of one value ------------------------------------------------------------------------------------

APART = {
    "in order": [(0, 2), (2, 5), (5, 6)],
    "in another order": [(5, 6), (0, 2), (2, 5)],
    "with gaps": [(1, 2), (4, 5)],
    "one in the zeros of another": [(0, 1), (5, 6), (2, 4)],
}
TOGETHER = {"they overlap": [(0, 3), (2, 6)], "one is read twice": [(0, 6), (0, 6), (1, 3)]}


def read_in_parts(extent: Extent, cuts: list[tuple[int, int]]) -> Net:
    """A value read in parts, each of which becomes something else."""
    v = Values()
    x = v.x(3, 6, extent=extent)
    parts = [v.slice(x, slices=((0, 3, 1), (start, stop, 1))) for start, stop in cuts]
    return v.builder.net([v.multiply(part, v.number(place + 2.0)) for place, part in enumerate(parts)])


@pytest.mark.parametrize("extent", [STEPS, CONST], ids=str)
@pytest.mark.parametrize("cuts", APART)
def test_cotangents_of_parts_are_put_side_by_side(cuts: str, extent: Extent) -> None:
    net = read_in_parts(extent, APART[cuts])
    assert_gradient(net, SEGMENTS)
    operations = [node.operation for node in vjp(net).nodes]
    assert operations.count("concatenate") == 1
    assert "add" not in operations


@pytest.mark.parametrize("extent", [STEPS, CONST], ids=str)
@pytest.mark.parametrize("cuts", TOGETHER)
def test_cotangents_of_parts_that_overlap_are_added(cuts: str, extent: Extent) -> None:
    net = read_in_parts(extent, TOGETHER[cuts])
    assert_gradient(net, SEGMENTS)
    assert "add" in [node.operation for node in vjp(net).nodes]
