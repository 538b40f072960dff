"""The adjoint of each operation: one table, one row per operation.

A row is a function of the node, the cotangent of its result, the result and the operands, and returns the
cotangents of the operands. For an operation without a derivative it is the reason.
"""

from collections.abc import Callable

from stepnet.compiler.grad import extensions, extents, features, pointwise
from stepnet.compiler.grad.extents import Total
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Node

Cotangents = tuple[Value | Total | None, ...]
Adjoint = Callable[..., Cotangents]

STEPPED = "piecewise constant: its derivative is 0"
STOPPED = "its purpose is to stop the cotangent"
EXACT = "its result is a bool or an integer, which has no cotangent"
SOURCE = "it has no operands: the caller reads its cotangent"
RESULT = "handled with its recurrence: see `recurrence.py`"
GRADIENT = "made for a gradient that is run, and not differentiated"
PLANNED = "made by a pass, which runs after gradients are taken"


def without_node(adjoint: Callable[..., tuple[Value, ...] | Value]) -> Adjoint:
    """Makes an entry of `ADJOINTS`, the table of the functions that compute cotangents, from a function that
    does not need the node. Functions in the table take a node, the cotangent of its result, the result and
    the operands, and return a tuple.

    adjoint: takes all of these but the node; returns the cotangents of the operands, or the only one.
    """

    def cotangents(node: Node, *values: Value) -> Cotangents:
        """Returns the cotangents of the operands as a tuple; the node is not used."""
        cotangents = adjoint(*values)
        return cotangents if isinstance(cotangents, tuple) else (cotangents,)

    return cotangents


ADJOINTS: dict[str, Adjoint | str] = {
    **{name: without_node(row) for name, row in pointwise.ONE_OPERAND.items()},
    **{name: without_node(row) for name, row in pointwise.TWO_OPERANDS.items()},
    "where": pointwise.where,
    "power": pointwise.power,
    "cast": pointwise.cast,
    "floor_divide": STEPPED,
    "sign": STEPPED,
    "floor": STEPPED,
    "ceil": STEPPED,
    "rint": STEPPED,
    "detach": STOPPED,
    "equal": EXACT,
    "not_equal": EXACT,
    "less": EXACT,
    "less_equal": EXACT,
    "greater": EXACT,
    "greater_equal": EXACT,
    "logical_and": EXACT,
    "logical_or": EXACT,
    "logical_xor": EXACT,
    "logical_not": EXACT,
    "bitwise_and": EXACT,
    "bitwise_or": EXACT,
    "bitwise_xor": EXACT,
    "invert": EXACT,
    "left_shift": EXACT,
    "right_shift": EXACT,
    "argmax": EXACT,
    "index": EXACT,
    "slice": features.slice_,
    "reshape": features.reshape,
    "transpose": features.transpose,
    "broadcast": features.broadcast,
    "take": features.take,
    "concatenate": features.concatenate,
    "sum": features.sum_,
    "max": features.extreme,
    "min": features.extreme,
    "cumsum": features.cumsum,
    "cumprod": features.cumprod,
    "matmul": extents.matmul,
    "gather": extents.gather,
    "scatter": extents.scatter,
    "expand": extents.expand,
    "reduce": extents.reduce,
    "windows": extents.windows,
    "overlap": extents.overlap,
    "scores": extents.scores,
    "mix": extents.mix,
    "arrange": extents.arrange,
    "extend": extensions.extend,
    "contract": extents.contract,
    "input": SOURCE,
    "constant": SOURCE,
    "result": RESULT,
    "recur": RESULT,
    "products": PLANNED,
    "matrix_gradients": GRADIENT,
}
