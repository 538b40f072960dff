"""The machine code of each pointwise operation: one row per operation.

A row takes the operands in registers, already of one dtype, and returns the result. The rules at the end say
which dtype that is: most operations work in the dtype of their result, comparisons in the promoted dtype of
their operands.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.cpu.writing.code import (
    I1,
    I32,
    I64,
    Code,
    element_type,
    is_float,
    register_type,
    undefined,
    width_of,
)
from stepnet.compiler.targets.cpu.writing.elementary import ELEMENTARY
from stepnet.compiler.targets.cpu.writing.powers import power
from stepnet.compiler.targets.cpu.writing.storage_dtypes import STORED
from stepnet.compiler.values.dtypes import DTYPES

Emit = Callable[..., ir.Value]
Comparison = Literal["==", "!=", "<", "<=", ">", ">="]


def converted(code: Code, value: ir.Value, source: str, target: str) -> ir.Value:
    """Writes a cast of a register from dtype `source` to dtype `target`, as NumPy's `astype` converts."""
    if source == target:
        return value
    if source in STORED:
        return converted(code, STORED[source].widened(code, value), DTYPES[source].compute, target)
    if target in STORED:
        return STORED[target].rounded(code, value)
    type_ = register_type(target, width_of(value))
    to_float = DTYPES[target].kind == "float"
    if target == "bool":
        zero = code.splat(value.type, 0)
        return (
            code.fcmp_unordered("!=", value, zero) if is_float(value) else code.icmp_signed("!=", value, zero)
        )
    if source == "bool":
        integer = code.zext(value, register_type("int32", width_of(value)))
        return code.sitofp(integer, type_) if to_float else code.zext(value, type_)
    if DTYPES[source].kind == "float":
        if to_float:
            return code.fpext(value, type_) if target == "float64" else code.fptrunc(value, type_)
        return to_integer(code, value, type_)
    if to_float:
        return code.sitofp(value, type_)
    return code.sext(value, type_) if target == "int64" else code.trunc(value, type_)


def to_integer(code: Code, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Writes a truncation of floats to integers of `type_`. Those that do not fit become the smallest
    integer, as on x86 and in NumPy.
    """
    limit = 2 ** (63 if element_type(type_) == I64 else 31)
    above = code.fcmp_ordered(">=", value, code.splat(value.type, float(-limit)))
    below = code.fcmp_ordered("<", value, code.splat(value.type, float(limit)))
    inside = code.and_(above, below)
    safe = code.select(inside, value, code.splat(value.type, 0.0))
    return code.select(inside, code.fptosi(safe, type_), code.splat(type_, -limit))


def float_or_integer(floats: str, integers: str) -> Emit:
    """Makes the function that writes an operation by one method of the builder for floats, by another for
    integers. floats, integers: the names of the methods.
    """

    def emit(code: Code, node: Node, *operands: ir.Value) -> ir.Value:
        """Writes code for the operation, by the builder's method for the type of the operands."""
        return getattr(code, floats if is_float(operands[0]) else integers)(*operands)

    return emit


def compare(sign: Comparison) -> Emit:
    """Makes the function that writes a comparison. With a NaN operand it is false, except that != is true.
    sign: the operator, such as "<".
    """

    def emit(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes code for the comparison of floats, booleans or signed integers."""
        if is_float(a):
            return code.fcmp_unordered(sign, a, b) if sign == "!=" else code.fcmp_ordered(sign, a, b)
        if element_type(a.type) == I1:
            return code.icmp_unsigned(sign, a, b)
        return code.icmp_signed(sign, a, b)

    return emit


def minimum_or_maximum(sign: Comparison, intrinsic: str) -> Emit:
    """Makes the function that writes a minimum or maximum; the result is NaN if either operand is.

    sign: the comparison that selects an integer: "<" for the minimum.
    intrinsic: the name of LLVM's function for floats.
    """

    def emit(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes code for the minimum or maximum of floats, booleans or signed integers."""
        if is_float(a):
            return code.intrinsic(intrinsic, a.type, [a, b])
        signed = code.icmp_unsigned if element_type(a.type) == I1 else code.icmp_signed
        return code.select(signed(sign, a, b), a, b)

    return emit


def elementary(function: Callable[[Code, ir.Value], ir.Value]) -> Emit:
    """Makes the function that writes a node from one that writes an elementary function, such as `exp`."""

    def emit(code: Code, node: Node, x: ir.Value) -> ir.Value:
        """Writes code for the elementary function of x; the node has no attributes for it."""
        return function(code, x)

    return emit


def rounded(intrinsic: str) -> Emit:
    """Makes the function that writes a rounding of floats to whole numbers; integers are unchanged.

    intrinsic: the name of LLVM's function, such as "floor".
    """

    def emit(code: Code, node: Node, x: ir.Value) -> ir.Value:
        """Writes code that rounds floats to whole numbers, and leaves integers unchanged."""
        return code.intrinsic(intrinsic, x.type, [x]) if is_float(x) else x

    return emit


def negative(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Writes code for -x of each element, for the operation `negative`."""
    return code.fneg(x) if is_float(x) else code.sub(code.splat(x.type, 0), x)


def absolute(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Writes code for |x| of each element, for the operation `absolute`."""
    if is_float(x):
        return code.intrinsic("fabs", x.type, [x])
    if element_type(x.type) == I1:
        return x
    return code.select(code.icmp_signed("<", x, code.splat(x.type, 0)), negative(code, node, x), x)


def sign(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Writes code for the sign of each element: -1, 0 or 1; NaN for NaN."""
    zero, one = code.splat(x.type, 0), code.splat(x.type, 1)
    less = code.fcmp_ordered if is_float(x) else code.icmp_signed
    middle = code.fadd(x, zero) if is_float(x) else zero  # NaN stays, -0 becomes 0
    below = code.select(less("<", x, zero), code.splat(x.type, -1), middle)
    return code.select(less(">", x, zero), one, below)


def integer_division(code: Code, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Writes code for the quotient of integers, rounded down, and the remainder, with the divisor's sign.
    Division by 0 gives 0 and 0. Division by -1 gives -a and 0 without a division instruction, which would
    trap for the smallest integer: its negative does not fit.
    """
    zero, one = code.splat(a.type, 0), code.splat(a.type, 1)
    by_zero = code.icmp_signed("==", b, zero)
    by_minus = code.icmp_signed("==", b, code.splat(b.type, -1))
    divisor = code.select(code.or_(by_zero, by_minus), one, b)
    quotient, left = code.sdiv(a, divisor), code.srem(a, divisor)
    differ = code.icmp_signed("<", code.xor(left, divisor), zero)
    low = code.and_(code.icmp_signed("!=", left, zero), differ)
    quotient = code.select(low, code.sub(quotient, one), quotient)
    quotient = code.select(by_minus, code.sub(zero, a), quotient)
    left = code.select(low, code.add(left, divisor), left)
    nothing = code.or_(by_zero, by_minus)
    return code.select(by_zero, zero, quotient), code.select(nothing, zero, left)


def float_division(code: Code, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Writes code for the quotient of floats, rounded down, and the remainder, with the divisor's sign, as in
    NumPy. The remainder of the C library's fmod is exact, so (a - remainder) / b is an integer up to
    rounding.
    """
    zero, one = code.splat(a.type, 0.0), code.splat(a.type, 1.0)
    left = fmod(code, a, b)
    nonzero = code.fcmp_unordered("!=", left, zero)
    signs = code.xor(code.fcmp_ordered("<", left, zero), code.fcmp_ordered("<", b, zero))
    differ = code.and_(nonzero, signs)
    quotient = code.fdiv(code.fsub(a, left), b)
    quotient = code.select(differ, code.fsub(quotient, one), quotient)
    down = code.intrinsic("floor", a.type, [quotient])
    above = code.fcmp_ordered(">", code.fsub(quotient, down), code.splat(a.type, 0.5))
    down = code.select(above, code.fadd(down, one), down)
    divided = code.fdiv(a, b)
    signed_zero = code.intrinsic("copysign", a.type, [zero, divided])
    down = code.select(code.fcmp_ordered("==", quotient, zero), signed_zero, down)
    left = code.select(differ, code.fadd(left, b), left)
    left = code.select(nonzero, left, code.intrinsic("copysign", a.type, [zero, b]))
    return code.select(code.fcmp_ordered("==", b, zero), divided, down), left


def division(result_index: int) -> Emit:
    """Makes the function that writes a division with the quotient rounded down. result_index: the result that
    the function returns, 0 for the quotient and 1 for the remainder.
    """

    def emit(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
        """Writes code for the quotient, or the remainder, of floats or integers."""
        return (float_division if is_float(a) else integer_division)(code, a, b)[result_index]

    return emit


def fmod(code: Code, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes calls of the C library's fmod, one for each element: exact, though slow."""
    element, width = element_type(a.type), width_of(a)
    name = "fmod" if isinstance(element, ir.DoubleType) else "fmodf"
    if width == 1:
        return code.function_call(name, a.type, [a, b])
    result: ir.Value = undefined(a.type)
    for element_index in range(width):
        lane = ir.Constant(I32, element_index)
        elements = [code.extract_element(a, lane), code.extract_element(b, lane)]
        result = code.insert_element(result, code.function_call(name, element, elements), lane)
    return result


def to_power(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Writes code for x to the power of the node's attribute `exponent`, a constant."""
    return power(code, x, float(node.attributes["exponent"]))


def square_root(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Writes code for the square root of each element, rounded correctly."""
    return code.intrinsic("sqrt", x.type, [x])


def identity(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Returns the operand unchanged, as the result of a cast that has been written before."""
    return x


def bits_and(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes code for the bits that both operands have: of booleans, whether both are true."""
    return code.and_(a, b)


def bits_or(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes code for the bits that at least one operand has: of booleans, whether one is true."""
    return code.or_(a, b)


def bits_xor(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes code for the bits that exactly one operand has: of booleans, whether one alone is true."""
    return code.xor(a, b)


def logical_not(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Writes code that tells, for each element, whether the operand is false."""
    return code.xor(x, code.splat(x.type, 1))


def invert(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Writes code that flips all bits of each integer."""
    return code.xor(x, code.splat(x.type, -1))


def left_shift(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes a left shift of integers: 0 for a shift by the width or more, or below 0, as in NumPy."""
    zero, last = code.splat(a.type, 0), code.splat(a.type, 63 if element_type(a.type) == I64 else 31)
    inside = code.icmp_unsigned("<=", b, last)
    return code.select(inside, code.shl(a, code.select(inside, b, zero)), zero)


def right_shift(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes code that shifts the bits of integers to the right, with copies of the sign bit before them: by
    their width or more, or by a negative number, all bits are that bit, as in NumPy.
    """
    last = code.splat(a.type, 63 if element_type(a.type) == I64 else 31)
    return code.ashr(a, code.select(code.icmp_unsigned("<=", b, last), b, last))


def where(code: Code, node: Node, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes code that selects `a` where the condition is true, else `b`, element by element."""
    return code.select(condition, a, b)


POINTWISE: dict[str, Emit] = {
    "add": float_or_integer("fadd", "add"),
    "subtract": float_or_integer("fsub", "sub"),
    "multiply": float_or_integer("fmul", "mul"),
    "divide": float_or_integer("fdiv", "sdiv"),
    "floor_divide": division(0),
    "remainder": division(1),
    "minimum": minimum_or_maximum("<", "minimum"),
    "maximum": minimum_or_maximum(">", "maximum"),
    "equal": compare("=="),
    "not_equal": compare("!="),
    "less": compare("<"),
    "less_equal": compare("<="),
    "greater": compare(">"),
    "greater_equal": compare(">="),
    "logical_and": bits_and,
    "logical_or": bits_or,
    "logical_xor": bits_xor,
    "logical_not": logical_not,
    "bitwise_and": bits_and,
    "bitwise_or": bits_or,
    "bitwise_xor": bits_xor,
    "invert": invert,
    "left_shift": left_shift,
    "right_shift": right_shift,
    "where": where,
    "negative": negative,
    "absolute": absolute,
    "sign": sign,
    "floor": rounded("floor"),
    "ceil": rounded("ceil"),
    "rint": rounded("rint"),
    "sqrt": square_root,
    **{name: elementary(function) for name, function in ELEMENTARY.items()},
    "power": to_power,
    "cast": identity,
    "detach": identity,
}

# As NumPy has it, the sum of two booleans is their "or", their product is their "and".
BOOLEAN = {"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}
COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
LOGIC = {"logical_and", "logical_or", "logical_xor", "logical_not"}


def working_dtypes(node: Node, operands: list[str]) -> list[str]:
    """Returns the dtype to which each operand of a pointwise node must be converted before the operation:
    that of the result, but bool for logic and conditions, and for comparisons the operands' common dtype.

    operands: their own dtypes.
    """
    if node.operation in COMPARISONS:
        return [np.result_type(*operands).name] * len(operands)
    if node.operation in LOGIC:
        return ["bool"] * len(operands)
    if node.operation == "where":
        return ["bool", node.type.dtype, node.type.dtype]
    return [node.type.dtype] * len(operands)


def pointwise(code: Code, node: Node, operands: list[ir.Value], dtypes: list[str]) -> ir.Value:
    """Writes the code of an elementwise node of the graph, with conversions of its operands; returns its
    result in a register. operands: their registers. dtypes: the operands' own.
    """
    operand_dtypes = working_dtypes(node, dtypes)
    operation = BOOLEAN.get(node.operation, node.operation) if node.type.dtype == "bool" else node.operation
    values = [converted(code, v, d, w) for v, d, w in zip(operands, dtypes, operand_dtypes, strict=True)]
    return POINTWISE[operation](code, node, *values)
