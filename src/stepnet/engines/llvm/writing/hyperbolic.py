"""sinh and cosh as LLVM code on vectors (or scalars) of float or double, as in `maths`.

With x = n ln 2 + r they are sums of products of sinh and cosh of r, which are short series, and of n ln 2,
which are (2^n ± 2^-n) / 2. A quarter of these is taken, and the result multiplied by 4: so that there is room
for 2^n where there is for the result.
"""

from fractions import Fraction
from functools import cache
from math import factorial
from typing import NamedTuple

from llvmlite import ir

from stepnet.engines.llvm.writing.code import Code
from stepnet.engines.llvm.writing.maths import (
    SINGLE,
    Precision,
    as_exponent,
    as_integer,
    clamped,
    horner,
    magnitude,
    precision_of,
    reduced,
    with_sign,
)
from stepnet.engines.llvm.writing.series import economised_even

TINY = 2.0**-28
"""Below it sinh is its argument."""

LAST = {True: 89.6, False: 710.6}
"""Beyond it both overflow, in single precision (True) and in double."""

DEGREE = {True: 2, False: 5}
LARGEST = Fraction(35, 100)


class Parts(NamedTuple):
    """2^n and 2^-n over 8; a quarter of sinh(n ln 2) and of cosh(n ln 2); sinh(r) and cosh(r).

    sinh(r) = coarse + cube, where coarse is nearly r, and cosh(r) = 1 + square.
    """

    grown: ir.Value
    shrunk: ir.Value
    sinh_n: ir.Value
    cosh_n: ir.Value
    coarse: ir.Value
    cube: ir.Value
    square: ir.Value


def sinh(code: Code, x: ir.Value) -> ir.Value:
    """The hyperbolic sine: of r with that of n ln 2, the largest term added last."""
    pieces = parts(code, x)
    rest = code.fused(pieces.square, pieces.sinh_n, code.fmul(pieces.cube, pieces.cosh_n))
    value = code.fadd(pieces.sinh_n, code.fused(pieces.coarse, pieces.cosh_n, rest))
    tiny = code.fcmp_ordered("<", magnitude(code, x), code.splat(x.type, TINY))
    return code.select(tiny, x, with_sign(code, fourfold(code, value), x))


def cosh(code: Code, x: ir.Value) -> ir.Value:
    """The hyperbolic cosine: of r with that of n ln 2, the largest term added last.

    That is the 2^n of cosh(n ln 2): 2^n + 2^-n may have been rounded, and the result be half as large.
    """
    pieces = parts(code, x)
    rest = code.fused(pieces.square, pieces.cosh_n, code.fmul(pieces.cube, pieces.sinh_n))
    rest = code.fadd(pieces.shrunk, code.fused(pieces.coarse, pieces.sinh_n, rest))
    return fourfold(code, code.fadd(pieces.grown, rest))


def parts(code: Code, x: ir.Value) -> Parts:
    """The terms that sinh and cosh are made of."""
    precision = precision_of(x.type)
    size = clamped(code, magnitude(code, x), None, LAST[precision is SINGLE])
    small = reduced(code, size, 1, precision.bias - 3)
    grown = as_exponent(code, as_integer(code, small.shifted), x.type)
    shrunk = code.fdiv(code.splat(x.type, 2.0**-6), grown)
    z = code.fmul(small.r, small.r)
    cube = code.fmul(code.fmul(small.r, z), horner(code, z, sinh_series(precision)))
    return Parts(
        grown,
        shrunk,
        code.fsub(grown, shrunk),
        code.fadd(grown, shrunk),
        small.coarse,
        code.fadd(small.fine, cube),
        code.fmul(z, horner(code, z, cosh_series(precision))),
    )


def fourfold(code: Code, x: ir.Value) -> ir.Value:
    """4 x."""
    return code.fmul(x, code.splat(x.type, 4.0))


@cache
def sinh_series(precision: Precision) -> list[Fraction]:
    """p, where sinh(r) = r + r³ p(r²), for |r| <= ln(2) / 2."""
    degree = DEGREE[precision is SINGLE]
    return economised_even([Fraction(1, factorial(2 * k + 3)) for k in range(degree + 8)], LARGEST, degree)


@cache
def cosh_series(precision: Precision) -> list[Fraction]:
    """p, where cosh(r) = 1 + r² p(r²), for |r| <= ln(2) / 2."""
    degree = DEGREE[precision is SINGLE] + 1
    return economised_even([Fraction(1, factorial(2 * k + 2)) for k in range(degree + 8)], LARGEST, degree)
