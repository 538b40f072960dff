"""Power series with exact rational coefficients, shortened by Chebyshev economisation (Lanczos, 1956)."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache


def economised(series: Sequence[Fraction], bound: Fraction, degree: int) -> list[Fraction]:
    """Truncates a series to `degree`: replaces each higher term by its best approximation of lower degree.

    The approximation is the best for |x| <= bound.

    The error of the best approximation of x^n by lower powers is the scaled Chebyshev polynomial T_n: at most
    2^(1-n) for |x| <= 1.
    """
    result = list(series)
    while len(result) > degree + 1:
        n = len(result) - 1
        factor = result.pop() * bound**n / 2 ** (n - 1)
        for k, term in enumerate(chebyshev(n)[:-1]):
            result[k] -= factor * term / bound**k
    return result


def economised_even(series: Sequence[Fraction], bound: Fraction, degree: int) -> list[Fraction]:
    """Truncates a series in x²: `economised` of a series in x with every other coefficient zero."""
    spread = [term for pair in series for term in (pair, Fraction(0))]
    return economised(spread, bound, 2 * degree)[::2]


@cache
def chebyshev(n: int) -> list[int]:
    """Returns the coefficients of T_n, the constant first."""
    if n < 2:
        return [1] if n == 0 else [0, 1]
    before = [*chebyshev(n - 2), 0, 0]
    return [2 * term - old for term, old in zip([0, *chebyshev(n - 1)], before, strict=False)]
