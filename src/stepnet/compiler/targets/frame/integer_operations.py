"""The elementwise operations of numbers with a fixed point.

Each records int32 with the digits `target` behind the point, of operands in int32 with digits of their own.
The result is saturated where it is stored. Bools and integers of the model are operands without digits, and
saturate at the largest number that is stored.
"""

from collections.abc import Callable
from math import log
from typing import NamedTuple

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.frame.fixed import (
    LARGEST,
    WIDE,
    aligned,
    refitted,
    saturated,
    shifted,
    stored,
    wide,
)
from stepnet.compiler.targets.frame.fixed_functions import (
    BOUNDED,
    DIGITS,
    LOG2_DIGITS,
    MOST,
    fixed_routine,
    magnitude,
    quotient,
)
from stepnet.compiler.targets.frame.integer_step import IntegerLowering, fraction
from stepnet.compiler.targets.frame.recorder import COMPARISONS, FrameRegister, Recorder

Operation = Callable[[Recorder, list[FrameRegister], list[int], int], FrameRegister]
LN_2 = round(log(2) * 2**30)


class IntegerForm(NamedTuple):
    """The form of an elementwise operation in integers. record: records it. routine: the one that it calls,
    a key of `FUNCTIONS`; "" for none.
    """

    record: Operation
    routine: str = ""


def of_aligned(record: Callable[..., FrameRegister]) -> Operation:
    """Makes an operation of one on numbers with the same digits. record: records that."""

    def made(
        code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
    ) -> FrameRegister:
        """Records the operation."""
        given, common = aligned(code, operands, fractions)
        return refitted(code, record(code, *given), common, target, WIDE)

    return made


def extreme(sign: str) -> Callable[..., FrameRegister]:
    """Makes the function that records the smaller ("<") or the larger (">") of two numbers."""

    def record(code: Recorder, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records one of two numbers."""
        return code.select(code.icmp_signed(sign, a, b), a, b)

    return record


def absolute(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the magnitude of a number."""
    return magnitude(code, x)[1]


def multiplied(
    code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
) -> FrameRegister:
    """Records a product, which int32 holds."""
    return refitted(code, code.mul(*operands), sum(fractions), target, WIDE)


def divided(
    code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
) -> FrameRegister:
    """Records a quotient; divided by 0 it is the largest number with the sign of the dividend."""
    (above_is_below, above), (below_is_below, below) = (magnitude(code, each) for each in operands)
    count = target - fractions[0] + fractions[1]
    dtype = "int32" if count <= DIGITS else "int64"
    above, below = (
        code.record("convert", dtype, each) if dtype == "int64" else each for each in (above, below)
    )
    zero, one = (code.constant(dtype, each) for each in (0, 1))
    is_zero = code.icmp_signed("==", below, zero)
    shifted_above = code.shl(above, code.constant(dtype, max(count, 0)))
    result = quotient(code, shifted_above, code.select(is_zero, one, below))
    result = saturated(code, shifted(code, result, max(-count, 0)), WIDE)
    result = code.select(is_zero, code.constant(dtype, WIDE), result)
    if dtype == "int64":
        result = code.record("convert", "int32", result)
    return code.select(code.xor(above_is_below, below_is_below), code.neg(result), result)


def called(code: Recorder, name: str, x: FrameRegister) -> FrameRegister:
    """Records the call of a routine."""
    return code.record(fixed_routine(name).name, "int32", x)


def power_of_e(code: Recorder, x: FrameRegister, fraction: int, target: int) -> FrameRegister:
    """Records e^x with 15 digits more than the target: 2^30 e^-a for e^x up to 2^(15 - target)."""
    beyond = round((DIGITS - target) * log(2) * 2**DIGITS)
    x, zero = refitted(code, x, fraction, DIGITS), code.constant("int32", 0)
    x = saturated(code, code.sub(x, code.constant("int32", beyond)), MOST)
    return called(code, "decayed", code.neg(code.select(code.icmp_signed(">", x, zero), zero, x)))


def exp(code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int) -> FrameRegister:
    """Records e^x."""
    return shifted(code, power_of_e(code, operands[0], fractions[0], target), DIGITS)


def expm1(code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int) -> FrameRegister:
    """Records e^x - 1, of an e^x that may be twice as large as the result."""
    own = min(target - 1, DIGITS - 1)
    power, digits = power_of_e(code, operands[0], fractions[0], own), own + DIGITS
    one = code.constant("int32", 1 << digits if digits >= 0 else 0)
    return shifted(code, code.sub(power, one), digits - target)


def logarithm(
    code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
) -> FrameRegister:
    """Records log(x); the least number for an x that is not above 0."""
    x, one = operands[0], code.constant("int32", 1)
    is_below = code.icmp_signed("<", x, one)
    binary = called(code, "log2", code.select(is_below, one, x))
    binary = code.sub(binary, code.constant("int32", fractions[0] << LOG2_DIGITS))
    natural = code.mul(code.record("convert", "int64", binary), code.constant("int64", LN_2))
    result = code.record("convert", "int32", shifted(code, natural, 30 + LOG2_DIGITS - target))
    return code.select(is_below, code.constant("int32", -WIDE), result)


def log1p(code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int) -> FrameRegister:
    """Records log(1 + x), of an x up to 2^30."""
    digits = max(fractions[0], 0)
    x = refitted(code, operands[0], fractions[0], digits)
    return logarithm(code, [code.add(x, code.constant("int32", 1 << digits))], [digits], target)


def square_root(
    code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
) -> FrameRegister:
    """Records the square root of a number, which has twice the digits of its root; 0 for one below 0."""
    return called(code, "sqrt", refitted(code, operands[0], fractions[0], 2 * target))


def chosen(code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int) -> FrameRegister:
    """Records one of two numbers, by a condition."""
    a, b = (refitted(code, x, digits, target) for x, digits in zip(operands[1:], fractions[1:], strict=True))
    return code.select(code.icmp_signed("!=", operands[0], code.constant("int32", 0)), a, b)


def sign(code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int) -> FrameRegister:
    """Records -1, 0 or 1."""
    zero = code.constant("int32", 0)
    whole = [code.record("convert", "int32", code.icmp_signed(side, operands[0], zero)) for side in "><"]
    return refitted(code, code.sub(*whole), 0, target)


def converted(
    code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
) -> FrameRegister:
    """Records a number with other digits."""
    return refitted(code, operands[0], fractions[0], target, WIDE)


def compared(operation: str) -> Operation:
    """Makes a comparison, whose result is a bool."""

    def made(
        code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
    ) -> FrameRegister:
        """Records the comparison of numbers with the same digits."""
        return code.record(operation, "bool", *aligned(code, operands, fractions)[0])

    return made


def of_routine(operation: str) -> Operation:
    """Makes an operation of a routine, whose results have 15 digits."""

    def made(
        code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
    ) -> FrameRegister:
        """Records the call."""
        x = refitted(code, operands[0], fractions[0], DIGITS)
        return refitted(code, called(code, operation, x), DIGITS, target, 2**DIGITS)

    return made


ELEMENTWISE: dict[str, IntegerForm] = {
    "add": IntegerForm(of_aligned(Recorder.add)),
    "subtract": IntegerForm(of_aligned(Recorder.sub)),
    "negative": IntegerForm(of_aligned(Recorder.neg)),
    "absolute": IntegerForm(of_aligned(absolute)),
    "maximum": IntegerForm(of_aligned(extreme(">"))),
    "minimum": IntegerForm(of_aligned(extreme("<"))),
    "multiply": IntegerForm(multiplied),
    "divide": IntegerForm(divided),
    "sign": IntegerForm(sign),
    "where": IntegerForm(chosen),
    "cast": IntegerForm(converted),
    **{name: IntegerForm(compared(name)) for name in COMPARISONS.values()},
    **{name: IntegerForm(of_routine(name), name) for name in BOUNDED},
    "exp": IntegerForm(exp, "decayed"),
    "expm1": IntegerForm(expm1, "decayed"),
    "log": IntegerForm(logarithm, "log2"),
    "log1p": IntegerForm(log1p, "log2"),
    "sqrt": IntegerForm(square_root, "sqrt"),
}
"""The elementwise operations that have a form in integers. Bools alone have those of floats."""


def elementwise(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers an elementwise operation."""
    form, operands = ELEMENTWISE[node.operation], lowering.operands(node)
    fractions, largest = [fraction(each) for each in operands], WIDE if node.operation == "cast" else LARGEST
    target = lowering.digits(number) if node.type.is_float else 0
    if form.routine:
        lowering.called(fixed_routine(form.routine))

    def record(code: Recorder, given: list[FrameRegister]) -> FrameRegister:
        """Records the operation, and saturates its result."""
        narrow = [
            saturated(code, x, largest) if operand.root.scale is None and x.dtype in ("int32", "int64") else x
            for x, operand in zip(given, operands, strict=True)
        ]
        result = form.record(code, [wide(code, each) for each in narrow], fractions, target)
        return stored(code, result) if node.type.is_float else result

    if node.type.is_float:
        lowering.values[number] = lowering.elementwise(number, node.type.shape, operands, record)
    else:
        own = lowering.drafts.pointwise(node.type.shape, node.type.dtype, operands, record, node.operation)
        lowering.values[number] = own


def cast(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers a cast; of floats to integers it is truncated, and to bool it is whether there is one but 0."""
    (x,) = lowering.operands(node)
    if node.type.is_float:
        elementwise(lowering, number, node)
        return
    dtype, digits = node.type.dtype, fraction(x)

    def record(code: Recorder, given: list[FrameRegister]) -> FrameRegister:
        """Records the truncation of the magnitude, with the sign of the number."""
        is_below, size = magnitude(code, wide(code, *given))
        if dtype == "bool":
            return code.icmp_signed("!=", size, code.constant("int32", 0))
        count = code.constant("int32", abs(digits))
        size = code.lshr(size, count) if digits >= 0 else code.shl(size, count)
        result = code.select(is_below, code.neg(size), size)
        return result if dtype == "int32" else code.record("convert", dtype, result)

    lowering.values[number] = lowering.drafts.pointwise(node.type.shape, dtype, [x], record, "cast")
