"""Elementary functions as straight-line LLVM code on vectors (or scalars) of float or double.

Each function takes the builder and a register, and returns the function of every element. The same code
serves every width and processor; on all processors with a fused multiply-add, results have the same bits.

1. There are no branches: `select` chooses between two forms.
2. Arguments are clamped to the range in which the result changes. The comparison is false for NaN, so NaN is
   not clamped.
3. Coefficients are those of Taylor series, as exact rationals, shortened by Chebyshev economisation (Lanczos,
   Applied Analysis, 1956) and rounded once at the end. Two tables have fitted coefficients.
4. ln 2 is split in two so that n * high is exact even without a fused multiply-add (Cody and Waite, Software
   Manual for the Elementary Functions, 1980).
5. sigmoid and tanh are the epilogue of a matmul: in single precision they take 15 and 18 instructions, one of
   them a division, on every processor. Approximate reciprocals differ between manufacturers, and the Newton
   steps that refine them take more time of the multipliers than a division takes of the divider.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import factorial, inf, nan, sqrt
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import Code, is_single
from stepnet.compiler.targets.cpu.writing.series import chebyshev, economised, economised_even
from stepnet.compiler.values.records import dataclass

LN_2 = Fraction("0.693147180559945309417232121458176568")
TWO_OVER_ROOT_PI = Fraction("1.128379167095512573896158903121545172")

EXP_TAIL_SINGLE = (0.500000006, 0.166665417, 0.041666278, 0.00836675559, 0.00139467479)
"""Coefficients of q in float32, where e^r = 1 + r + r² q(r) for |r| <= ln(2) / 2: by least squares, weighted
anew until the greatest error of r q(r) is least (Lawson, 1961). Economised, tanh would exceed 2 ulp."""

ERF_MIDDLE, ERF_LAST = 1.0, 6.0
"""The arguments at which the formula of erf changes, and from which erf is 1."""

ERFC_CENTRE, ERFC_POLE = 4.5, 2.5
ERFC_TAIL = (
    0.167122579181391334,
    -0.205730034343450343,
    0.0456566737077773097,
    -0.0079928091889951577,
    0.0010157687678086064,
    -0.0000701836696487683725,
    -3.18374961887665251e-6,
    1.25755159768567983e-6,
    -5.17210357092891828e-8,
    -1.87476313625466761e-8,
    1.94250455376789521e-9,
    3.27447358722357806e-10,
    -5.22565059483164566e-11,
    -7.4349055438362559e-12,
    1.36723789418377109e-12,
    2.19448675174147276e-13,
    -3.52540443449168116e-14,
    -7.74273575651201712e-15,
    8.17965899461201261e-16,
    2.95604072427437247e-16,
)
"""Chebyshev coefficients of exp(x²) erfc(x) in t = (x - 4.5) / (x + 2.5), which is -1 at 1 and 1 at infinity
(a form of Schonfelder's, Math. Comp. 32, 1978). By mpmath, 40 digits, interpolating at 41 Chebyshev nodes."""


@dataclass(frozen=True)
class FloatPrecision:
    """Floating-point type: its format, the range of exp, and the degree of each polynomial.

    integer, dtype: LLVM's integer type and NumPy's dtype of its size.
    fraction_bits, bias: the stored bits of the fraction, and the bias of the exponent.
    ln_2_bits: the number of bits in the high part of ln 2; any exponent n fits in the remaining ones.
    exp_first, exp_last: the arguments below which e^x is 0, and above which it overflows.
    """

    integer: ir.Type
    dtype: str
    fraction_bits: int
    bias: int
    ln_2_bits: int
    exp_first: float
    exp_last: float
    coth_degree: int
    log_degree: int
    erf_degree: int
    erfc_degree: int

    def bits(self, value: float) -> int:
        """Returns the bits of a float of this type as an integer, for constants of integer operations."""
        return int.from_bytes(np.array(value, f"<{self.dtype}").tobytes(), "little")


SINGLE = FloatPrecision(ir.IntType(32), "f4", 23, 127, 16, -105.0, 89.0, 1, 3, 6, 9)
DOUBLE = FloatPrecision(ir.IntType(64), "f8", 52, 1023, 41, -746.0, 710.0, 5, 7, 12, 19)


# ------------------------------------------------------------------------------------- the functions


def exp(code: Code, x: ir.Value, low: ir.Value | None = None) -> ir.Value:
    """Writes code for e^x of each element; with `low`, for e^(x + low), where x + low is one number of more
    bits. x is limited to the range in which the result changes.
    """
    precision = precision_of(x.type)
    limited = clamped(code, x, precision.exp_first, precision.exp_last)
    # 2^n is applied in two factors, because it may itself be out of range; only the second product rounds.
    small = reduced(code, limited, 1, 2 * precision.bias)
    bits = as_integer(code, small.shifted)
    half = code.lshr(bits, code.splat(bits.type, 1))
    r = small.r if low is None else code.fadd(small.coarse, code.fadd(small.fine, low))
    y = horner(code, r, [1, 1, *exp_tail(precision, 1)])
    y = code.fmul(y, as_exponent(code, half, x.type))
    return code.fmul(y, as_exponent(code, code.sub(bits, half), x.type))


def expm1(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for e^x - 1 of each element, accurate near zero; -1 below -40."""
    precision = precision_of(x.type)
    # Half of it, 2^(n-1) (e^r - 1) + 2^(n-1) - 1/2, because 2^n overflows before the result does.
    small = reduced(code, clamped(code, x, -40.0, precision.exp_last), 1, precision.bias - 1)
    power = as_exponent(code, as_integer(code, small.shifted), x.type)
    half = code.fused(power, scaled_expm1(code, small, 1), code.fsub(power, code.splat(x.type, 0.5)))
    return with_sign(code, code.fadd(half, half), x)


def tanh(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the hyperbolic tangent of each element: (1 - e) / (1 + e), where e = e^(-2|x|), with
    the sign of x.

    Numerator and denominator are halved, and made of c = (1 - e^(-2r)) / 2: as e = 2^n (1 - 2c), the
    numerator is 2^n c + (1 - 2^n) / 2. Each is rounded once or nearly so. If one were computed from the
    other, their errors would add up to more than 2 ulp.
    """
    precision, half = precision_of(x.type), code.splat(x.type, 0.5)
    # In float32, rounded ln 2 has an error of 2^-28. n multiplies it, but where n is large, tanh is near 1.
    unsplit = precision is SINGLE and code.processor.has_fused
    small, power = reduced_up_to(code, magnitude(code, x), -2, precision.bias, 20.0, unsplit)
    c = scaled_expm1(code, small, -2)
    above = code.fused(power, c, code.fused(power, code.fneg(half), half))
    below = code.fused(code.fneg(power), c, code.fused(power, half, half))
    return with_sign(code, code.fdiv(above, below), x)


def sigmoid(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for 1 / (1 + e^-x) of each element, as d / (d + 2^n s), where e^-x = 2^n e^-r, e^-r = s /
    d.

    With b = r coth(r / 2), an even function of r and so a short series, s = b - r and d = b + r. s is
    computed from d as it was rounded: a slightly different b changes s / d by next to nothing. Both are
    multiplied by 3/4, which keeps them below 2, where numbers lie closer; d and the sum are multiplied by
    2^-64, so that 2^n has room to grow until the quotient underflows.
    """
    precision = precision_of(x.type)
    first = code.splat(x.type, precision.exp_first)
    limited = x if has_masks(code) else code.select(code.fcmp_ordered("<", x, first), first, x)
    # Beyond 40 the result is 1, and up to there 2^(n - 64) is a normal number.
    small, power = reduced_up_to(code, limited, -1, precision.bias - 64, 40.0)
    r = small.r
    if not code.processor.has_fused:
        # Without fused operations the form below has an error of 2.07 ulp, so this is 1 / (1 + 2^n e^-r).
        c = code.splat(x.type, 2.0**-64)
        return code.fdiv(c, code.fadd(code.fused(code.fneg(power), scaled_expm1(code, small, -1), c), power))
    # Adding 2^-100 keeps the square from underflowing, which is slow on some processors.
    square = code.fused(r, r, code.splat(x.type, 2.0**-100))
    three_quarters = Fraction(3, 4)
    two, *series = (three_quarters * term for term in (2, *coth_series(precision)))
    begin = code.fused(r, code.splat(x.type, float(three_quarters)), code.splat(x.type, float(two)))
    d = code.fused(square, horner(code, square, series), begin)  # b + r, without waiting for b
    s = code.fused(r, code.splat(x.type, float(-2 * three_quarters)), d)
    above = code.fmul(d, code.splat(x.type, 2.0**-64))
    result = code.fdiv(above, code.fused(power, s, above))
    if not has_masks(code):
        return result
    return code.select(code.fcmp_unordered(">=", x, first), result, code.splat(x.type, 0.0))


def log(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the natural logarithm of each element: NaN below 0 and for NaN, -inf for 0."""
    zero, infinity = code.splat(x.type, 0.0), code.splat(x.type, inf)
    ordinary = code.and_(code.fcmp_ordered(">", x, zero), code.fcmp_ordered("<", x, infinity))
    special = code.select(code.fcmp_ordered("<", x, zero), code.splat(x.type, nan), x)
    special = code.select(code.fcmp_ordered("==", x, zero), code.splat(x.type, -inf), special)
    return code.select(ordinary, log_of_positive(code, x), special)


def log1p(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for log(1 + x), accurate near zero: log(u) + (x - (u - 1)) / u, u = 1 + x as rounded."""
    one, zero = code.splat(x.type, 1.0), code.splat(x.type, 0.0)
    u = code.fadd(x, one)
    error = code.fdiv(code.fsub(x, code.fsub(u, one)), u)
    finite = code.and_(code.fcmp_ordered(">", u, zero), code.fcmp_ordered("<", u, code.splat(x.type, inf)))
    return with_sign(code, code.fadd(log(code, u), code.select(finite, error, zero)), x)


def erf(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for the error function of each element: x + x p(x²) near zero, else 1 - e^(-x²) p(t) with
    another polynomial p and t = (|x| - 4.5) / (|x| + 2.5).
    """
    precision = precision_of(x.type)
    size = clamped(code, magnitude(code, x), None, ERF_LAST)
    square = code.fmul(size, size)
    near = code.fused(size, horner(code, square, erf_series(precision)), size)
    t = code.fdiv(
        code.fsub(size, code.splat(x.type, ERFC_CENTRE)), code.fadd(size, code.splat(x.type, ERFC_POLE))
    )
    rest = code.fmul(exp(code, code.fneg(square)), horner(code, t, erfc_polynomial(precision)))
    far = code.fsub(code.splat(x.type, 1.0), rest)
    is_near = code.fcmp_ordered("<", size, code.splat(x.type, ERF_MIDDLE))
    return with_sign(code, code.select(is_near, near, far), x)


# ------------------------------------------------------------------------- the steps of the functions


class Reduced(NamedTuple):
    """Reduced argument x of e^(scale x) = 2^n e^(scale r), where |scale r| <= ln(2) / 2.

    `shifted` has n, with a bias, in its low bits; `coarse` + `fine` is r before it was rounded.
    """

    shifted: ir.Value
    r: ir.Value
    coarse: ir.Value
    fine: ir.Value


def reduced(code: Code, x: ir.Value, scale: int, bias: int, unsplit: bool = False) -> Reduced:
    """Writes code that reduces the argument x of e^(scale x), so that it is 2^n e^(scale r) with a small r:
    |scale r| <= ln(2) / 2.

    Returns r, also as the sum of two numbers, and n + bias in the low bits of a float. bias: added to n, so
        that its bits can become an exponent.
    unsplit: whether ln 2 is one rounded constant, not the sum of two.
    """
    precision = precision_of(x.type)
    # Adding this number rounds the other operand to an integer, which is in the low bits of the sum.
    rounder = code.splat(x.type, 1.5 * 2.0**precision.fraction_bits + bias)
    shifted = code.fused(x, code.splat(x.type, float(scale / LN_2)), rounder)
    n = code.fsub(shifted, rounder)
    if unsplit:
        r = code.fused(n, code.splat(x.type, float(-LN_2 / scale)), x)
        return Reduced(shifted, r, r, code.splat(x.type, 0.0))
    high, low = (code.splat(x.type, float(-term / scale)) for term in ln_2_parts(precision))
    coarse = code.fused(n, high, x)
    return Reduced(shifted, code.fused(n, low, coarse), coarse, code.fmul(n, low))


def reduced_up_to(
    code: Code, x: ir.Value, scale: int, bias: int, last: float, unsplit: bool = False
) -> tuple[Reduced, ir.Value]:
    """Writes code that reduces the argument x of e^(scale x), as `reduced` does, where x may be large and
    scale is negative. last: the argument beyond which the result no longer changes.

    Returns r, and 2^n times the power of two that belongs to the bias; beyond `last` both may be 0.
    """
    if not has_masks(code):
        small = reduced(code, clamped(code, x, None, last), scale, bias, unsplit)
        return small, as_exponent(code, as_integer(code, small.shifted), x.type)
    small, zero = reduced(code, x, scale, bias, unsplit), code.splat(x.type, 0.0)
    inside = code.fcmp_unordered("<=", x, code.splat(x.type, last))
    power = as_integer(code, as_exponent(code, as_integer(code, small.shifted), x.type))
    power = code.select(inside, power, code.splat(power.type, 0))
    parts = (code.select(inside, each, zero) for each in (small.r, small.coarse, small.fine))
    return Reduced(small.shifted, *parts), code.bitcast(power, x.type)


def has_masks(code: Code) -> bool:
    """Tells whether instructions set numbers to zero where a comparison says so, in no time: the comparison
    is done meanwhile, where all others would wait for a limited argument.
    """
    return code.processor.has_fused and code.processor.has("avx512vl")


def scaled_expm1(code: Code, reduced: Reduced, scale: int) -> ir.Value:
    """Writes code for (e^(scale r) - 1) / scale of a reduced argument r, without cancellation: r + r² q(r) /
    scale, with the polynomial q of `exp_tail`.
    """
    r = reduced.r
    precision = precision_of(r.type)
    terms = [term / scale for term in exp_tail(precision, scale)]
    if precision is SINGLE and code.processor.has_fused:
        # r² as r (r + 2^-40), which underflows only where r is below 2^-86: r does not wait for the terms.
        square = code.fmul(r, code.fadd(r, code.splat(r.type, 2.0**-40)))
        tail = code.fused(square, horner(code, r, terms[2:]), horner(code, r, terms[:2]))
        return code.fused(square, tail, r)
    tail = horner(code, r, terms)
    # Not r * r first: it may underflow, which slows the processor down, although r itself does not.
    tail = code.fmul(r, tail)
    if precision is SINGLE:
        return code.fused(tail, r, r)
    # With r as rounded tanh has an error of 2.1 ulp. (Not in float32: all numbers from 2^-10 on were tested.)
    return code.fadd(reduced.coarse, code.fused(tail, r, reduced.fine))


def log_of_positive(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for log(x), 0 < x < inf, as in fdlibm (Sun Microsystems, 1993). With x = 2^k (1 + f), it is
    k ln 2 + log(1 + f). With s = f / (2 + f), log(1 + f) = 2 atanh(s), where 2 s = f - s f = f - (f²/2 - s
    f²/2), so that the rounding of s has little effect.
    """
    precision = precision_of(x.type)
    k, f = scaled(code, x)
    s = code.fdiv(f, code.fadd(f, code.splat(x.type, 2.0)))
    z = code.fmul(s, s)
    half_square = code.fmul(code.fmul(f, code.splat(x.type, 0.5)), f)
    series = code.fmul(z, horner(code, z, log_series(precision)))
    high, low = (code.splat(x.type, float(term)) for term in ln_2_parts(precision))
    correction = code.fused(s, code.fadd(half_square, series), code.fmul(k, low))
    return code.fused(k, high, code.fsub(f, code.fsub(half_square, correction)))


def scaled(code: Code, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Writes code for k and f of x = 2^k (1 + f), 1 + f between sqrt(1/2) and sqrt(2), for 0 < x < inf."""
    precision = precision_of(x.type)
    tiny = code.fcmp_ordered("<", x, code.splat(x.type, 2.0 ** (1 - precision.bias)))
    extra_bits = precision.fraction_bits + 1
    x = code.select(tiny, code.fmul(x, code.splat(x.type, 2.0**extra_bits)), x)
    bits = as_integer(code, x)
    least = code.splat(bits.type, precision.bits(sqrt(0.5)))
    bits = code.add(bits, code.sub(code.splat(bits.type, precision.bits(1.0)), least))
    exponent = code.lshr(bits, code.splat(bits.type, precision.fraction_bits))
    fraction = code.and_(bits, code.splat(bits.type, 2**precision.fraction_bits - 1))
    # An integer in the low bits of this float becomes a float when the float is subtracted.
    large = 2.0**precision.fraction_bits
    k = code.bitcast(code.or_(exponent, code.splat(bits.type, precision.bits(large))), x.type)
    offset = code.splat(x.type, large + precision.bias)
    k = code.fsub(k, code.select(tiny, code.splat(x.type, large + precision.bias + extra_bits), offset))
    return k, code.fsub(code.bitcast(code.add(fraction, least), x.type), code.splat(x.type, 1.0))


def precision_of(type_: ir.Type) -> FloatPrecision:
    """Returns the constants of float32 or float64 for an LLVM type, scalar or vector."""
    return SINGLE if is_single(type_) else DOUBLE


def as_integer(code: Code, x: ir.Value) -> ir.Value:
    """Writes code that takes the bits of floats, scalar or vector, as integers of the same size."""
    integer = precision_of(x.type).integer
    return code.bitcast(
        x, ir.VectorType(integer, x.type.count) if isinstance(x.type, ir.VectorType) else integer
    )


def as_exponent(code: Code, bits: ir.Value, type_: ir.Type) -> ir.Value:
    """Writes code for the float 2^(n - bias), where n is in the lowest bits of the integers `bits`: they are
    shifted to the exponent's bits. type_: the LLVM type of the result.
    """
    return code.bitcast(code.shl(bits, code.splat(bits.type, precision_of(type_).fraction_bits)), type_)


def clamped(code: Code, x: ir.Value, first: float | None, last: float) -> ir.Value:
    """Writes code that limits x to [first, last], or to at most `last` if `first` is None; NaN stays NaN."""
    if first is not None:
        bound = code.splat(x.type, first)
        x = code.select(code.fcmp_ordered("<", x, bound), bound, x)
    bound = code.splat(x.type, last)
    return code.select(code.fcmp_ordered(">", x, bound), bound, x)


def magnitude(code: Code, x: ir.Value) -> ir.Value:
    """Writes code for |x| of each element of a register of floats."""
    return code.intrinsic("fabs", x.type, [x])


def with_sign(code: Code, x: ir.Value, sign: ir.Value) -> ir.Value:
    """Writes code for |x| with the sign of `sign`, element by element."""
    return code.intrinsic("copysign", x.type, [x, sign])


def horner(code: Code, x: ir.Value, coefficients: Sequence[Fraction | int]) -> ir.Value:
    """Writes code for the value, at `x`, of the polynomial with these coefficients, the constant first."""
    result: ir.Value = code.splat(x.type, float(coefficients[-1]))
    for coefficient in reversed(coefficients[:-1]):
        result = code.fused(result, x, code.splat(x.type, float(coefficient)))
    return result


# ---------------------------------------------------------------------- the coefficients of the series


def ln_2_parts(precision: FloatPrecision) -> tuple[Fraction, Fraction]:
    """Splits ln 2 into a number of few bits, whose product with an exponent is exact, and the rest."""
    high = Fraction(round(LN_2 * 2**precision.ln_2_bits), 2**precision.ln_2_bits)
    return high, LN_2 - high


@cache
def exp_tail(precision: FloatPrecision, scale: int) -> list[Fraction]:
    """Returns the coefficients of q where e^(scale r) = 1 + scale r + r² q(r), for |scale r| <= ln(2) / 2. In
    single precision they are fitted ones, else those of a shortened Taylor series.
    """
    if precision is SINGLE:
        tail = [Fraction(term) for term in EXP_TAIL_SINGLE]
    else:
        tail = economised([Fraction(1, factorial(k + 2)) for k in range(16)], Fraction(35, 100), 10)
    return [term * scale ** (k + 2) for k, term in enumerate(tail)]


@cache
def coth_series(precision: FloatPrecision) -> list[Fraction]:
    """Returns the coefficients of the polynomial p where r coth(r / 2) = 2 + r² p(r²), for |r| <= ln(2) / 2.
    It is the series of 2 cosh(r / 2) divided by that of sinh(r / 2) / (r / 2). precision: has the degree of
    p, by floating-point type.
    """
    quotient = list[Fraction]()
    for k in range(precision.coth_degree + 10):
        known = sum(quotient[k - j] / (4**j * factorial(2 * j + 1)) for j in range(1, k + 1))
        quotient.append(Fraction(2, 4**k * factorial(2 * k)) - known)
    return economised_even(quotient[1:], Fraction(35, 100), precision.coth_degree)


@cache
def log_series(precision: FloatPrecision) -> list[Fraction]:
    """Returns the coefficients of p in 2 atanh(s) = 2 s + s³ p(s²), |s| <= 0.172, of `precision`'s degree."""
    series = [Fraction(2, 2 * k + 3) for k in range(precision.log_degree + 8)]
    return economised_even(series, Fraction(172, 1000), precision.log_degree - 1)


@cache
def erf_series(precision: FloatPrecision) -> list[Fraction]:
    """Returns the coefficients of the polynomial p where erf(x) = x + x p(x²), for |x| up to `ERF_MIDDLE`
    (1). precision: has the degree of p, by floating-point type.
    """
    series = [
        TWO_OVER_ROOT_PI * Fraction((-1) ** k, factorial(k) * (2 * k + 1))
        for k in range(precision.erf_degree + 12)
    ]
    series[0] -= 1
    return economised_even(series, Fraction(ERF_MIDDLE), precision.erf_degree)


@cache
def erfc_polynomial(precision: FloatPrecision) -> list[Fraction]:
    """Returns the coefficients of the polynomial p where exp(x²) erfc(x) = p(t), t = (x - 4.5) / (x + 2.5),
    from as many terms of `ERFC_TAIL` as the precision needs.
    """
    coefficients = ERFC_TAIL[: precision.erfc_degree + 1]
    result = [Fraction(0)] * len(coefficients)
    for n, factor in enumerate(coefficients):
        for k, term in enumerate(chebyshev(n)):
            result[k] += Fraction(factor) * term
    return result
