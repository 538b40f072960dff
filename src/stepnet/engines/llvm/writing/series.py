"""Power series with exact rational coefficients, made shorter by Chebyshev economisation (Lanczos, 1956)."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache


def economised(series: Sequence[Fraction], bound: Fraction, degree: int) -> list[Fraction]:
    """The series cut down to `degree`, each term above replaced by what is nearest to it for |x| <= bound.

    x^n differs least from lower powers by the Chebyshev polynomial T_n, scaled: by 2^(1-n) where |x| <= 1.
    """
    result = list(series)
    while len(result) > degree + 1:
        n = len(result) - 1
        factor = result.pop() * bound**n / 2 ** (n - 1)
        for k, term in enumerate(chebyshev(n)[:-1]):
            result[k] -= factor * term / bound**k
    return result


def economised_even(series: Sequence[Fraction], bound: Fraction, degree: int) -> list[Fraction]:
    """The same for a series in x², which is taken for one in x with every other term zero."""
    spread = [term for pair in series for term in (pair, Fraction(0))]
    return economised(spread, bound, 2 * degree)[::2]


@cache
def chebyshev(n: int) -> list[int]:
    """The coefficients of T_n, the constant first."""
    if n < 2:
        return [1] if n == 0 else [0, 1]
    before = [*chebyshev(n - 2), 0, 0]
    return [2 * term - old for term, old in zip([0, *chebyshev(n - 1)], before, strict=False)]
