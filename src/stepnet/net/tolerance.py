"""How far a right result may be from the right numbers: the one formula for all that is compared."""

from math import sqrt
from typing import Any, cast

import ml_dtypes

ROUNDINGS = 16


def tolerance(dtype: Any, length: int = 1, width: int = 1, roundings: int = ROUNDINGS) -> float:
    """The distance from the right number that is due to rounding, relative to max(1, |right|).

    16 eps sqrt(length + width): the errors of a sum of `width` products, and of `length` steps of a
    recurrence that forgets, add up as a random walk does; 16 roundings stand for the functions of one step.
    Two right results may be twice as far from one another.

    >>> round(tolerance("float64", length=3, width=1) / 2**-52)
    32
    """
    eps = float(cast("Any", ml_dtypes.finfo)(dtype).eps)
    return roundings * eps * sqrt(length + width)
