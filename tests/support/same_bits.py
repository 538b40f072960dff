"""Comparison of two structures of arrays to the last bit."""

from typing import Any

import numpy as np

import stepnet as sn
from stepnet.compiler.values import leaves


def assert_same_bits(one: Any, other: Any) -> None:
    """Asserts that two structures have arrays of the same dtypes, shapes and bits; a Ragged its offsets."""
    ones, others = leaves(one), leaves(other)
    assert len(ones) == len(others)
    for left, right in zip(ones, others, strict=True):
        assert isinstance(left, sn.Ragged) == isinstance(right, sn.Ragged)
        if isinstance(left, sn.Ragged):
            assert_same_bits([left.values, *left.offsets], [right.values, *right.offsets])
        else:
            assert (left.dtype, np.shape(left)) == (right.dtype, np.shape(right))
            assert left.tobytes() == right.tobytes()
