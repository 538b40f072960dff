"""The tolerance for comparisons of results: one formula for all of them."""

from math import sqrt
from typing import Any, cast

import ml_dtypes

ROUNDINGS = 16


def tolerance(dtype: Any, length: int = 1, width: int = 1, roundings: int = ROUNDINGS) -> float:
    """Returns the largest error that rounding explains, relative to max(1, |exact|).

    It is 16 eps sqrt(length + width), with the eps of `dtype`. The rounding errors of a sum of `width`
    products, and of `length` steps of a recurrence that forgets, grow like a random walk. The factor 16,
    `roundings`, covers the functions of a step. Two correct results may differ by twice the tolerance.

    >>> round(tolerance("float64", length=3, width=1) / 2**-52)
    32
    """
    eps = float(cast("Any", ml_dtypes.finfo)(dtype).eps)
    return roundings * eps * sqrt(length + width)
