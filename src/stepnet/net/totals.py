"""Reductions over the steps of each sequence, and over all rows.

Every sum has a fixed order, which depends only on the number of values: the order of a sequence's steps, or
of rows. So results have the same bits for any number of threads, and a sequence's results have the same bits
in any batch. A library's product does not guarantee this.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from stepnet.net import meanings
from stepnet.net.encodings import rounded
from stepnet.net.interpret import within
from stepnet.net.ir import Node
from stepnet.ragged.offsets import ends_of
from stepnet.values.dtypes import kind_of_dtype

Array = np.ndarray

BLOCK = 256
"""The number of outer products in a partial sum: adding partial sums to the total rounds less than one long
chain of additions."""


def contract(left: Array, right: Array, *, weights: str | None = None) -> Array:
    """The sum over all vectors of the outer products: [n..., a] and [n..., b] give [a, b].

    weights: the encoding of both sides (`stepnet.net.encodings`): "bfloat16", or None for none.

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
    """The reduction over all rows; zeros if there are none.

    >>> total("max", np.array([[1.0, 5.0], [3.0, 4.0]])).tolist(), total("sum", np.zeros((0, 1))).tolist()
    ([3.0, 5.0], [0.0])
    """
    return meanings.REDUCTIONS[how](values) if len(values) else np.zeros(values.shape[1:], values.dtype)


def total_of(node: Node, operands: list[Array]) -> Array:
    """The value of a node of extent const that is computed from the values of all rows."""
    with np.errstate(all="ignore"):
        if node.operation == "contract":
            return contract(*operands, **node.attributes)
        return (
            total(node.attributes["how"], *operands) if node.operation == "reduce" else within(node, operands)
        )


# ---- of each sequence --------------------------------------------------------------------------------------


def segment_sum(values: Array, offsets: Array) -> Array:
    """The sum over each sequence; zeros for an empty one."""
    return by_segment(np.add, values, offsets)


def segment_mean(values: Array, offsets: Array) -> Array:
    """The mean over each sequence; zeros for an empty one."""
    return mean_of(segment_sum(values, offsets), offsets)


def mean_of(sums: Array, offsets: Array) -> Array:
    """The mean over each sequence, from the sum over it; zeros for an empty one."""
    lengths = np.maximum(np.diff(offsets), 1)
    lengths = lengths.astype(sums.dtype) if kind_of_dtype(sums.dtype) == "float" else lengths
    return sums / lengths.reshape(-1, *[1] * (sums.ndim - 1))


def segment_max(values: Array, offsets: Array) -> Array:
    """The largest of each sequence; zeros for an empty one."""
    return by_segment(np.maximum, values, offsets)


def by_segment(function: np.ufunc, values: Array, offsets: Array) -> Array:
    """A binary ufunc reduced over the values of each sequence; zeros for an empty one."""
    filled = np.diff(offsets) > 0
    if filled.all() and len(filled):
        return function.reduceat(values, offsets[:-1], axis=0)
    reduced = np.zeros((len(filled), *values.shape[1:]), values.dtype)
    if filled.any():
        reduced[filled] = function.reduceat(values, offsets[:-1][filled], axis=0)
    return reduced


REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": segment_sum,
    "mean": segment_mean,
    "max": segment_max,
    "first": partial(ends_of, first=True),
    "last": partial(ends_of, first=False),
}
