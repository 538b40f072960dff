"""The CPU target's code of elementwise operations, recorded as instructions of frame programs.

The functions of `cpu/writing` write LLVM code through the methods of a `Code`. A `Recorder` has the same
methods, and notes the primitives instead: so exp, tanh and the others have the same polynomials here. There
is no fused multiply-add, on which platforms would differ.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import REGISTER_TYPES
from stepnet.compiler.targets.cpu.writing.maths import precision_of
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise
from stepnet.compiler.targets.frame.program import Instruction, Routine
from stepnet.compiler.values.records import dataclass

DTYPE_OF = {str(REGISTER_TYPES[dtype]): dtype for dtype in ("float32", "float64", "int32", "int64", "bool")}
COMPARISONS = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
FMODS = {"float32": "fmod_f32", "float64": "fmod_f64"}
"""The routine of remainders of each dtype."""


@dataclass(frozen=True)
class FrameRegister:
    """A register of a recorder: its number and dtype."""

    number: int
    dtype: str

    @property
    def type(self) -> ir.Type:
        """The LLVM type that the functions of `cpu/writing` ask for."""
        return REGISTER_TYPES[self.dtype]


@dataclass(frozen=True)
class PlainProcessor:
    """The processor of a recorder, as far as the functions of `cpu/writing` ask."""

    has_fused: bool = False


def two_operands(operation: str) -> Callable[["Recorder", FrameRegister, FrameRegister], FrameRegister]:
    """Makes a recorder's method that records an operation on two operands, in the dtype of the first."""
    return lambda code, a, b: code.record(operation, a.dtype, a, b)


class Recorder:
    """The methods of `Code` that functions of elements use, which record instructions.

    first: the number of the first register that is written. Registers with the same instruction are one.
    """

    processor = PlainProcessor()

    def __init__(self, first: int = 0) -> None:
        """Begins without instructions, whose registers are numbered from `first` on."""
        self.first, self.body = first, list[Instruction]()
        self.known = dict[Instruction, FrameRegister]()

    def record(
        self, operation: str, dtype: str, *operands: FrameRegister, value: Any = None
    ) -> FrameRegister:
        """Records an instruction, unless there is an equal one; returns its register."""
        new = Instruction(operation, tuple(each.number for each in operands), dtype, value)
        key = Instruction(operation, new.operands, dtype, repr(value))  # type: ignore[arg-type] # 0.0 is not -0.0
        if key not in self.known:
            self.body.append(new)
            self.known[key] = FrameRegister(self.first + len(self.body) - 1, dtype)
        return self.known[key]

    def routine(
        self, name: str, result: FrameRegister, tables: Mapping[str, tuple[int, ...]] | None = None
    ) -> Routine:
        """Returns a routine of the instructions that its result needs. Its parameters, ahead of them, have
        the dtype of the result. tables: the constants that it reads.
        """
        needed = {result.number}
        for place in range(self.first + len(self.body) - 1, self.first - 1, -1):
            if place in needed:
                needed.update(self.body[place - self.first].operands)
        numbers, body = {place: place for place in range(self.first)}, list[Instruction]()
        for place, each in enumerate(self.body, self.first):
            if place in needed:
                numbers[place] = self.first + len(body)
                operands = tuple(numbers[operand] for operand in each.operands)
                body.append(Instruction(each.operation, operands, each.dtype, each.value))
        return Routine(
            name, (result.dtype,) * self.first, tuple(body), numbers[result.number], dict(tables or {})
        )

    def constant(self, dtype: str, value: Any) -> FrameRegister:
        """Records a constant, rounded to its dtype."""
        return self.record("constant", dtype, value=np.array(value).astype(dtype).item())

    def splat(self, type_: ir.Type, value: float) -> FrameRegister:
        """Records a constant of an LLVM type."""
        return self.constant(DTYPE_OF[str(type_)], value)

    def element(self, table: str, index: FrameRegister) -> FrameRegister:
        """Records an element of a table of int32."""
        return self.record("element", "int32", index, value=table)

    # ---- operations in the operands' dtype, for integers and floats alike

    add = fadd = two_operands("add")
    sub = fsub = two_operands("subtract")
    mul = fmul = two_operands("multiply")
    sdiv = fdiv = two_operands("divide")  # truncated for integers
    srem = two_operands("remainder")  # of a truncated quotient
    minimum, maximum = two_operands("minimum"), two_operands("maximum")
    and_, or_, xor = two_operands("bitwise_and"), two_operands("bitwise_or"), two_operands("bitwise_xor")
    shl, lshr = two_operands("left_shift"), two_operands("unsigned_right_shift")  # filled with zeros

    def neg(self, a: FrameRegister) -> FrameRegister:
        """Records -a."""
        return self.record("negative", a.dtype, a)

    fneg = neg

    def fused(self, a: FrameRegister, b: FrameRegister, c: FrameRegister) -> FrameRegister:
        """Records a * b + c, rounded twice."""
        return self.fadd(self.fmul(a, b), c)

    def high_product(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records a b / 2^32 of integers of 32 bits, rounded down."""
        return self.record("multiply_high", "int32", a, b)

    # ---- comparisons

    def fcmp_ordered(self, sign: str, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records a comparison, which is false for NaN unless it is "!="."""
        return self.record(COMPARISONS[sign], "bool", a, b)

    fcmp_unordered = icmp_signed = icmp_unsigned = fcmp_ordered

    def select(self, condition: FrameRegister, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records the choice of a if a condition is true, else b."""
        return self.record("select", a.dtype, condition, a, b)

    # ---- conversions

    def bitcast(self, a: FrameRegister, type_: ir.Type) -> FrameRegister:
        """Records the bits of a number as one of another type."""
        return self.record("bits", DTYPE_OF[str(type_)], a)

    def converted(self, a: FrameRegister, type_: ir.Type) -> FrameRegister:
        """Records a conversion."""
        return self.record("convert", DTYPE_OF[str(type_)], a)

    sext = zext = trunc = sitofp = fptosi = fpext = fptrunc = converted

    # ---- functions

    def intrinsic(self, name: str, result: ir.Type, arguments: Sequence[FrameRegister]) -> FrameRegister:
        """Records one of LLVM's functions of numbers."""
        return INTRINSICS[name](self, *arguments)

    def function_call(self, name: str, result: ir.Type, arguments: Sequence[FrameRegister]) -> FrameRegister:
        """Records a call of C's `fmod` or `fmodf`, as that of a routine."""
        dtype = {"fmod": "float64", "fmodf": "float32"}[name]
        return self.record(FMODS[dtype], dtype, *arguments)


def absolute(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records |x|."""
    return code.record("absolute", x.dtype, x)


def copysign(code: Recorder, x: FrameRegister, sign: FrameRegister) -> FrameRegister:
    """Records |x| with the sign of another number."""
    return code.record("copysign", x.dtype, x, sign)


def sqrt(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the square root."""
    return code.record("sqrt", x.dtype, x)


def rint(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the nearest whole number, the even one of two, by adding a large number that rounds."""
    large, size = code.constant(x.dtype, 2.0 ** precision_of(x.type).fraction_bits), absolute(code, x)
    near = copysign(code, code.fsub(code.fadd(size, large), large), x)
    return code.select(code.fcmp_ordered("<", size, large), near, x)


def floor(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the largest whole number that is not greater."""
    near = rint(code, x)
    below = code.fsub(near, code.constant(x.dtype, 1.0))
    return code.select(code.fcmp_ordered(">", near, x), below, near)


def ceil(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the smallest whole number that is not less, with the sign of x."""
    near = rint(code, x)
    above = code.fadd(near, code.constant(x.dtype, 1.0))
    return copysign(code, code.select(code.fcmp_ordered("<", near, x), above, near), x)


def extreme(sign: str) -> Callable[[Recorder, FrameRegister, FrameRegister], FrameRegister]:
    """Makes the function that records a minimum ("<") or a maximum (">"), NaN if one of both is."""

    def record(code: Recorder, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records the smaller or the larger of two numbers."""
        other = code.select(code.fcmp_ordered("!=", a, a), a, b)
        return code.select(code.fcmp_ordered(sign, a, b), a, other)

    return record


INTRINSICS: dict[str, Callable[..., FrameRegister]] = {
    "fabs": absolute,
    "copysign": copysign,
    "sqrt": sqrt,
    "rint": rint,
    "floor": floor,
    "ceil": ceil,
    "minimum": extreme("<"),
    "maximum": extreme(">"),
}


def operation_result(code: Recorder, node: Node, operands: Sequence[FrameRegister]) -> FrameRegister:
    """Records an elementwise operation of a net without a routine; returns the register of its result."""
    return cast("Any", pointwise)(code, node, operands, [each.dtype for each in operands])
