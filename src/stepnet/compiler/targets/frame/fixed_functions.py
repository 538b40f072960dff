"""Elementary functions of numbers with a fixed point.

    e^-a = 2^-n 2^-f      a log2(e) = n + f, with a polynomial for 2^-f
    tanh(x) = t + s d (1 - t d)      t is from a table, in the middle of 1/16; s = 1 - t^2; d is the distance
                                     to there
    sigmoid(x) = (1 + tanh(x / 2)) / 2
    erf(a) = 1 - t q(t) e^(-a a)      t = 1 / (1 + p a)      (Abramowitz and Stegun, 1964, 7.1.26)
    log2(m) = n + log2(1 + u)      m = 2^n (1 + u), with a polynomial for log2(1 + u) / u

Arguments and results have 15 digits behind the point, but where a function says otherwise. The first two are
in int32 alone; erf and log2 have polynomials in int64. `tests/compiler/targets/frame/test_fixed.py` measures
the largest differences on all arguments, in units of the last of these digits.
"""

import math
from functools import cache

from stepnet.compiler.targets.frame.fixed import WIDE, saturated, shifted
from stepnet.compiler.targets.frame.program import Routine
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder

DIGITS = 15
"""The digits behind the point of arguments and results."""
ONE = 1 << DIGITS
MOST = 20 << DIGITS
"""Arguments with larger magnitudes give the same as this one."""
LOG2_E = 47274
"""log2(e) 2^15"""
TABLE, TABLE_SIZE, STEP_DIGITS = "k_tanh", 256, 4
"""The name of the table of tanh, its elements, and the digits behind the point of the steps between them."""
POLYNOMIAL = (-45422, 15699, -3498, 453)
"""c1 2^16, c2 2^16, ... of 2^-f = 1 + f (c1 + f (c2 + ...)), for f from 0 to 1."""
LOG2 = (1549079795, -774322573, 512707816, -363329749, 229719775, -101604763, 21492714)
"""c0 2^30, c1 2^30, ... of log2(1 + u) = u (c0 + u (c1 + ...)), for u from 0 to 1: interpolated at Chebyshev
nodes.
"""
LOG2_DIGITS = 24
"""The digits behind the point of log2."""
ERF = (68405298, -76369011, 381557846, -390077527, 284918850)
"""a1 2^28, a2 2^28, ... of q."""
ERF_POLE = 87937414
"""p 2^28"""


def decayed(code: Recorder, a: FrameRegister) -> FrameRegister:
    """Records 2^30 e^-a. a: from 0 to `MOST`, with 15 digits behind the point."""

    def number(value: int) -> FrameRegister:
        """Records a constant."""
        return code.constant("int32", value)

    constant = number(LOG2_E)
    high = code.mul(code.lshr(a, number(8)), constant)  # a LOG2_E has more than 32 bits: in two parts
    low = code.mul(code.and_(a, number(255)), constant)
    t = shifted(code, code.add(code.shl(high, number(1)), code.lshr(low, number(7))), 8)
    f = code.and_(t, number(ONE - 1))
    p = number(POLYNOMIAL[-1])
    for coefficient in POLYNOMIAL[-2::-1]:
        p = code.add(shifted(code, code.mul(p, f), DIGITS), number(coefficient))
    power = code.add(shifted(code, code.mul(p, f), 1), number(1 << 30))
    return code.lshr(power, code.lshr(t, number(DIGITS)))


def magnitude(code: Recorder, x: FrameRegister) -> tuple[FrameRegister, FrameRegister]:
    """Records whether a number is below 0, and its magnitude."""
    is_below = code.icmp_signed("<", x, code.constant("int32", 0))
    return is_below, code.select(is_below, code.neg(x), x)


def quotient(code: Recorder, above: FrameRegister, below: FrameRegister) -> FrameRegister:
    """Records the nearest integer to the quotient of numbers that are not negative."""
    one = code.constant(below.dtype, 1)
    return code.sdiv(code.add(above, code.lshr(below, one)), below)


def curved(code: Recorder, x: FrameRegister, more: int) -> FrameRegister:
    """Records 2^30 tanh(x / 2^more) + 2^14. x: with 15 digits behind the point."""

    def number(value: int) -> FrameRegister:
        """Records a constant."""
        return code.constant("int32", value)

    def right(value: FrameRegister, count: int) -> FrameRegister:
        """Records a shift to the right."""
        return code.record("right_shift", "int32", value, number(count))

    half, digits = TABLE_SIZE // 2, DIGITS + more
    bits = digits - STEP_DIGITS
    x = code.minimum(code.maximum(x, number(-half << bits)), number((half << bits) - 1))
    table = code.element(TABLE, code.add(right(x, bits), number(half)))
    d = code.sub(code.and_(x, number((1 << bits) - 1)), number(1 << (bits - 1)))
    t = right(table, DIGITS)
    slope = right(code.sub(number(1 << 30), code.mul(t, t)), DIGITS)
    bend = code.sub(number(ONE), right(code.mul(t, d), digits))
    return code.add(table, right(code.mul(slope, right(code.mul(d, bend), digits - 5)), 5))


def sigmoid(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records 1 / (1 + e^-x)."""
    half = shifted(code, code.sub(curved(code, x, 1), code.constant("int32", 1 << 14)), DIGITS + 1)
    return code.add(half, code.constant("int32", ONE // 2))


def tanh(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the hyperbolic tangent."""
    count = code.constant("int32", DIGITS)
    return code.record("right_shift", "int32", curved(code, x, 0), count)


def polynomial(code: Recorder, x: FrameRegister, coefficients: tuple[int, ...], digits: int) -> FrameRegister:
    """Records c0 + x (c1 + x (c2 + ...)) in int64, of an x with so many digits behind the point."""
    total = code.constant("int64", coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = code.add(shifted(code, code.mul(total, x), digits), code.constant("int64", coefficient))
    return total


def erf(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the error function of the magnitude of x, with the sign of x."""
    is_below, a = magnitude(code, saturated(code, x, 4 << DIGITS))
    long = code.record("convert", "int64", a)
    below = shifted(code, code.mul(long, code.constant("int64", ERF_POLE)), DIGITS)
    t = quotient(code, code.constant("int64", 1 << 56), code.add(below, code.constant("int64", 1 << 28)))
    square = code.record("convert", "int32", shifted(code, code.mul(long, long), DIGITS))
    e = code.record("convert", "int64", decayed(code, square))
    rest = shifted(code, code.mul(polynomial(code, t, ERF, 28), t), 28)
    left = code.record("convert", "int32", shifted(code, code.mul(rest, e), 58 - DIGITS))
    upper = code.sub(code.constant("int32", ONE), left)
    return code.select(is_below, code.neg(upper), upper)


def log2(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records log2 of a whole number from 1 to 2^30, with `LOG2_DIGITS` behind the point."""
    exponent = code.constant("int32", 30)
    for count in (16, 8, 4, 2, 1):
        is_small = code.icmp_signed("<", x, code.constant("int32", 1 << (31 - count)))
        shift = code.constant("int32", count)
        x = code.select(is_small, code.shl(x, shift), x)
        exponent = code.select(is_small, code.sub(exponent, shift), exponent)
    u = code.record("convert", "int64", code.sub(x, code.constant("int32", 1 << 30)))
    part = shifted(code, code.mul(polynomial(code, u, LOG2, 30), u), 60 - LOG2_DIGITS)
    whole = code.shl(exponent, code.constant("int32", LOG2_DIGITS))
    return code.add(whole, code.record("convert", "int32", part))


def sqrt(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the square root of a whole number up to 2^30, as the nearest one; 0 for those below 0."""
    zero, root = code.constant("int32", 0), code.constant("int32", 0)
    x = code.select(code.icmp_signed("<", x, zero), zero, saturated(code, x, WIDE))
    for digit in range(14, -1, -1):
        trial = code.or_(root, code.constant("int32", 1 << digit))
        root = code.select(code.icmp_signed("<=", code.mul(trial, trial), x), trial, root)
    is_above = code.icmp_signed(">", code.sub(x, code.mul(root, root)), root)
    return code.select(is_above, code.add(root, code.constant("int32", 1)), root)


FUNCTIONS = {
    "decayed": decayed,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "erf": erf,
    "log2": log2,
    "sqrt": sqrt,
}
"""The routines by their names."""
BOUNDED = ("sigmoid", "tanh", "erf")
"""The operations whose results have `DIGITS` behind the point, as they are never larger than 1."""


def tanh_table() -> tuple[int, ...]:
    """Returns 2^30 tanh(a) + 2^14 in the middle of each step, where 2^14 is half of the unit cut off."""
    middles = [(place + 0.5 - TABLE_SIZE / 2) / 2**STEP_DIGITS for place in range(TABLE_SIZE)]
    return tuple(round(math.tanh(middle) * 2**30) + (1 << 14) for middle in middles)


@cache
def fixed_routine(operation: str) -> Routine:
    """Returns the routine of an elementary function.

    >>> fixed_routine("tanh").name, len(fixed_routine("tanh").body)
    ('tanh_i32', 31)
    """
    code, x = Recorder(1), FrameRegister(0, "int32")
    result = FUNCTIONS[operation](code, x)
    tables = {TABLE: tanh_table()} if operation in ("sigmoid", "tanh") else {}
    return code.routine(f"{operation}_i32", result, tables)
