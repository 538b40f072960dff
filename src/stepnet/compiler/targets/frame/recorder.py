"""The CPU target's code of elementwise operations, recorded as instructions of frame programs.

The functions of `cpu/writing` write LLVM code through the methods of a `Code`. A `Recorder` has the same
methods, and notes the primitives instead: so exp, tanh and the others have the same polynomials here. There
is no fused multiply-add, on which platforms would differ.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import REGISTER_TYPES
from stepnet.compiler.targets.cpu.writing.elementary import ELEMENTARY
from stepnet.compiler.targets.cpu.writing.maths import precision_of
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise
from stepnet.compiler.targets.cpu.writing.powers import power
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
WITHOUT_FORM = {
    "sin": "compute it outside of the model, and make it an input",
    "cos": "compute it outside of the model, and make it an input",
    "tan": "compute it outside of the model, and make it an input",
    "remainder": "write it as x - floor(x / y) * y",
    "floor_divide": "write it as floor(x / y)",
}
"""Operations on floats that need a loop or the C library, and what to do instead."""


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

    def constant(self, dtype: str, value: Any) -> FrameRegister:
        """Records a constant, rounded to its dtype."""
        return self.record("constant", dtype, value=np.array(value).astype(dtype).item())

    def splat(self, type_: ir.Type, value: float) -> FrameRegister:
        """Records a constant of an LLVM type."""
        return self.constant(DTYPE_OF[str(type_)], value)

    # ---- numbers of the operands' dtype

    def fadd(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records a sum."""
        return self.record("add", a.dtype, a, b)

    def fsub(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records a difference."""
        return self.record("subtract", a.dtype, a, b)

    def fmul(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records a product."""
        return self.record("multiply", a.dtype, a, b)

    def fdiv(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records a quotient, truncated for integers."""
        return self.record("divide", a.dtype, a, b)

    def srem(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records the remainder of a truncated quotient of integers."""
        return self.record("remainder", a.dtype, a, b)

    def fneg(self, a: FrameRegister) -> FrameRegister:
        """Records -a."""
        return self.record("negative", a.dtype, a)

    def fused(self, a: FrameRegister, b: FrameRegister, c: FrameRegister) -> FrameRegister:
        """Records a * b + c, rounded twice."""
        return self.fadd(self.fmul(a, b), c)

    add, sub, mul, sdiv, neg = fadd, fsub, fmul, fdiv, fneg

    # ---- bits

    def and_(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records the bits that both have."""
        return self.record("bit_and", a.dtype, a, b)

    def or_(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records the bits that one of both has."""
        return self.record("bit_or", a.dtype, a, b)

    def xor(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records the bits in which both differ."""
        return self.record("bit_xor", a.dtype, a, b)

    def shl(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records a shift to the left."""
        return self.record("shift_left", a.dtype, a, b)

    def lshr(self, a: FrameRegister, b: FrameRegister) -> FrameRegister:
        """Records a shift to the right that fills with zeros."""
        return self.record("shift_right", a.dtype, a, b)

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
    """Records the nearest whole number, the even one of two: large numbers have no fraction, and adding one
    of these rounds the others.
    """
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


def without_form(operation: str, dtypes: Sequence[str]) -> str | None:
    """Returns what to do instead of an operation on operands of some dtypes; None if it has a form here."""
    is_float = any(dtype.startswith("float") for dtype in dtypes)
    return WITHOUT_FORM.get(operation) if is_float else None


def operation_result(code: Recorder, node: Node, operands: Sequence[FrameRegister]) -> FrameRegister:
    """Records an elementwise operation of a net, other than one with a routine; returns the register of its
    result.
    """
    return cast("Any", pointwise)(code, node, operands, [each.dtype for each in operands])


@cache
def routine_of(operation: str, dtype: str, exponent: float | None = None) -> Routine:
    """Returns the routine of an elementary function, or of a power with a constant exponent.

    >>> routine_of("sigmoid", "float32").name, len(routine_of("sigmoid", "float32").body)
    ('sigmoid_f32', 43)
    """
    code, x = Recorder(1), FrameRegister(0, dtype)
    name = f"{operation}_{dtype[0]}{dtype[-2:]}"
    if exponent is None:
        result = cast("Any", ELEMENTARY[operation])(code, x)
    else:
        result = cast("Any", power)(code, x, exponent)
        name += "_" + f"{exponent:g}".replace("-", "minus_").replace(".", "_").replace("+", "")
    return Routine(name, (dtype,), tuple(code.body), result.number)
