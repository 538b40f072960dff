"""Equality of arrays bit by bit, which finds the copies of one variable in a file."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def same_bits(array: Array, other: Array) -> bool:
    """Returns True if two arrays have the same dtype, shape and bits: NaN equals NaN, and 0 is not -0."""
    if (array.dtype, array.shape) != (other.dtype, other.shape):
        return False
    return array is other or array.tobytes() == other.tobytes()
