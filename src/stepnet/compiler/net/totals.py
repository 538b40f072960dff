"""Totals: sums and other reductions over all rows.

Every sum has a fixed order, which depends only on the number of rows. So results have the same bits for any
number of threads. A library's product does not guarantee this.
"""

import numpy as np

from stepnet.compiler.net import meanings
from stepnet.compiler.net.encodings import rounded
from stepnet.compiler.net.interpreter import within
from stepnet.compiler.net.ir import Node

Array = np.ndarray

BLOCK = 128
"""The number of outer products in a partial sum: adding partial sums to the total rounds less than one long
chain of additions."""


def contract(left: Array, right: Array, *, weights: str | None = None) -> Array:
    """Computes the sum of outer products of vectors in a fixed order: [n..., a] and [n..., b] give [a, b].

    weights: the encoding of both sides (`stepnet.compiler.net.encodings`): "bfloat16", or None for none.

    >>> contract(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0], [10.0]])).tolist()
    [[31.0], [42.0]]
    """
    left, right = meanings.vectors(left), meanings.vectors(right)
    if weights is not None:
        left, right = rounded(left), rounded(right)
    dtype = np.result_type(left, right)
    total = np.zeros((left.shape[1], right.shape[1]), dtype)
    for first in range(0, len(left), BLOCK):
        rows = slice(first, first + BLOCK)
        total += np.einsum("ta,tb->ab", left[rows], right[rows])
    return total


def total(how: str, values: Array) -> Array:
    """Reduces values over their first axis, all rows of a batch; zeros if there are none. how: such as "sum"
    or "max".

    >>> total("max", np.array([[1.0, 5.0], [3.0, 4.0]])).tolist(), total("sum", np.zeros((0, 1))).tolist()
    ([3.0, 5.0], [0.0])
    """
    return meanings.REDUCTIONS[how](values) if len(values) else np.zeros(values.shape[1:], values.dtype)


def total_of(node: Node, operands: list[Array]) -> Array:
    """Computes a node that reduces over all rows of a batch to one value: a sum of outer products
    (`contract`), a reduction of one value per row (`reduce`), or a sum at indices (`scatter`).

    operands: the values of all rows.
    """
    with np.errstate(all="ignore"):
        if node.operation == "contract":
            return contract(*operands, weights=node.attributes.get("weights"))
        return (
            total(node.attributes["how"], *operands) if node.operation == "reduce" else within(node, operands)
        )
