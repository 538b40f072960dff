"""Elementary functions of numbers with a fixed point: sigmoid, tanh and exp, in int32 alone.

    e^-a = 2^-n 2^-f      a log2(e) = n + f, with a polynomial for 2^-f
    sigmoid(a) = 1 / (1 + e^-a)      tanh(a) = (1 - e^-2a) / (1 + e^-2a)

Arguments and results have 15 digits behind the point. `tests/compiler/targets/frame/test_fixed.py` measures
the largest differences on all arguments, in units of the last of these digits.
"""

from functools import cache

from stepnet.compiler.targets.frame.fixed import saturated, shifted
from stepnet.compiler.targets.frame.program import Routine
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder

DIGITS = 15
"""The digits behind the point of arguments and results."""
ONE = 1 << DIGITS
MOST = 20 << DIGITS
"""Arguments with larger magnitudes give the same as this one."""
LOG2_E = 47274
"""log2(e) 2^15"""
POLYNOMIAL = (-45422, 15699, -3498, 453)
"""c1 2^16, c2 2^16, ... of 2^-f = 1 + f (c1 + f (c2 + ...)), for f from 0 to 1."""


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


def sigmoid(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records 1 / (1 + e^-x), of the magnitude of x or of what is left to 1."""
    is_below, a = magnitude(code, saturated(code, x, MOST))
    one = code.constant("int32", ONE)
    below = code.add(one, shifted(code, decayed(code, a), DIGITS))
    upper = quotient(code, code.constant("int32", 1 << 30), below)
    return code.select(is_below, code.sub(one, upper), upper)


def tanh(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records (1 - e^-2a) / (1 + e^-2a) of the magnitude a of x, with the sign of x."""
    is_below, a = magnitude(code, saturated(code, x, MOST // 2))
    e = decayed(code, code.shl(a, code.constant("int32", 1)))
    below = code.add(code.constant("int32", ONE), shifted(code, e, DIGITS))
    upper = quotient(code, code.sub(code.constant("int32", 1 << 30), e), below)
    return code.select(is_below, code.neg(upper), upper)


def exp(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records e^x, of an x that is not above 0."""
    zero = code.constant("int32", 0)
    a = code.neg(code.select(code.icmp_signed(">", x, zero), zero, saturated(code, x, MOST)))
    return shifted(code, decayed(code, a), DIGITS)


FUNCTIONS = {"sigmoid": sigmoid, "tanh": tanh, "exp": exp}


@cache
def fixed_routine(operation: str) -> Routine:
    """Returns the routine of an elementary function, of numbers with 15 digits behind the point.

    >>> fixed_routine("tanh").name, len(fixed_routine("tanh").body)
    ('tanh_i32', 63)
    """
    code, x = Recorder(1), FrameRegister(0, "int32")
    result = FUNCTIONS[operation](code, x)
    return Routine(f"{operation}_i32", ("int32",), tuple(code.body), result.number)
