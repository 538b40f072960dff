"""NumPy's ufuncs that a step computes by several operations, such as np.arcsin by an arctan and a root.

Edges are NumPy's: infinities, NaN, and zeros of either sign. A number at which a part of a formula has no
derivative is replaced ahead of that part, so that no gradient is NaN where the function has one.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced, apply, refuse
from stepnet.compiler.trace.ufuncs import float_power, in_loop, power_by_number

# NumPy returns a traced value for a traced value, which its stubs do not know.
numpy: Any = np

LARGE = 1e9
"""From here on x² + 1 is x² in float64."""

LN_2 = math.log(2)
LN_2_PARTS = 2977044471 * 2.0**-32, 1.9082149292705878e-10
"""log(2) as a number of 32 bits, whose products with whole numbers are exact, and the rest."""

MOST_EXPONENT = 1100.0
"""2 to this power overflows in float64, and 2 to minus this power is 0."""


def is_negative(x: Traced) -> Traced:
    """Tells where a float has a minus sign: -0.0 has one, NaN has none."""
    return numpy.where(x == 0, apply("divide", 1, x), x) < 0


def signs(x: Traced) -> Traced:
    """Computes -1 where a float has a minus sign, and 1 elsewhere."""
    return numpy.where(is_negative(x), x.dtype.type(-1), x.dtype.type(1))


def sign_bit(x: Any) -> Traced:
    """Computes np.signbit in a step."""
    return is_negative(*in_loop(np.signbit, x))


def copy_sign(x: Any, y: Any) -> Traced:
    """Computes np.copysign in a step: |x| with the sign of y."""
    x, y = in_loop(np.copysign, x, y)
    return numpy.absolute(x) * signs(y)


def is_infinite(x: Any) -> Traced:
    """Computes np.isinf in a step: only infinities are as large."""
    (x,) = in_loop(np.isinf, x)
    return numpy.absolute(x) == math.inf if x.type.is_float else numpy.zeros_like(x, dtype=bool)


def is_finite(x: Any) -> Traced:
    """Computes np.isfinite in a step: all but infinities and NaN are smaller."""
    (x,) = in_loop(np.isfinite, x)
    return numpy.absolute(x) < math.inf if x.type.is_float else numpy.ones_like(x, dtype=bool)


# ---- rounding ----------------------------------------------------------------------------------------------


def truncate(x: Any) -> Traced:
    """Computes np.trunc in a step: x rounded towards zero."""
    (x,) = in_loop(np.trunc, x)
    return numpy.where(x < 0, np.ceil(x), np.floor(x)) if x.type.is_float else x


def quotient_and_remainder(x: Any, y: Any) -> tuple[Traced, Traced]:
    """Computes np.divmod in a step: x // y and x % y."""
    x, y = in_loop(np.floor_divide, x, y)
    return x // y, x % y


def remainder_of_quotient(x: Any, y: Any) -> Traced:
    """Computes np.fmod in a step: the remainder with the sign of x."""
    x, y = in_loop(np.fmod, x, y)
    if x.type.is_float:
        sign = signs(x)
        return sign * numpy.remainder(x * sign, numpy.absolute(y))
    remainder = x % y
    return numpy.where((remainder != 0) & ((x < 0) != (y < 0)), remainder - y, remainder)


# ---- powers and logarithms ---------------------------------------------------------------------------------


def logarithm(ufunc: np.ufunc, base: float) -> Callable[[Any], Traced]:
    """Makes the rule for np.log2 or np.log10 in a step. ufunc: the function. base: of its logarithm."""

    def rule(x: Any) -> Traced:
        """Computes the logarithm to the base."""
        return apply("divide", apply("log", *in_loop(ufunc, x)), math.log(base))

    return rule


def power_of_two(x: Any) -> Traced:
    """Computes np.exp2 in a step, in float64: 2^n e^(f log 2), where n + f is x and n is whole."""
    (x,) = in_loop(np.exp2, x)
    limited = numpy.clip(x.astype(np.float64), -MOST_EXPONENT, MOST_EXPONENT)
    whole = numpy.floor(limited)
    high, low = LN_2_PARTS
    result = numpy.exp(whole * high) * numpy.exp(whole * low + (limited - whole) * LN_2)
    return result.astype(x.dtype)


def cube_root(x: Any) -> Traced:
    """Computes np.cbrt in a step: |x| ** (1/3) and a step of Newton's, with the sign of x."""
    (x,) = in_loop(np.cbrt, x)
    sign = signs(x)
    size = x * sign
    root = float_power(size, 1 / 3)
    ordinary = (size > 0) & (size < math.inf)
    y, inside = numpy.where(ordinary, root, 1.0), numpy.where(ordinary, size, 1.0)
    return sign * numpy.where(ordinary, y - (y - inside / (y * y)) / 3, root)


def power(x: Any, exponent: Any) -> Traced:
    """Computes x ** exponent in a step, as NumPy does: by a constant number, or by a value or an array.
    Raises `StepError` for integers to a power that is a value or an array of integers.
    """
    if not isinstance(exponent, Traced) and np.ndim(exponent) == 0:
        return power_by_number(x, exponent)
    x, exponent = in_loop(np.power, x, exponent)
    if not x.type.is_float:
        raise refuse(
            "a power of integers by integers that are values or an array is not an operation of a step: cast "
            "one of them with .astype(np.float64)"
        )
    return power_of_floats(*(value.astype(np.float64) for value in (x, exponent))).astype(x.dtype)


def power_of_floats(x: Traced, exponent: Traced) -> Traced:
    """Computes x to the power of exponent, both float64 values: e^(exponent log|x|), with the sign of x for
    odd exponents, and NaN for a negative number and an exponent that is no integer.
    """
    sign = signs(x)
    size = x * sign
    of_zero = numpy.where(exponent > 0, 0.0, numpy.where(exponent < 0, math.inf, exponent))
    of_zero = numpy.where(exponent == 0, 1.0, numpy.where(exponent == 1, size, of_zero))
    result = numpy.exp(exponent * numpy.log(numpy.where(size == 0, 1.0, size)))
    is_one = ((exponent == 0) & ~(size < math.inf)) | ((x == 1) & ~(numpy.absolute(exponent) < math.inf))
    is_one = is_one | ((x == -1) & (numpy.absolute(exponent) == math.inf))
    result = numpy.where(is_one, 1.0, numpy.where(size == 0, of_zero, result))
    is_whole = numpy.floor(exponent) == exponent
    signed = numpy.where(exponent % 2 == 1, sign * result, result)
    return numpy.where((x < 0) & (size < math.inf) & ~is_whole, math.nan, signed)


def sum_in_logarithms(x: Any, y: Any) -> Traced:
    """Computes np.logaddexp in a step: log(e^x + e^y), without overflow."""
    x, y = in_loop(np.logaddexp, x, y)
    return joined_logarithms(x, y, 1.0)


def sum_in_binary_logarithms(x: Any, y: Any) -> Traced:
    """Computes np.logaddexp2 in a step: log2(2^x + 2^y), without overflow."""
    x, y = in_loop(np.logaddexp2, x, y)
    return joined_logarithms(x, y, LN_2)


def joined_logarithms(x: Traced, y: Traced, unit: float) -> Traced:
    """Computes the logarithm of the sum of two numbers from theirs, x and y. unit: the logarithm of the base.

    Where x and y are equal, each has half of the derivative.
    """
    same = (x == y) & (numpy.absolute(x) == math.inf)
    away = numpy.where(same, 0.0, x - y)
    below = numpy.where(away > 0, -away, away)
    return numpy.where(x > y, x, y) + numpy.log1p(numpy.exp(below * unit)) / unit


# ---- trigonometry ------------------------------------------------------------------------------------------


def arc_sine(x: Any) -> Traced:
    """Computes np.arcsin in a step: the angle whose tangent is x / sqrt(1 - x²)."""
    (x,) = in_loop(np.arcsin, x)
    return numpy.arctan(x / numpy.sqrt((1 - x) * (1 + x)))


def arc_cosine(x: Any) -> Traced:
    """Computes np.arccos in a step: twice the angle whose tangent is sqrt((1 - x) / (1 + x))."""
    (x,) = in_loop(np.arccos, x)
    return 2 * numpy.arctan(numpy.sqrt((1 - x) / (1 + x)))


def angle_of_point(y: Any, x: Any) -> Traced:
    """Computes np.arctan2 in a step: the angle of the point (x, y), from the quotient that is at most 1."""
    y, x = in_loop(np.arctan2, y, x)
    far = (numpy.absolute(y) == math.inf) & (numpy.absolute(x) == math.inf)
    rise, run = (numpy.where(far, signs(value), value) for value in (y, x))
    is_steep = numpy.absolute(rise) > numpy.absolute(run)
    over, under = numpy.where(is_steep, run, rise), numpy.where(is_steep, rise, run)
    angle = numpy.arctan(over / numpy.where(under == 0, 1.0, under))
    flat = numpy.where(is_negative(run), angle + signs(rise) * math.pi, angle)
    return numpy.where(is_steep, signs(rise) * (math.pi / 2) - angle, flat)


def inverse_hyperbolic_sine(x: Any) -> Traced:
    """Computes np.arcsinh in a step: log(|x| + sqrt(x² + 1)), with the sign of x."""
    (x,) = in_loop(np.arcsinh, x)
    sign = signs(x)
    size = x * sign
    small = numpy.where(size > LARGE, 1.0, size)
    square = small * small
    return sign * beyond_large(size, numpy.log1p(small + square / (1 + numpy.sqrt(square + 1))))


def inverse_hyperbolic_cosine(x: Any) -> Traced:
    """Computes np.arccosh in a step: log(x + sqrt(x² - 1))."""
    (x,) = in_loop(np.arccosh, x)
    away = numpy.where(x > LARGE, 2.0, x) - 1
    return beyond_large(x, numpy.log1p(away + numpy.sqrt(away) * numpy.sqrt(away + 2)))


def beyond_large(x: Traced, otherwise: Traced) -> Traced:
    """Computes log(2 x) for large x, and `otherwise` for others."""
    return numpy.where(x > LARGE, numpy.log(numpy.where(x > LARGE, x, 1.0)) + LN_2, otherwise)


def inverse_hyperbolic_tangent(x: Any) -> Traced:
    """Computes np.arctanh in a step: half of log((1 + x) / (1 - x))."""
    (x,) = in_loop(np.arctanh, x)
    return (numpy.log1p(x) - numpy.log1p(-x)) * 0.5


def hypotenuse(x: Any, y: Any) -> Traced:
    """Computes np.hypot in a step: sqrt(x² + y²), of numbers divided by the larger one, against overflow."""
    x, y = in_loop(np.hypot, x, y)
    size = numpy.maximum(numpy.absolute(x), numpy.absolute(y))
    scale = apply("detach", numpy.where((size > 0) & (size < math.inf), size, 1.0))
    a, b = x / scale, y / scale
    is_far = (numpy.absolute(x) == math.inf) | (numpy.absolute(y) == math.inf)
    return numpy.where(is_far, math.inf, scale * numpy.sqrt(a * a + b * b))


def in_units(ufunc: np.ufunc, unit: float) -> Callable[[Any], Traced]:
    """Makes the rule for a ufunc that multiplies by a number, such as np.degrees. unit: the number."""
    return lambda x: apply("multiply", *in_loop(ufunc, x), unit)


# ---- choices -----------------------------------------------------------------------------------------------


def extreme_but_nan(ufunc: np.ufunc, operation: str) -> Callable[[Any, Any], Traced]:
    """Makes the rule for np.fmax or np.fmin in a step, which return the other operand for NaN.

    ufunc: this function. operation: "maximum" or "minimum".
    """

    def rule(x: Any, y: Any) -> Traced:
        """Computes the larger or smaller of two numbers, ignoring a NaN."""
        x, y = in_loop(ufunc, x, y)
        return numpy.where(y != y, x, numpy.where(x != x, y, apply(operation, x, y)))

    return rule


def unit_step(x: Any, at_zero: Any) -> Traced:
    """Computes np.heaviside in a step: 0 for negative x, 1 for positive x, and `at_zero` for 0."""
    x, at_zero = in_loop(np.heaviside, x, at_zero)
    beside = numpy.where(x > 0, 1.0, numpy.where(x < 0, 0.0, x))
    return numpy.where(x == 0, at_zero, beside)


COMPOSED: dict[np.ufunc, Callable[..., Any]] = {
    np.signbit: sign_bit,
    np.copysign: copy_sign,
    np.isinf: is_infinite,
    np.isfinite: is_finite,
    np.trunc: truncate,
    np.divmod: quotient_and_remainder,
    np.fmod: remainder_of_quotient,
    np.log2: logarithm(np.log2, 2),
    np.log10: logarithm(np.log10, 10),
    np.exp2: power_of_two,
    np.cbrt: cube_root,
    np.power: power,
    np.logaddexp: sum_in_logarithms,
    np.logaddexp2: sum_in_binary_logarithms,
    np.arcsin: arc_sine,
    np.arccos: arc_cosine,
    np.arctan2: angle_of_point,
    np.arcsinh: inverse_hyperbolic_sine,
    np.arccosh: inverse_hyperbolic_cosine,
    np.arctanh: inverse_hyperbolic_tangent,
    np.hypot: hypotenuse,
    np.degrees: in_units(np.degrees, 180 / math.pi),
    np.rad2deg: in_units(np.rad2deg, 180 / math.pi),
    np.radians: in_units(np.radians, math.pi / 180),
    np.deg2rad: in_units(np.deg2rad, math.pi / 180),
    np.fmax: extreme_but_nan(np.fmax, "maximum"),
    np.fmin: extreme_but_nan(np.fmin, "minimum"),
    np.heaviside: unit_step,
}
"""The ufuncs that several operations compute. A ufunc that is the meaning of one operation is not here."""
