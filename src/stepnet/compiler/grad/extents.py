"""Adjoints of operations that cross extents, and of products with parameters.

    expand    <->  reduce(sum)             a repeated value: the sum over the steps
    expand first | last  <->  reduce first | last
    matmul    ->   matmul, contract        for the value, and for the parameter
    contract  ->   matmul, matmul
    gather    <->  scatter

The cotangent of a parameter is a sum over all steps of all rows: a `Total`. A body cannot compute one, so it
returns the operands of the sum as outputs (`recurrence.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import CONST


@dataclass(frozen=True)
class Total:
    """Sum over all rows that is not built yet.

    operation: "contract" (outer products of two values), "scatter" (a value by an index), or "sum".
    operands: its operands.
    rows: the number of rows in the result of a scatter.
    weights: the encoding of both sides of a contract (`stepnet.compiler.net.encodings`); None for none.
    """

    operation: str
    operands: tuple[Value, ...]
    rows: int = 0
    weights: str | None = None

    @property
    def made(self) -> Value:
        """Builds the sum, in a net that may compute totals."""
        first, *rest = self.operands
        if self.operation == "sum":
            return first.reduced(CONST)
        attributes: dict[str, Any] = {"rows": self.rows} if self.operation == "scatter" else {}
        if self.weights is not None:
            attributes["weights"] = self.weights
        return first.apply(self.operation, *rest, **attributes)

    @property
    def terms(self) -> Value:
        """The terms of the sum: one for each entry of its operands."""
        if self.operation == "sum":
            return self.operands[0]
        left, right = self.operands
        if self.operation == "contract":
            return outer(left, right)
        rest = right.type.shape[left.rank :]
        width = int(np.prod(rest, dtype=np.int64))
        flat = right.reshape(*left.type.shape, width)
        return outer(one_hot(left, self.rows, right), flat).reshape(self.rows, *rest)


Cotangents = tuple[Value | Total | None, ...]


def outer(left: Value, right: Value) -> Value:
    """Sums the outer products of each entry's vectors: [..., k] and [..., n] give [k, n]."""
    product = left.reshape(*left.type.shape, 1) * right.reshape(
        *right.type.shape[:-1], 1, right.type.shape[-1]
    )
    return product.sum(*range(-product.rank, -2))


def one_hot(index: Value, rows: int, like: Value) -> Value:
    """Makes vectors of `rows` numbers that are 1 at the index and 0 elsewhere; negative indices count from
    the end.
    """
    counted = index.apply("remainder", rows)
    numbers = index.constant(np.arange(rows))
    return counted.reshape(*index.type.shape, 1).apply("equal", numbers).cast(like.type.dtype)


# ---- products ----------------------------------------------------------------------------------------------


def matmul(node: Node, d: Value, y: Value, left: Value, right: Value) -> Cotangents:
    """Adjoint of matmul: d @ right.T, and the sum of the outer products of left and d."""
    return d.apply("matmul", right.transposed.cast(d.type.dtype)), of_matrix(left.cast(d.type.dtype), d)


def of_matrix(left: Value, d: Value) -> Value | Total:
    """Returns the cotangent of a matrix that `left` was multiplied with; d: the cotangent of the product."""
    if left.type.extent != CONST:
        return Total("contract", (left, d))

    def flat(value: Value) -> Value:
        """Flattens all feature axes but the last one."""
        width = value.type.shape[-1]
        return value.reshape(value.type.size // max(1, width), width)

    return flat(left).transposed.apply("matmul", flat(d))


def gather(node: Node, d: Value, y: Value, table: Value, index: Value) -> Cotangents:
    """Adjoint of gather: each row of the table gets the sum of the cotangents of its reads."""
    return Total("scatter", (index, d), table.type.shape[0]), None


def scatter(node: Node, d: Value, y: Value, index: Value, values: Value) -> Cotangents:
    """Adjoint of scatter: each value gets the row of the cotangent that it was added to."""
    return None, d.apply("gather", index)


def contract(node: Node, d: Value, y: Value, left: Value, right: Value) -> Cotangents:
    """Adjoint of contract: each side gets the product of the other side with the cotangent, a matrix."""
    return right.apply("matmul", d.transposed), left.apply("matmul", d)


# ---- extents -----------------------------------------------------------------------------------------------


def expand(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Adjoint of expand: the sum over the steps to which the value was expanded, or the cotangent of one
    step.
    """
    how: str = node.attributes.get("how", "sum")
    if x.type.extent == CONST and how == "sum":
        return (Total("sum", (d,)),)
    return (d.reduced(x.type.extent, how),)


def reduce(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Adjoint of reduce: the cotangent at the steps that were reduced: at all, at the maxima, or at a single
    one.
    """
    how: str = node.attributes["how"]
    if how in ("first", "last"):
        return (d.apply("expand", extent=x.type.extent, how=how),)
    if how == "sum":
        return (d.at(x.type.extent),)
    if how == "mean":
        each = d.constant(np.ones((1,) * x.rank)).at(x.type.extent)
        return ((d / counted(each)).at(x.type.extent),)
    those = x.apply("equal", y.at(x.type.extent)).cast(x.type.dtype)
    return ((d / counted(those)).at(x.type.extent) * those,)


def counted(ones: Value) -> Value:
    """Counts the steps of each sequence, at least 1, to divide by. ones: 1 at each step."""
    return ones.apply("reduce", how="sum").apply("maximum", 1)
