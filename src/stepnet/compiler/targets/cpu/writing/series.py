"""Power series with exact rational coefficients, shortened by Chebyshev economisation (Lanczos, 1956)."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache


def economised(series: Sequence[Fraction], bound: Fraction, degree: int) -> list[Fraction]:
    """Shortens a power series to a polynomial of a degree, for |x| <= bound, at little loss of accuracy.

    Each higher term is replaced by its best approximation of lower degree. For |x| <= 1 the error of the best
    one for x^n is the Chebyshev polynomial T_n, scaled to at most 2^(1-n).

    series: coefficients, the constant first.
    """
    result = list(series)
    while len(result) > degree + 1:
        n = len(result) - 1
        factor = result.pop() * bound**n / 2 ** (n - 1)
        for k, term in enumerate(chebyshev(n)[:-1]):
            result[k] -= factor * term / bound**k
    return result


def economised_even(series: Sequence[Fraction], bound: Fraction, degree: int) -> list[Fraction]:
    """Shortens a power series in x², for |x| <= bound, to a polynomial of a `degree` in x²."""
    spread = [term for pair in series for term in (pair, Fraction(0))]
    return economised(spread, bound, 2 * degree)[::2]


@cache
def chebyshev(n: int) -> list[int]:
    """Returns the coefficients of the Chebyshev polynomial T_n, the constant first."""
    if n < 2:
        return [1] if n == 0 else [0, 1]
    before = [*chebyshev(n - 2), 0, 0]
    return [2 * term - old for term, old in zip([0, *chebyshev(n - 1)], before, strict=False)]
