"""The tangent of each operation: one more column of the table of adjoints.

    y = tanh(a)        dy = da * (1 - y * y)          pointwise: the adjoint's row, applied to da
    y = sum(a)         dy = sum(da)                   linear: the operation itself
    y = x @ W          dy = dx @ W + x @ dW           linear in each operand: a sum over the operands

A row is a function of the node, the tangents of the operands (None for one that has none), the result and
the operands. It returns the terms whose sum is the tangent of the result. For an operation without a
derivative it is the reason, as in the table of adjoints.
"""

from collections.abc import Callable, Sequence

from stepnet.compiler.grad import extents, features
from stepnet.compiler.grad.adjoints import ADJOINTS, Adjoint
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.ops import OPERATIONS

Tangents = Sequence[Value | None]
Tangent = Callable[[Node, Tangents, Value, Sequence[Value]], list[Value]]


def pointwise(adjoint: Adjoint) -> Tangent:
    """Makes the tangent of a pointwise operation from its adjoint. Each element of the result depends on the
    same element of an operand alone, so its derivative multiplies tangents as it multiplies cotangents.
    """

    def tangent(node: Node, given: Tangents, y: Value, operands: Sequence[Value]) -> list[Value]:
        """Returns a term for each operand with a tangent: the derivative of the result times the tangent."""
        terms: list[Value] = []
        for place, moved in enumerate(given):
            if moved is not None:
                term = adjoint(node, moved.cast(y.type.computed.dtype), y, *operands)[place]
                terms += [term] if isinstance(term, Value) else []
        return terms

    return tangent


def linear(node: Node, given: Tangents, y: Value, operands: Sequence[Value]) -> list[Value]:
    """Returns the terms of the tangent of an operation that is linear in each operand: the operation with one
    of its operands replaced by the operand's tangent.
    """
    terms: list[Value] = []
    for place, moved in enumerate(given):
        if moved is not None:
            replaced = [*operands]
            replaced[place] = moved
            terms.append(applied(node, replaced))
    return terms


def concatenate(node: Node, given: Tangents, y: Value, operands: Sequence[Value]) -> list[Value]:
    """Returns the tangent of a concatenation: the concatenated tangents, zeros for operands without one."""
    made = [
        operand.cast(operand.type.computed.dtype).zeros(*operand.type.shape) if moved is None else moved
        for moved, operand in zip(given, operands, strict=True)
    ]
    return [applied(node, made)]


def extreme(node: Node, given: Tangents, y: Value, operands: Sequence[Value]) -> list[Value]:
    """Returns the tangent of a max or min over features: the mean of the tangents of the extreme elements."""
    (x,), (moved,), axes = operands, given, node.attributes["axes"]
    if moved is None:
        return []
    those, count = features.extremes(node, x)
    return [(moved * those).sum(*axes) / count]


def cumprod(node: Node, given: Tangents, y: Value, operands: Sequence[Value]) -> list[Value]:
    """Returns the tangent of a cumprod: for element i, the sum over j <= i of the tangent of element j times
    the product of the other elements up to i.
    """
    (x,), (moved,) = operands, given
    if moved is None:
        return []
    factors = features.ProductFactors.of(node, x, y)
    *others, size = factors.before.type.shape
    weighed = (factors.moved(moved) * factors.before).reshape(*others, size, 1)
    return [factors.moved((factors.after * weighed).sum(-2))]


def reduce(node: Node, given: Tangents, y: Value, operands: Sequence[Value]) -> list[Value]:
    """Returns the tangent of a reduction over steps or rows: the same reduction of the operand's tangent; for
    a max the mean of the tangents at the maxima.
    """
    (x,), (moved,) = operands, given
    if moved is None or node.attributes["how"] != "max":
        return linear(node, given, y, operands)
    those, count = extents.maxima(x, y)
    return [(moved * those).apply("reduce", how="sum") / count]


def applied(node: Node, operands: Sequence[Value]) -> Value:
    """Adds a copy of a node on other operands to the net of these; returns its result."""
    builder = operands[0].builder
    return Value(builder, builder.copy(node, [operand.number for operand in operands]))


LINEAR = (
    *("slice", "reshape", "transpose", "broadcast", "take", "sum", "cumsum"),
    *("matmul", "contract", "gather", "scatter", "scores", "mix"),
    *("expand", "windows", "overlap", "arrange", "extend"),
)

TANGENTS: dict[str, Tangent | str] = {
    **{name: row for name, row in ADJOINTS.items() if isinstance(row, str)},
    **{
        name: pointwise(row)
        for name, row in ADJOINTS.items()
        if not isinstance(row, str) and OPERATIONS[name].kind == "pointwise"
    },
    **dict.fromkeys(LINEAR, linear),
    "cast": lambda node, given, y, operands: [moved for moved in given if moved is not None],
    "concatenate": concatenate,
    "max": extreme,
    "min": extreme,
    "cumprod": cumprod,
    "reduce": reduce,
}
