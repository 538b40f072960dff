"""sinh and cosh as LLVM code on vectors (or scalars) of float or double, as in `maths`.

With x = n ln 2 + r, the addition theorems express them by sinh r and cosh r, which are short series, and by
sinh(n ln 2) and cosh(n ln 2), which are (2^n ∓ 2^-n) / 2. The latter are computed divided by 4 and the result
is multiplied by 4, so that 2^n overflows only where the result does.
"""

from fractions import Fraction
from functools import cache
from math import factorial
from typing import NamedTuple

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import Code
from stepnet.compiler.targets.cpu.writing.maths import (
    SINGLE,
    FloatPrecision,
    as_exponent,
    as_integer,
    clamped,
    horner,
    magnitude,
    precision_of,
    reduced,
    with_sign,
)
from stepnet.compiler.targets.cpu.writing.series import economised_even

TINY = 2.0**-28
"""Below this magnitude sinh(x) rounds to x."""

LAST = {True: 89.6, False: 710.6}
"""Beyond this argument both functions overflow: in single precision (True) and in double (False)."""

DEGREE = {True: 2, False: 5}
LARGEST = Fraction(35, 100)


class HyperbolicTerms(NamedTuple):
    """Terms of sinh and cosh.

    grown, shrunk: 2^n / 8 and 2^-n / 8.
    sinh_n, cosh_n: sinh(n ln 2) / 4 and cosh(n ln 2) / 4.
    coarse, cube: sinh(r) = coarse + cube, where coarse is nearly r.
    square: cosh(r) = 1 + square.
    """

    grown: ir.Value
    shrunk: ir.Value
    sinh_n: ir.Value
    cosh_n: ir.Value
    coarse: ir.Value
    cube: ir.Value
    square: ir.Value


def sinh(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the hyperbolic sine of each element, by its addition theorem for x = n ln 2 + r. The
    terms are divided by 4; the largest is added last, for accuracy. Below 2^-28 the result is x.
    """
    terms = hyperbolic_terms(code, x)
    rest = code.fused(terms.square, terms.sinh_n, code.fmul(terms.cube, terms.cosh_n))
    value = code.fadd(terms.sinh_n, code.fused(terms.coarse, terms.cosh_n, rest))
    tiny = code.fcmp_ordered("<", magnitude(code, x), code.splat(x.type, TINY))
    return code.select(tiny, x, with_sign(code, fourfold(code, value), x))


def cosh(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the hyperbolic cosine of each element, by its addition theorem for x = n ln 2 + r.
    2^n, the largest term and exact unlike cosh(n ln 2), is added last.
    """
    terms = hyperbolic_terms(code, x)
    rest = code.fused(terms.square, terms.cosh_n, code.fmul(terms.cube, terms.sinh_n))
    rest = code.fadd(terms.shrunk, code.fused(terms.coarse, terms.sinh_n, rest))
    return fourfold(code, code.fadd(terms.grown, rest))


def hyperbolic_terms(code: Code, x: ir.Value) -> HyperbolicTerms:
    """Writes code for the terms of which sinh(|x|) and cosh(x) are sums (their addition theorems for |x| = n
    ln 2 + r): powers of 2, and series of r = |x| - n ln 2. |x| is limited to where both overflow.
    """
    precision = precision_of(x.type)
    size = clamped(code, magnitude(code, x), None, LAST[precision is SINGLE])
    small = reduced(code, size, 1, precision.bias - 3)
    grown = as_exponent(code, as_integer(code, small.shifted), x.type)
    shrunk = code.fdiv(code.splat(x.type, 2.0**-6), grown)
    z = code.fmul(small.r, small.r)
    cube = code.fmul(code.fmul(small.r, z), horner(code, z, sinh_series(precision)))
    return HyperbolicTerms(
        grown,
        shrunk,
        code.fsub(grown, shrunk),
        code.fadd(grown, shrunk),
        small.coarse,
        code.fadd(small.fine, cube),
        code.fmul(z, horner(code, z, cosh_series(precision))),
    )


def fourfold(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for 4 x, which undoes the division of the terms of sinh and cosh by 4."""
    return code.fmul(x, code.splat(x.type, 4.0))


@cache
def sinh_series(precision: FloatPrecision) -> list[Fraction]:
    """Returns the coefficients of the polynomial p where sinh(r) = r + r³ p(r²), for |r| <= ln(2) / 2."""
    degree = DEGREE[precision is SINGLE]
    return economised_even([Fraction(1, factorial(2 * k + 3)) for k in range(degree + 8)], LARGEST, degree)


@cache
def cosh_series(precision: FloatPrecision) -> list[Fraction]:
    """Returns the coefficients of the polynomial p where cosh(r) = 1 + r² p(r²), for |r| <= ln(2) / 2."""
    degree = DEGREE[precision is SINGLE] + 1
    return economised_even([Fraction(1, factorial(2 * k + 2)) for k in range(degree + 8)], LARGEST, degree)
