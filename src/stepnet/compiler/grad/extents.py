"""Adjoints of operations that cross extents, and of products with parameters.

    expand    <->  reduce(sum)             a repeated value: the sum over the steps
    expand first | last  <->  reduce first | last
    windows   <->  overlap                 the steps that a convolution reads: the sum of what it reads
    scores    ->   mix, mix                products at pairs of steps: for the queries, and for the keys
    mix       ->   scores, mix             weighted sums over pairs: for the weights, and for the values
    matmul    ->   matmul, contract        for the value, and for the parameter
    contract  ->   matmul, matmul
    gather    <->  scatter

The cotangent of a parameter is a sum over all steps of all rows: a `Total`. A body cannot compute one, so it
returns the operands of the sum as outputs (`recurrence.py`).
"""

from typing import Any

import numpy as np

from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.pairs import is_causal
from stepnet.compiler.net.types import CONST
from stepnet.compiler.net.windows import Window
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Total:
    """Sum over all rows that is not built yet.

    operation: "contract" (outer products of two values), "scatter" (a value by an index), or "sum".
    rows: the number of rows in the result of a scatter.
    weights: the encoding of both sides of a contract (`stepnet.compiler.net.encodings`); None for none.
    """

    operation: str
    operands: tuple[Value, ...]
    rows: int = 0
    weights: str | None = None

    @property
    def built(self) -> Value:
        """The value of the sum over all rows. Its nodes are added to the net that has the operands, which
        must not be the body of a recurrence (the net of its step), as a body cannot compute sums over all
        rows.
        """
        first, *rest = self.operands
        if self.operation == "sum":
            return first.reduced(CONST)
        attributes: dict[str, Any] = {"rows": self.rows} if self.operation == "scatter" else {}
        if self.weights is not None:
            attributes["weights"] = self.weights
        return first.apply(self.operation, *rest, **attributes)

    @property
    def terms(self) -> Value:
        """The terms of a sum over all rows and steps, as a value with one term for each entry of its
        operands: the summed value, the outer product of both, or rows of a table at indices.
        """
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
    """Multiplies each row's vectors [..., k] and [..., n], summed over leading axes: [k, n] for each row."""
    product = left.reshape(*left.type.shape, 1) * right.reshape(
        *right.type.shape[:-1], 1, right.type.shape[-1]
    )
    return product.sum(*range(-product.rank, -2))


def one_hot(index: Value, rows: int, like: Value) -> Value:
    """Makes vectors of `rows` numbers in the dtype of `like`: 1 at the index, even a negative one, else 0."""
    counted = index.apply("remainder", rows)
    numbers = index.constant(np.arange(rows))
    return counted.reshape(*index.type.shape, 1).apply("equal", numbers).cast(like.type.dtype)


# ---- products ----------------------------------------------------------------------------------------------


def matmul(node: Node, d: Value, y: Value, left: Value, right: Value) -> Cotangents:
    """Returns the cotangents of a matmul's operands from d, that of its result: d @ right.T, and for the
    matrix a sum of outer products.
    """
    return d.apply("matmul", right.transposed.cast(d.type.dtype)), of_matrix(left.cast(d.type.dtype), d)


def of_matrix(left: Value, d: Value) -> Value | Total:
    """Returns the cotangent of the matrix in left @ matrix, where d is the cotangent of the product.

    Unless `left` is a constant it is a sum over all rows and steps, returned as a `Total`: a description of
    the sum, whose nodes are added later.
    """
    if left.type.extent != CONST:
        return Total("contract", (left, d))

    def flat(value: Value) -> Value:
        """Flattens all feature axes of a value but the last one."""
        width = value.type.shape[-1]
        return value.reshape(value.type.size // max(1, width), width)

    return flat(left).transposed.apply("matmul", flat(d))


def gather(node: Node, d: Value, y: Value, table: Value, index: Value) -> Cotangents:
    """Returns the cotangents of the operands of `gather`, which reads rows of a table at indices: for each
    row of the table, the sum of the cotangent d of the result y where the row was read; None for the index.
    """
    return Total("scatter", (index, d), table.type.shape[0]), None


def scatter(node: Node, d: Value, y: Value, index: Value, values: Value) -> Cotangents:
    """Returns the cotangents of the operands of `scatter`, which adds values to rows at indices: None for the
    index, and for the values the rows of the cotangent d of the result y at the indices.
    """
    return None, d.apply("gather", index)


def contract(node: Node, d: Value, y: Value, left: Value, right: Value) -> Cotangents:
    """Returns the cotangents of the operands of `contract`, the sum over all rows of outer products of left
    and right, or over the steps of each row: the other operand times the cotangent d of the result y.
    """
    if d.type.extent != CONST:
        matrix = d.at(left.type.extent)
        return times(right, matrix.transposed), times(left, matrix)
    return right.apply("matmul", d.transposed), left.apply("matmul", d)


def times(vectors: Value, matrix: Value) -> Value:
    """Multiplies vectors [..., k] with a matrix [k, n] that is no parameter: each entry has its own."""
    return (vectors.reshape(*vectors.type.shape, 1) * matrix).sum(-2)


# ---- extents -----------------------------------------------------------------------------------------------


def expand(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of the operand x of `expand`, which repeats a value at all steps: d, that of the
    result y, summed over the steps, or at the one step ("first" or "last") that the attribute `how` names.
    """
    how: str = node.attributes.get("how", "sum")
    if x.type.extent == CONST and how == "sum":
        return (Total("sum", (d,)),)
    return (d.reduced(x.type.extent, how),)


def reduce(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of the operand x of `reduce`, which makes one value of all steps, from the
    cotangent d of its result y: d at all steps for a sum, divided for a mean, at the maxima for a max, and at
    one step for "first" and "last".
    """
    how: str = node.attributes["how"]
    if how in ("first", "last"):
        return (d.apply("expand", extent=x.type.extent, how=how),)
    if how == "sum":
        return (d.at(x.type.extent),)
    if how == "mean":
        ones = d.constant(np.ones((1,) * x.rank)).at(x.type.extent)
        return ((d / counted(ones)).at(x.type.extent),)
    those, count = maxima(x, y)
    return ((d / count).at(x.type.extent) * those,)


def maxima(x: Value, y: Value) -> tuple[Value, Value]:
    """Returns which steps of x have its maximum y, as 1 and 0, and their number, at least 1."""
    those = x.apply("equal", y.at(x.type.extent)).cast(x.type.dtype)
    return those, counted(those)


def windows(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of the operand x of `windows`, which copies neighbouring steps to each step: each
    entry of d, the cotangent of the result y, is added to the step that it was read from.
    """
    return (d.apply("overlap", **of_window(node), steps=x.type.extent[-1]),)


def overlap(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of the operand x of overlap: the windows of d, the cotangent of the result y."""
    return (d.apply("windows", **of_window(node), steps=x.type.extent[-1]),)


def scores(node: Node, d: Value, y: Value, query: Value, key: Value) -> Cotangents:
    """Returns the cotangents of the queries and the keys of `scores`, their products at pairs of steps: sums
    over the keys of each query, and over the queries of each key, weighted by d, the cotangent of the result
    y at pairs.
    """
    return d.apply("mix", key, over="keys"), d.apply("mix", query, over="queries")


def mix(node: Node, d: Value, y: Value, weights: Value, values: Value) -> Cotangents:
    """Returns the cotangents of the operands of `mix`, which sums values over the keys of each query, or over
    the queries of each key, with a weight for each pair of steps. For the weights these are the products of
    d, the cotangent of the result y, with the values at each pair; for the values, the weighted sum of d over
    the other of keys and queries.
    """
    causal, over_keys = is_causal(weights.type.extent), node.attributes["over"] == "keys"
    queries, keys = (d, values) if over_keys else (values, d)
    other = "queries" if over_keys else "keys"
    return queries.apply("scores", keys, causal=causal), weights.apply("mix", d, over=other)


def arrange(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of the operand x of `arrange`, which copies the steps of each sequence, in order
    or reversed: d, that of the result y, copied back to the steps of x.
    """
    return (d.apply("arrange", steps=x.type.extent[-1], reverse=node.attributes["reverse"]),)


def of_window(node: Node) -> dict[str, Any]:
    """Returns the attributes of the window of a node, without those that are defaults."""
    return Window.of(node.attributes).attributes


def counted(ones: Value) -> Value:
    """Counts the steps of each sequence where `ones` is 1 (elsewhere it is 0), at least 1, to divide by."""
    return ones.apply("reduce", how="sum").apply("maximum", 1)
