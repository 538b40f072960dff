"""The elementwise operations of numbers with a fixed point.

Each records int32 with the digits `target` behind the point, of operands in int32 with digits of their own.
The result is saturated where it is stored.
"""

from collections.abc import Callable
from math import log

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.frame.fixed import WIDE, aligned, refitted, saturated, shifted, stored, wide
from stepnet.compiler.targets.frame.fixed_functions import DIGITS, fixed_routine, magnitude, quotient
from stepnet.compiler.targets.frame.integer_step import IntegerLowering, fraction
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder

Operation = Callable[[Recorder, list[FrameRegister], list[int], int], FrameRegister]


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


def raised(code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int) -> FrameRegister:
    """Records e^x 2^target as e^(x - d) 2^15, which is not above 1 where the result fits."""
    beyond = round((DIGITS - target) * log(2) * 2**DIGITS)
    x = code.sub(refitted(code, operands[0], fractions[0], DIGITS), code.constant("int32", beyond))
    return code.record(fixed_routine("exp").name, "int32", x)


def of_routine(operation: str) -> Operation:
    """Makes an operation of a routine, whose results have 15 digits."""

    def made(
        code: Recorder, operands: list[FrameRegister], fractions: list[int], target: int
    ) -> FrameRegister:
        """Records the call."""
        x = refitted(code, operands[0], fractions[0], DIGITS)
        return refitted(
            code, code.record(fixed_routine(operation).name, "int32", x), DIGITS, target, 2**DIGITS
        )

    return made


ELEMENTWISE: dict[str, Operation] = {
    "add": of_aligned(Recorder.add),
    "subtract": of_aligned(Recorder.sub),
    "negative": of_aligned(Recorder.neg),
    "absolute": of_aligned(absolute),
    "maximum": of_aligned(extreme(">")),
    "minimum": of_aligned(extreme("<")),
    "multiply": multiplied,
    "divide": divided,
    "sigmoid": of_routine("sigmoid"),
    "tanh": of_routine("tanh"),
    "exp": raised,
}
"""The elementwise operations that have a form in integers."""


def elementwise(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers an elementwise operation."""
    operation, operands = ELEMENTWISE[node.operation], lowering.operands(node)
    fractions, target = [fraction(each) for each in operands], lowering.digits(number)
    if node.operation in ("sigmoid", "tanh", "exp"):
        lowering.called(fixed_routine(node.operation))

    def record(code: Recorder, given: list[FrameRegister]) -> FrameRegister:
        """Records the operation, and saturates its result."""
        return stored(code, operation(code, [wide(code, each) for each in given], fractions, target))

    lowering.values[number] = lowering.elementwise(number, node.type.shape, operands, record)
