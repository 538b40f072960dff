"""Adjoints of what crosses extents, and of products with parameters.

    expand    <->  reduce(sum)             a value at every step: its cotangent is their sum
    expand first | last  <->  reduce first | last
    matmul    ->   matmul, contract        of the value, and of the parameter
    contract  ->   matmul, matmul
    gather    <->  scatter

The cotangent of a parameter is a sum over all there is: a `Total`. A body has none of its own, so what stands
in one hands the operands out (`recurrence.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.grad.value import Value
from stepnet.net.ir import Node
from stepnet.net.types import CONST


@dataclass(frozen=True)
class Total:
    """A sum over all rows to come: a `contract` of two values, a `scatter` of one by an index, or a `sum`.

    rows: how many a scatter gives. weights: the encoding of both sides of a contract
    (`stepnet.net.encodings`); None for none.
    """

    operation: str
    operands: tuple[Value, ...]
    rows: int = 0
    weights: str | None = None

    @property
    def made(self) -> Value:
        """The sum itself, in a net that may have one."""
        first, *rest = self.operands
        if self.operation == "sum":
            return first.reduced(CONST)
        attributes: dict[str, Any] = {"rows": self.rows} if self.operation == "scatter" else {}
        if self.weights is not None:
            attributes["weights"] = self.weights
        return first.apply(self.operation, *rest, **attributes)

    @property
    def terms(self) -> Value:
        """What it is the sum of: one term for each entry of its operands."""
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
    """The outer products of each entry's vectors, summed: [..., k] and [..., n] give [k, n]."""
    product = left.reshape(*left.type.shape, 1) * right.reshape(
        *right.type.shape[:-1], 1, right.type.shape[-1]
    )
    return product.sum(*range(-product.rank, -2))


def one_hot(index: Value, rows: int, like: Value) -> Value:
    """Ones at the indices, counted from the end where they are negative."""
    counted = index.apply("remainder", rows)
    numbers = index.constant(np.arange(rows))
    return counted.reshape(*index.type.shape, 1).apply("equal", numbers).cast(like.type.dtype)


# ---- products ----------------------------------------------------------------------------------------------


def matmul(node: Node, d: Value, y: Value, left: Value, right: Value) -> Cotangents:
    """d @ right.T, and the sum of the outer products of left and d."""
    return d.apply("matmul", right.transposed.cast(d.type.dtype)), of_matrix(left.cast(d.type.dtype), d)


def of_matrix(left: Value, d: Value) -> Value | Total:
    """The cotangent of a matrix that `left` was multiplied with."""
    if left.type.extent != CONST:
        return Total("contract", (left, d))

    def flat(value: Value) -> Value:
        width = value.type.shape[-1]
        return value.reshape(value.type.size // max(1, width), width)

    return flat(left).transposed.apply("matmul", flat(d))


def gather(node: Node, d: Value, y: Value, table: Value, index: Value) -> Cotangents:
    """To each row of the table the sum of what was read of it."""
    return Total("scatter", (index, d), table.type.shape[0]), None


def scatter(node: Node, d: Value, y: Value, index: Value, values: Value) -> Cotangents:
    """To each value the row that it went to."""
    return None, d.apply("gather", index)


def contract(node: Node, d: Value, y: Value, left: Value, right: Value) -> Cotangents:
    """Each vector of the other with the matrix that the cotangent is."""
    return right.apply("matmul", d.transposed), left.apply("matmul", d)


# ---- extents -----------------------------------------------------------------------------------------------


def expand(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """The sum over where it was repeated; of one step that step's."""
    how: str = node.attributes.get("how", "sum")
    if x.type.extent == CONST and how == "sum":
        return (Total("sum", (d,)),)
    return (d.reduced(x.type.extent, how),)


def reduce(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """To the steps that it was made of: to all the same, to those that are the largest, or to one."""
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
    """How many there are over the steps of each sequence; 1 for an empty one, which has none to share."""
    return ones.apply("reduce", how="sum").apply("maximum", 1)
