"""One value out of those of each sequence, in NumPy."""

from collections.abc import Callable
from functools import partial

import numpy as np

from stepnet.dtypes import kind_of_dtype
from stepnet.ragged.offsets import ends_of

Array = np.ndarray


def segment_sum(values: Array, offsets: Array) -> Array:
    """The sum over each sequence; zeros for an empty one."""
    return by_segment(np.add, values, offsets)


def segment_mean(values: Array, offsets: Array) -> Array:
    """The mean over each sequence; zeros for an empty one."""
    lengths = np.maximum(np.diff(offsets), 1)
    lengths = lengths.astype(values.dtype) if kind_of_dtype(values.dtype) == "float" else lengths
    return segment_sum(values, offsets) / lengths.reshape(-1, *[1] * (values.ndim - 1))


def segment_max(values: Array, offsets: Array) -> Array:
    """The largest of each sequence; zeros for an empty one."""
    return by_segment(np.maximum, values, offsets)


def by_segment(function: np.ufunc, values: Array, offsets: Array) -> Array:
    """A function of two numbers over the values of each sequence; zeros for an empty one."""
    filled = np.diff(offsets) > 0
    if filled.all() and len(filled):
        return function.reduceat(values, offsets[:-1], axis=0)
    found = np.zeros((len(filled), *values.shape[1:]), values.dtype)
    if filled.any():
        found[filled] = function.reduceat(values, offsets[:-1][filled], axis=0)
    return found


REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": segment_sum,
    "mean": segment_mean,
    "max": segment_max,
    "first": partial(ends_of, first=True),
    "last": partial(ends_of, first=False),
}
