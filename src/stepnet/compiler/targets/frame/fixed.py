"""Numbers with a fixed point: integers in registers of int32 that stand for themselves times 2^-fraction.

    in memory       int16, saturated
    in registers    int32: what fits, fits exactly; what is too large is saturated before it is stored

A shift to the right is the nearest integer, of two the upper one: the single rounding of TensorFlow Lite.
"""

from math import frexp

import numpy as np

from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder

LARGEST = 32767
"""The largest number that is stored; the least is -32768."""
WIDE = 2**30
"""The largest magnitude that a register of int32 has before it is rounded."""
MARGIN = 1.25
"""The factor by which numbers may be larger than in the samples before they saturate."""
FRACTIONS = (-16, 20)
"""The least and the most binary digits behind the point."""


def fraction_of(largest: float) -> int:
    """Returns the digits behind the point with which numbers up to a magnitude fit int16, with a margin.

    >>> fraction_of(1.0), fraction_of(3.3), fraction_of(0.0)
    (14, 12, 20)
    """
    return bounded_fraction(largest * MARGIN)


def bounded_fraction(largest: float) -> int:
    """Returns the most digits behind the point with which numbers up to a magnitude fit int16."""
    least, most = FRACTIONS
    mantissa, exponent = frexp(largest / LARGEST)
    fraction = 0 if largest == 0 else -exponent + (1 if mantissa == 0.5 else 0)
    return most if largest == 0 else min(max(fraction, least), most)


def wide(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records a number as int32."""
    return x if x.dtype == "int32" else code.record("convert", "int32", x)


def shifted(code: Recorder, x: FrameRegister, count: int) -> FrameRegister:
    """Records x / 2^count as the nearest integer, of two the upper one. count: from 0 on."""
    if count == 0:
        return x
    count = min(count, 30 if x.dtype == "int32" else 62)
    raised = code.add(x, code.constant(x.dtype, 1 << (count - 1)))
    return code.record("right_shift", x.dtype, raised, code.constant(x.dtype, count))


def saturated(code: Recorder, x: FrameRegister, largest: int) -> FrameRegister:
    """Records a number limited to the range from -largest to largest."""
    low, high = code.constant(x.dtype, -largest), code.constant(x.dtype, largest)
    return code.minimum(code.maximum(x, low), high)


def narrowed(code: Recorder, x: FrameRegister, dtype: str) -> FrameRegister:
    """Records the nearest number in a dtype of fewer bits, for which processors have instructions."""
    low, high = (code.constant(x.dtype, int(each)) for each in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    return code.record("convert", dtype, code.minimum(code.maximum(x, low), high))


def refitted(
    code: Recorder, x: FrameRegister, fraction: int, target: int, largest: int = LARGEST
) -> FrameRegister:
    """Records a number of int32 with another number of digits behind the point, saturated where it would not
    fit.

    fraction, target: the digits that it has, and those that it gets. largest: its largest magnitude.
    """
    if target <= fraction:
        return shifted(code, x, fraction - target)
    count = min(target - fraction, 30)
    if largest << count > WIDE:
        x = saturated(code, x, WIDE >> count)
    return code.shl(x, code.constant("int32", count))


def stored(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records a number as it is stored: saturated, in int16."""
    return narrowed(code, x, "int16")


def factor(scale: float, digits: int) -> tuple[int, int]:
    """Returns the integer M, of so many binary digits, and the shift with which scale is M / 2^shift.

    >>> factor(0.75, 15)
    (24576, 15)
    """
    shift = digits - frexp(scale)[1]
    number = round(scale * 2.0**shift)
    return (number, shift) if number < 2**digits else (number // 2, shift - 1)


def aligned(
    code: Recorder, operands: list[FrameRegister], fractions: list[int]
) -> tuple[list[FrameRegister], int]:
    """Records numbers with the same digits behind the point; returns them, and how many digits these are."""
    common = min(max(fractions), min(fractions) + 14)
    return [
        refitted(code, x, fraction, common) for x, fraction in zip(operands, fractions, strict=True)
    ], common
