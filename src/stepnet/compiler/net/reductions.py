"""Reductions over the steps of each sequence, on NumPy arrays. Sums and maxima have the dtype of the values.

Every sum is the first value plus NumPy's pairwise sum of the others, so the results of a sequence have the
same bits in any batch.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.ragged.offsets import ends_of

Array = np.ndarray


def segment_sum(values: Array, offsets: Array) -> Array:
    """Computes the sum over each sequence of values stored end to end with offsets; zeros if empty."""
    return by_segment(np.add, values, offsets)


def segment_mean(values: Array, offsets: Array) -> Array:
    """Computes the mean over each sequence of values stored end to end with offsets; zeros if empty."""
    floats = values if kind_of_dtype(values.dtype) == "float" else values.astype(np.float64)
    return mean_of(segment_sum(floats, offsets), offsets)


def mean_of(sums: Array, offsets: Array) -> Array:
    """Divides sums over sequences by their lengths, at least 1. offsets: of the sequences."""
    lengths = np.maximum(np.diff(offsets), 1)
    lengths = lengths.astype(sums.dtype) if kind_of_dtype(sums.dtype) == "float" else lengths
    return sums / lengths.reshape(-1, *[1] * (sums.ndim - 1))


def segment_max(values: Array, offsets: Array) -> Array:
    """Computes the maximum over each sequence of values stored end to end with offsets; zeros if empty."""
    return by_segment(np.maximum, values, offsets)


def by_segment(function: np.ufunc, values: Array, offsets: Array) -> Array:
    """Reduces each sequence of values stored end to end with offsets to one value; zeros for an empty one.

    function: the binary ufunc of the reduction, such as `np.add`.
    """
    filled = np.diff(offsets) > 0
    if filled.all() and len(filled):
        return function.reduceat(values, offsets[:-1], axis=0, dtype=values.dtype)
    reduced = np.zeros((len(filled), *values.shape[1:]), values.dtype)
    if filled.any():
        reduced[filled] = function.reduceat(values, offsets[:-1][filled], axis=0, dtype=values.dtype)
    return reduced


REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": segment_sum,
    "mean": segment_mean,
    "max": segment_max,
    "first": partial(ends_of, first=True),
    "last": partial(ends_of, first=False),
}
