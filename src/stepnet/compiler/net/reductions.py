"""Reductions over the steps of each sequence, on NumPy arrays.

Every sum is one chain of additions in the order of the steps, so the results of a sequence have the same bits
in any batch.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.ragged.offsets import ends_of

Array = np.ndarray


def segment_sum(values: Array, offsets: Array) -> Array:
    """Computes the sum over each sequence; zeros for an empty one. offsets: of the sequences."""
    return by_segment(np.add, values, offsets)


def segment_mean(values: Array, offsets: Array) -> Array:
    """Computes the mean over each sequence; zeros for an empty one. offsets: of the sequences."""
    return mean_of(segment_sum(values, offsets), offsets)


def mean_of(sums: Array, offsets: Array) -> Array:
    """Divides sums over sequences by the sequences' lengths, at least 1; offsets: where each begins and
    ends.
    """
    lengths = np.maximum(np.diff(offsets), 1)
    lengths = lengths.astype(sums.dtype) if kind_of_dtype(sums.dtype) == "float" else lengths
    return sums / lengths.reshape(-1, *[1] * (sums.ndim - 1))


def segment_max(values: Array, offsets: Array) -> Array:
    """Computes the maximum over each sequence; zeros for an empty one. offsets: of the sequences."""
    return by_segment(np.maximum, values, offsets)


def by_segment(function: np.ufunc, values: Array, offsets: Array) -> Array:
    """Reduces the values of each sequence by a binary ufunc; zeros for an empty one.

    offsets: where each sequence begins and ends.
    """
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
