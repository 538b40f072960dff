"""sin, cos, tan and arctan as LLVM code on vectors (or scalars) of float or double, as in `maths`.

1. An angle is reduced to within π/4 of 0 by subtracting quarter turns (`quarters`). There sin and cos are
   short polynomials. The number of quarter turns decides which of the two is the result, and its sign.
2. Single precision is computed in double precision, so its rounding errors are negligible.
3. In double precision a reduced angle is an unevaluated sum of two numbers, high and low. The low part enters
   as a first-order correction, as in fdlibm (Sun Microsystems, 1993).
"""

from fractions import Fraction
from functools import cache
from math import factorial

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import Code, is_single, register_type, width_of
from stepnet.compiler.targets.cpu.writing.maths import (
    horner,
    magnitude,
    with_sign,
)
from stepnet.compiler.targets.cpu.writing.powers import Pair, ordered_sum, quotient
from stepnet.compiler.targets.cpu.writing.quarters import ReducedAngle, pi, reduced_angle
from stepnet.compiler.targets.cpu.writing.series import economised_even

TINY = 2.0**-28
"""Below this magnitude sin, tan and arctan round to their argument, in both precisions."""

LARGEST_ANGLE = Fraction(786, 1000)
LARGEST_TANGENT = Fraction(415, 1000)
"""Upper bounds, slightly above π/4 and tan(π/8)."""

SERIES_DEGREE = {True: 3, False: 6}
ARCTAN_DEGREE = {True: 5, False: 12}
"""The degree of each polynomial, by whether the result is in single precision."""


def sin(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the sine of each element of x."""
    return unless_tiny(code, x, shifted_sine(code, x, 0))


def cos(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the cosine of each element of x, as sin(x + π/2)."""
    return shifted_sine(code, x, 1)


def tan(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the tangent of each element: sin / cos of the reduced angle; -cos / sin if the angle's
    number of quarter turns is odd.
    """
    wide, single = widened(code, x), is_single(x.type)
    angle = reduced_angle(code, wide, single)
    sine, cosine = sine_of(code, angle, single), cosine_of(code, angle, single)
    odd = has_bit(code, angle.quarter, 1)
    minus = Pair(*(code.fneg(term) for term in cosine))
    above, below = (
        Pair(*(code.select(odd, a, b) for a, b in zip(left, right, strict=True)))
        for left, right in ((minus, sine), (sine, cosine))
    )
    if single:
        return unless_tiny(code, x, code.fptrunc(code.fdiv(total(code, above), total(code, below)), x.type))
    above, below = ordered_sum(code, *above), ordered_sum(code, *below)
    high, low = quotient(code, above.high, below)
    return unless_tiny(code, x, code.fadd(high, code.fadd(low, code.fdiv(above.low, below.high))))


def shifted_sine(code: Code, x: ir.Value, quarter_turns: int) -> ir.Value:
    """Writes code for sin(x + quarter_turns π/2) of each element: the sine for 0, the cosine for 1. The angle
    is first reduced by quarter turns, whose number, plus `quarter_turns`, selects sine or cosine of the rest
    and its sign.
    """
    wide, single = widened(code, x), is_single(x.type)
    angle = reduced_angle(code, wide, single)
    quarter = code.add(angle.quarter, code.splat(angle.quarter.type, quarter_turns))
    sine, cosine = (total(code, term(code, angle, single)) for term in (sine_of, cosine_of))
    value = code.select(has_bit(code, quarter, 1), cosine, sine)
    result = code.select(has_bit(code, quarter, 2), code.fneg(value), value)
    return code.fptrunc(result, x.type) if single else result


def sine_of(code: Code, angle: ReducedAngle, single: bool) -> Pair:
    """Writes code for sin(high + low) of a reduced angle (|high| <= π/4, `low` its rounding error), as the
    unevaluated sum of a number and a smaller one. single: whether float32 precision is enough; `low` is then
    left out.
    """
    high, low = angle.high, angle.low
    z = code.fmul(high, high)
    cube = code.fmul(high, z)
    series = horner(code, z, sine_series(SERIES_DEGREE[single]))
    if single:
        return Pair(high, code.fmul(cube, series))
    slope = code.fused(z, code.splat(z.type, -0.5), code.splat(z.type, 1.0))
    return Pair(high, code.fused(cube, series, code.fmul(low, slope)))


def cosine_of(code: Code, angle: ReducedAngle, single: bool) -> Pair:
    """Writes code for cos(high + low) of a reduced angle (|high| <= π/4, `low` its rounding error), as the
    unevaluated sum of two numbers. They are 1 - z/2 rounded, with z = high², and the rest, which includes the
    rounding error of the first. single: whether float32 precision is enough; `low` is then left out.
    """
    high, low = angle.high, angle.low
    z = code.fmul(high, high)
    one, half = code.splat(z.type, 1.0), code.fmul(z, code.splat(z.type, 0.5))
    leading = code.fsub(one, half)
    series = code.fmul(code.fmul(z, z), horner(code, z, cosine_series(SERIES_DEGREE[single])))
    if single:
        return Pair(leading, series)
    error = code.fsub(code.fsub(one, leading), half)
    return Pair(leading, code.fadd(error, code.fsub(series, code.fmul(high, low))))


def arctan(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the inverse tangent of each element. Its series is for |t| <= tan(π/8): for a larger
    |x|, t is (|x| - 1) / (|x| + 1) or -1 / |x|, and π/4 or π/2 is added.
    """
    size, single = magnitude(code, x), is_single(x.type)
    one = code.splat(x.type, 1.0)
    middle = code.fcmp_ordered(">", size, code.splat(x.type, 0.414213562373095))
    last = code.fcmp_ordered(">", size, code.splat(x.type, 2.414213562373095))
    above = code.select(last, code.fneg(one), code.select(middle, code.fsub(size, one), size))
    below = code.select(last, size, code.select(middle, code.fadd(size, one), one))
    t = code.fdiv(above, below)
    z = code.fmul(t, t)
    tail = code.fmul(code.fmul(t, z), horner(code, z, arctan_series(ARCTAN_DEGREE[single])))
    high, low = (
        code.select(
            last,
            code.splat(x.type, quarters[term]),
            code.select(middle, code.splat(x.type, eighths[term]), code.splat(x.type, 0.0)),
        )
        for term in (0, 1)
        for eighths, quarters in [(high_and_low(pi() / 4, single), high_and_low(pi() / 2, single))]
    )
    value = code.fadd(high, code.fadd(t, code.fadd(tail, low)))
    return unless_tiny(code, x, with_sign(code, value, x))


# ---- helpers -----------------------------------------------------------------------------------------------


def widened(code: Code, x: ir.Value) -> ir.Value:
    """Writes code that converts float32, scalar or vector, to float64, for precision; float64 stays."""
    return code.fpext(x, register_type("float64", width_of(x))) if is_single(x.type) else x


def total(code: Code, pair: Pair) -> ir.Value:
    """Writes code that adds the two floats of a pair, as one float."""
    return code.fadd(pair.high, pair.low)


def has_bit(code: Code, number: ir.Value, bit: int) -> ir.Value:
    """Writes code that tests whether integers have a bit, a power of 2, set."""
    return code.icmp_unsigned(
        "!=", code.and_(number, code.splat(number.type, bit)), code.splat(number.type, 0)
    )


def unless_tiny(code: Code, x: ir.Value, value: ir.Value) -> ir.Value:
    """Writes code that selects x where |x| is below `TINY`, which keeps the sign of zero, else `value`."""
    return code.select(code.fcmp_ordered("<", magnitude(code, x), code.splat(x.type, TINY)), x, value)


# ---- coefficients ------------------------------------------------------------------------------------------


@cache
def sine_series(degree: int) -> list[Fraction]:
    """Returns the coefficients of the polynomial p where sin(x) = x + x³ p(x²), for |x| <= π/4."""
    series = [Fraction((-1) ** (k + 1), factorial(2 * k + 3)) for k in range(degree + 8)]
    return economised_even(series, LARGEST_ANGLE, degree)


@cache
def cosine_series(degree: int) -> list[Fraction]:
    """Returns the coefficients of the polynomial p where cos(x) = 1 - x²/2 + x⁴ p(x²), for |x| <= π/4."""
    series = [Fraction((-1) ** k, factorial(2 * k + 4)) for k in range(degree + 8)]
    return economised_even(series, LARGEST_ANGLE, degree)


@cache
def arctan_series(degree: int) -> list[Fraction]:
    """Returns the coefficients of the polynomial p where arctan(x) = x + x³ p(x²), for |x| <= tan(π/8)."""
    series = [Fraction((-1) ** (k + 1), 2 * k + 3) for k in range(degree + 20)]
    return economised_even(series, LARGEST_TANGENT, degree)


def high_and_low(value: Fraction, single: bool) -> tuple[float, float]:
    """Splits a number into itself rounded to float32 or float64, and the rounding error."""
    high = float(np.float32(value)) if single else float(value)
    return high, float(value - Fraction(high))
