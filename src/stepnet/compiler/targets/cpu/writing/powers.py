"""x to a constant power, as C's pow has it, as straight-line LLVM code.

x^c = e^(c log x), and c log x may be 700: an error in its last place is one of 500 in the result's. So in
double precision log x is a sum of two numbers, right to 2^-64, and so is c log x, whose lower part joins in
where e^x has its argument reduced (as in fdlibm, Sun Microsystems, 1993, without its tables). Single
precision goes by way of double, where one number is enough.
"""

from fractions import Fraction
from functools import cache
from math import inf, nan
from typing import NamedTuple

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import Code, is_single, register_type, width_of
from stepnet.compiler.targets.cpu.writing.maths import (
    DOUBLE,
    clamped,
    exp,
    horner,
    ln_2_parts,
    log,
    magnitude,
    scaled,
    with_sign,
)
from stepnet.compiler.targets.cpu.writing.series import economised_even

LARGEST_EXPONENT = 2.0**64
"""For this exponent and all larger ones, every power overflows, underflows or is 1."""

SPLITTER = 2.0**27 + 1
"""The factor that splits x: with p = SPLITTER x, p - (p - x) is the upper half of its bits (Dekker, 1971)."""

LOG_DEGREE = 10


class Pair(NamedTuple):
    """Number as the sum of two, the lower one about as small as the last place of the higher one."""

    high: ir.Value
    low: ir.Value


def power(code: Code, x: ir.Value, exponent: float) -> ir.Value:
    """Writes code for x^exponent of each element, for an exponent that is neither 0 nor NaN. float32 is
    computed in float64; float64 by a logarithm that is the sum of two numbers.
    """
    c = max(-LARGEST_EXPONENT, min(LARGEST_EXPONENT, exponent))
    if is_single(x.type):
        wide = code.fpext(x, register_type("float64", width_of(x)))
        value = exp(code, code.fmul(log(code, magnitude(code, wide)), code.splat(wide.type, c)))
        return code.fptrunc(with_special_cases(code, wide, value, exponent), x.type)
    scaled_log = times(code, log_pair(code, magnitude(code, x)), c)
    return with_special_cases(code, x, exp_of_pair(code, scaled_log), exponent)


def with_special_cases(code: Code, x: ir.Value, value: ir.Value, exponent: float) -> ir.Value:
    """Writes code for x^exponent of any x. value: |x|^exponent, which is wrong for zeros and infinities, and
    has no sign. A negative number has NaN for an exponent that is no integer.
    """
    zero, infinity = code.splat(x.type, 0.0), code.splat(x.type, inf)
    size = magnitude(code, x)
    growing = exponent > 0
    value = code.select(code.fcmp_ordered("==", size, zero), zero if growing else infinity, value)
    value = code.select(code.fcmp_ordered("==", size, infinity), infinity if growing else zero, value)
    value = code.select(code.fcmp_ordered("==", x, x), value, x)
    if exponent % 2 == 1:
        return with_sign(code, value, x)
    if exponent.is_integer() or abs(exponent) == inf:
        return value
    # For exponents that are no integers, negative numbers give NaN, except minus infinity, which gives the
    # result of infinity.
    negative = code.and_(code.fcmp_ordered("<", x, zero), code.fcmp_ordered("<", size, infinity))
    return code.select(negative, code.splat(x.type, nan), value)


def exp_of_pair(code: Code, x: Pair) -> ir.Value:
    """Writes code for e^x of x, a sum of two floats; the smaller is ignored at an overflow or 0."""
    limited = clamped(code, x.high, -800.0, 800.0)
    inside = code.fcmp_ordered("==", limited, x.high)
    return exp(code, limited, code.select(inside, x.low, code.splat(limited.type, 0.0)))


def log_pair(code: Code, x: ir.Value) -> Pair:
    """Writes code for log(x), 0 < x < inf, as the sum of two float64, with an error of about 2^-64: k ln 2 +
    2 atanh(s), where x = 2^k (1 + f) and s = f / (2 + f).
    """
    k, f = scaled(code, x)
    two = code.splat(x.type, 2.0)
    s = quotient(code, f, ordered_sum(code, two, f))
    z = times(code, s, s)
    first, *rest = log_series()
    tail = code.fmul(z.high, horner(code, z.high, rest))
    sum_ = ordered_sum(code, code.splat(x.type, float(first)), tail)
    low = code.fused(z.low, code.splat(x.type, float(rest[0])), sum_.low)
    series = Pair(sum_.high, code.fadd(low, code.splat(x.type, float(first - Fraction(float(first))))))
    odd = times(code, s, times(code, z, series))
    log_f = add_pairs(code, Pair(code.fmul(two, s.high), code.fmul(two, s.low)), odd)
    high, low = (code.splat(x.type, float(term)) for term in ln_2_parts(DOUBLE))
    return add_pairs(code, Pair(code.fmul(k, high), code.fmul(k, low)), log_f)


@cache
def log_series() -> list[Fraction]:
    """Returns the coefficients of p where 2 atanh(s) = 2 s + s³ p(s²) for |s| <= 0.172, right to 2^-66."""
    series = [Fraction(2, 2 * k + 3) for k in range(LOG_DEGREE + 10)]
    return economised_even(series, Fraction(172, 1000), LOG_DEGREE)


# ---- arithmetic of pairs -----------------------------------------------------------------------------------


def ordered_sum(code: Code, a: ir.Value, b: ir.Value) -> Pair:
    """Writes code for a + b as a float and its exact rounding error, where |a| >= |b| or a is 0."""
    high = code.fadd(a, b)
    return Pair(high, code.fsub(b, code.fsub(high, a)))


def add_pairs(code: Code, a: Pair, b: Pair) -> Pair:
    """Writes code for the sum of two numbers, each the sum of two floats, where |a| >= |b| or a is 0."""
    total = ordered_sum(code, a.high, b.high)
    return ordered_sum(code, total.high, code.fadd(total.low, code.fadd(a.low, b.low)))


def times(code: Code, a: Pair, b: "Pair | float") -> Pair:
    """Writes code for the product of a number that is the sum of two floats, and another such number or a
    constant, as the sum of two floats.
    """
    if not isinstance(b, Pair):
        b = Pair(code.splat(a.high.type, b), code.splat(a.high.type, 0.0))
    product = exact_product(code, a.high, b.high)
    crossed = code.fused(a.high, b.low, code.fmul(a.low, b.high))
    return Pair(product.high, code.fadd(product.low, crossed))


def quotient(code: Code, a: ir.Value, b: Pair) -> Pair:
    """Writes code for a / b in about twice the precision, as an unevaluated sum of two floats, as b is."""
    high = code.fdiv(a, b.high)
    product = exact_product(code, high, b.high)
    left = code.fsub(code.fsub(a, product.high), product.low)
    return Pair(high, code.fdiv(code.fsub(left, code.fmul(high, b.low)), b.high))


def exact_product(code: Code, a: ir.Value, b: ir.Value) -> Pair:
    """Writes code for a * b, as a float and its exact rounding error."""
    high = code.fmul(a, b)
    if code.processor.has_fused:
        return Pair(high, code.fused(a, b, code.fneg(high)))
    (a1, a2), (b1, b2) = split_bits(code, a), split_bits(code, b)
    low = code.fsub(code.fmul(a1, b1), high)
    for left, right in ((a1, b2), (a2, b1), (a2, b2)):
        low = code.fadd(low, code.fmul(left, right))
    return Pair(high, low)


def split_bits(code: Code, a: ir.Value) -> Pair:
    """Writes code that splits a float64 into two with half the bits, for exact products (Dekker, 1971)."""
    large = code.fmul(a, code.splat(a.type, SPLITTER))
    high = code.fsub(large, code.fsub(large, a))
    return Pair(high, code.fsub(a, high))
