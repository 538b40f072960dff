"""The tolerance for comparisons of results: one formula for all of them."""

from math import sqrt
from typing import Any, cast

import ml_dtypes

ROUNDINGS = 16


def tolerance(dtype: Any, length: int = 1, width: int = 1, roundings: int = ROUNDINGS) -> float:
    """The error of a result that rounding explains, relative to max(1, |exact|).

    16 eps sqrt(length + width): the errors of a sum of `width` products, and of `length` steps of a
    recurrence that forgets, grow like a random walk; 16 roundings stand for the functions of a step. Two
    correct results may be twice as far from each other.

    >>> round(tolerance("float64", length=3, width=1) / 2**-52)
    32
    """
    eps = float(cast("Any", ml_dtypes.finfo)(dtype).eps)
    return roundings * eps * sqrt(length + width)
