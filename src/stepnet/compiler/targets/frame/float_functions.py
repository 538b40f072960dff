"""Routines of floats: elementary functions, powers with constant exponents, and remainders of float32.

A remainder is exact, as that of C's `fmod`: a long division of the mantissas in integers, `STEP` binary
digits of the difference of the exponents at a time, in so many steps that the largest difference is reached.
"""

from functools import cache
from math import nan
from typing import Any, cast

from stepnet.compiler.targets.cpu.writing.elementary import ELEMENTARY
from stepnet.compiler.targets.cpu.writing.powers import power
from stepnet.compiler.targets.frame.angles import cos, sin, tan
from stepnet.compiler.targets.frame.program import Routine
from stepnet.compiler.targets.frame.recorder import FMOD, FrameRegister, Recorder

FUNCTIONS: dict[str, Any] = {**ELEMENTARY, "sin": sin, "cos": cos, "tan": tan}
"""The elementary functions by the names of their operations."""
STEP, STEPS = 38, 7
FRACTION_BITS, BIAS = 23, 127


@cache
def routine_of(operation: str, dtype: str, exponent: float | None = None) -> Routine:
    """Returns the routine of an elementary function, or of a power with a constant exponent.

    >>> routine_of("sigmoid", "float32").name, len(routine_of("sigmoid", "float32").body)
    ('sigmoid_f32', 43)
    """
    code, x = Recorder(1), FrameRegister(0, dtype)
    name = f"{operation}_{dtype[0]}{dtype[-2:]}"
    if exponent is None:
        result = FUNCTIONS[operation](code, x)
    else:
        result = cast("Any", power)(code, x, exponent)
        name += "_" + f"{exponent:g}".replace("-", "minus_").replace(".", "_").replace("+", "")
    return code.routine(name, result)


@cache
def fmod_routine() -> Routine:
    """Returns the routine of x - trunc(x / y) y of float32, which is exact.

    >>> fmod_routine().name, fmod_routine().parameters
    ('fmod_f32', ('float32', 'float32'))
    """
    code, x, y = Recorder(2), FrameRegister(0, "float32"), FrameRegister(1, "float32")
    sizes = [code.record("absolute", "float32", each) for each in (x, y)]
    (above, first), (below, second) = (parts(code, each) for each in sizes)
    zero, one = code.constant("int64", 0), code.constant("int64", 1)
    divisor = code.select(code.icmp_signed("==", below, zero), one, below)
    left, rest = code.srem(above, divisor), code.sub(first, second)
    most = code.constant("int64", STEP)
    for _ in range(STEPS):
        rest = code.select(code.icmp_signed("<", rest, zero), zero, rest)
        count = code.select(code.icmp_signed(">", rest, most), most, rest)
        left, rest = code.srem(code.shl(left, count), divisor), code.sub(rest, count)
    number = code.record("convert", "float32", left)
    half = code.lshr(second, one)
    for part in (half, code.sub(second, half)):  # 2^(second - 150), in two factors
        number = code.fmul(number, two_to(code, part))
    number = code.select(code.fcmp_ordered("<", *sizes), sizes[0], number)
    number = code.record("copysign", "float32", number, x)
    zero_or_nan = code.fsub(x, x)
    is_known = code.and_(
        code.fcmp_ordered("==", zero_or_nan, code.constant("float32", 0.0)),
        code.fcmp_ordered(">", sizes[1], code.constant("float32", 0.0)),
    )
    result = code.select(is_known, number, code.constant("float32", nan))
    return code.routine(FMOD, result)


def parts(code: Recorder, size: FrameRegister) -> tuple[FrameRegister, FrameRegister]:
    """Records the mantissa of a magnitude as a whole number, and its exponent, from 1 on: the number is the
    mantissa times 2^(exponent - 150).
    """
    bits = code.record("convert", "int64", code.record("bits", "int32", size))
    exponent = code.lshr(bits, code.constant("int64", FRACTION_BITS))
    fraction = code.and_(bits, code.constant("int64", 2**FRACTION_BITS - 1))
    is_small = code.icmp_signed("==", exponent, code.constant("int64", 0))
    whole = code.or_(fraction, code.constant("int64", 2**FRACTION_BITS))
    one = code.constant("int64", 1)
    return code.select(is_small, fraction, whole), code.select(is_small, one, exponent)


def two_to(code: Recorder, part: FrameRegister) -> FrameRegister:
    """Records 2^(part - 75), of a part from 0 to 128."""
    shifted = code.add(part, code.constant("int64", BIAS - (BIAS + FRACTION_BITS) // 2))
    bits = code.shl(code.record("convert", "int32", shifted), code.constant("int32", FRACTION_BITS))
    return code.record("bits", "float32", bits)
