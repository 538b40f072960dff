"""The machine code of each pointwise operation: one row per operation.

A row takes the operands in registers, already of one dtype, and gives the result. What dtype that is, is said
by the rules at the end: most operations work in the dtype of their result, comparisons in what their operands
promote to.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from llvmlite import ir

from stepnet.engines.llvm.code import I1, I32, I64, Code, element_type, is_float, lanes_of, register_type
from stepnet.engines.llvm.maths import MATHS
from stepnet.ir import Node

Emit = Callable[..., ir.Value]
Comparison = Literal["==", "!=", "<", "<=", ">", ">="]


def converted(code: Code, value: ir.Value, source: str, target: str) -> ir.Value:
    """A register of dtype `source` as one of dtype `target`, as NumPy's astype does it."""
    if source == target:
        return value
    type_ = register_type(target, lanes_of(value))
    if target == "bool":
        zero = code.splat(value.type, 0)
        return (
            code.fcmp_unordered("!=", value, zero) if is_float(value) else code.icmp_signed("!=", value, zero)
        )
    if source == "bool":
        whole = code.zext(value, register_type("int32", lanes_of(value)))
        return code.sitofp(whole, type_) if target.startswith("float") else code.zext(value, type_)
    if source.startswith("float"):
        if target.startswith("float"):
            return code.fpext(value, type_) if target == "float64" else code.fptrunc(value, type_)
        return to_integer(code, value, type_)
    if target.startswith("float"):
        return code.sitofp(value, type_)
    return code.sext(value, type_) if target == "int64" else code.trunc(value, type_)


def to_integer(code: Code, value: ir.Value, type_: ir.Type) -> ir.Value:
    """A float cut to an integer; the smallest integer for what has none, as x86 and NumPy have it."""
    limit = 2 ** (63 if element_type(type_) == I64 else 31)
    above = code.fcmp_ordered(">=", value, code.splat(value.type, float(-limit)))
    below = code.fcmp_ordered("<", value, code.splat(value.type, float(limit)))
    inside = code.and_(above, below)
    safe = code.select(inside, value, code.splat(value.type, 0.0))
    return code.select(inside, code.fptosi(safe, type_), code.splat(type_, -limit))


def either(floats: str, integers: str) -> Emit:
    """The builder's method for floats, and the one for integers."""

    def emit(code: Code, node: Node, *operands: ir.Value) -> ir.Value:
        return getattr(code, floats if is_float(operands[0]) else integers)(*operands)

    return emit


def compare(sign: Comparison) -> Emit:
    """A comparison; one with NaN is false, but != is true."""

    def emit(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
        if is_float(a):
            return code.fcmp_unordered(sign, a, b) if sign == "!=" else code.fcmp_ordered(sign, a, b)
        if element_type(a.type) == I1:
            return code.icmp_unsigned(sign, a, b)
        return code.icmp_signed(sign, a, b)

    return emit


def extreme(sign: Comparison, intrinsic: str) -> Emit:
    """The smaller or larger; NaN if either is."""

    def emit(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
        if is_float(a):
            return code.intrinsic(intrinsic, a.type, [a, b])
        signed = code.icmp_unsigned if element_type(a.type) == I1 else code.icmp_signed
        return code.select(signed(sign, a, b), a, b)

    return emit


def maths(name: str) -> Emit:
    """An elementary function of the table in `maths`."""

    def emit(code: Code, node: Node, x: ir.Value) -> ir.Value:
        return MATHS[name](code, x)

    return emit


def rounded(intrinsic: str) -> Emit:
    """A rounding to whole numbers; integers are whole."""

    def emit(code: Code, node: Node, x: ir.Value) -> ir.Value:
        return code.intrinsic(intrinsic, x.type, [x]) if is_float(x) else x

    return emit


def negative(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """-x."""
    return code.fneg(x) if is_float(x) else code.sub(code.splat(x.type, 0), x)


def absolute(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """|x|."""
    if is_float(x):
        return code.intrinsic("fabs", x.type, [x])
    if element_type(x.type) == I1:
        return x
    return code.select(code.icmp_signed("<", x, code.splat(x.type, 0)), negative(code, node, x), x)


def sign(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """-1, 0 or 1; NaN for NaN."""
    zero, one = code.splat(x.type, 0), code.splat(x.type, 1)
    less = code.fcmp_ordered if is_float(x) else code.icmp_signed
    kept = code.fadd(x, zero) if is_float(x) else zero  # NaN stays, -0 becomes 0
    below = code.select(less("<", x, zero), code.splat(x.type, -1), kept)
    return code.select(less(">", x, zero), one, below)


def safe_divisor(code: Code, b: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """A divisor that no processor traps on, and where it was 0 or -1."""
    zero = code.icmp_signed("==", b, code.splat(b.type, 0))
    minus = code.icmp_signed("==", b, code.splat(b.type, -1))
    return code.select(code.or_(zero, minus), code.splat(b.type, 1), b), zero, minus


def remainder(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """What is left of a floor division: of the sign of the divisor; 0 for integers modulo 0."""
    if is_float(a):
        left, nonzero, differ = float_remainder(code, a, b)
        moved = code.select(differ, code.fadd(left, b), left)
        return code.select(nonzero, moved, code.intrinsic("copysign", a.type, [code.splat(a.type, 0.0), b]))
    divisor, by_zero, by_minus = safe_divisor(code, b)
    left = code.srem(a, divisor)
    zero = code.splat(a.type, 0)
    nonzero = code.icmp_signed("!=", left, zero)
    differ = code.icmp_signed("<", code.xor(left, divisor), zero)
    moved = code.select(code.and_(nonzero, differ), code.add(left, divisor), left)
    return code.select(code.or_(by_zero, by_minus), zero, moved)


def float_remainder(code: Code, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """What the C library's fmod leaves, whether that is not 0, and whether it is of another sign than b."""
    left, zero = fmod(code, a, b), code.splat(a.type, 0.0)
    nonzero = code.fcmp_unordered("!=", left, zero)
    signs = code.xor(code.fcmp_ordered("<", left, zero), code.fcmp_ordered("<", b, zero))
    return left, nonzero, code.and_(nonzero, signs)


def fmod(code: Code, a: ir.Value, b: ir.Value) -> ir.Value:
    """The C library's fmod, lane by lane: exact, and rare enough in a step."""
    element, lanes = element_type(a.type), lanes_of(a)
    name = "fmod" if isinstance(element, ir.DoubleType) else "fmodf"
    if lanes == 1:
        return code.function_call(name, a.type, [a, b])
    result: ir.Value = ir.Constant(a.type, ir.Undefined)
    for lane in range(lanes):
        place = ir.Constant(I32, lane)
        one = [code.extract_element(a, place), code.extract_element(b, place)]
        result = code.insert_element(result, code.function_call(name, element, one), place)
    return result


def floor_divide(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """The quotient rounded down; 0 for integers by 0."""
    if is_float(a):
        left, _, differ = float_remainder(code, a, b)
        towards_zero = code.intrinsic("rint", a.type, [code.fdiv(code.fsub(a, left), b)])
        whole = code.select(differ, code.fsub(towards_zero, code.splat(a.type, 1.0)), towards_zero)
        by_zero = code.fcmp_ordered("==", b, code.splat(b.type, 0.0))
        return code.select(by_zero, code.fdiv(a, b), whole)
    divisor, by_zero, by_minus = safe_divisor(code, b)
    quotient = code.sdiv(code.sub(a, remainder(code, node, a, divisor)), divisor)
    negated = code.select(by_minus, negative(code, node, a), quotient)
    return code.select(by_zero, code.splat(a.type, 0), negated)


def power(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """|x| to a constant power as exp(c log |x|), in float64; NaN for what has no real power.

    To C's pow, and so to NumPy, minus infinity has one: it is what infinity has.
    """
    exponent = float(node.attributes["exponent"])
    narrow = isinstance(element_type(x.type), ir.FloatType)
    wide = code.fpext(x, register_type("float64", lanes_of(x))) if narrow else x
    base = code.intrinsic("fabs", wide.type, [wide])
    if not exponent.is_integer():
        infinite = code.fcmp_ordered("==", base, code.splat(wide.type, float("inf")))
        base = code.select(infinite, base, wide)
    value = MATHS["exp"](code, code.fmul(MATHS["log"](code, base), code.splat(wide.type, exponent)))
    if exponent.is_integer() and exponent % 2:
        value = code.intrinsic("copysign", wide.type, [value, wide])
    return code.fptrunc(value, x.type) if narrow else value


def square_root(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """The square root, rounded correctly."""
    return code.intrinsic("sqrt", x.type, [x])


def same(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """x, which has been brought to the dtype of the result."""
    return x


def logical_and(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """Whether both hold."""
    return code.and_(a, b)


def logical_or(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """Whether one holds."""
    return code.or_(a, b)


def logical_xor(code: Code, node: Node, a: ir.Value, b: ir.Value) -> ir.Value:
    """Whether just one holds."""
    return code.xor(a, b)


def logical_not(code: Code, node: Node, x: ir.Value) -> ir.Value:
    """Whether it does not hold."""
    return code.xor(x, code.splat(x.type, 1))


def where(code: Code, node: Node, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """One of two values, lane by lane."""
    return code.select(condition, a, b)


POINTWISE: dict[str, Emit] = {
    "add": either("fadd", "add"),
    "subtract": either("fsub", "sub"),
    "multiply": either("fmul", "mul"),
    "divide": either("fdiv", "sdiv"),
    "floor_divide": floor_divide,
    "remainder": remainder,
    "minimum": extreme("<", "minimum"),
    "maximum": extreme(">", "maximum"),
    "equal": compare("=="),
    "not_equal": compare("!="),
    "less": compare("<"),
    "less_equal": compare("<="),
    "greater": compare(">"),
    "greater_equal": compare(">="),
    "logical_and": logical_and,
    "logical_or": logical_or,
    "logical_xor": logical_xor,
    "logical_not": logical_not,
    "where": where,
    "negative": negative,
    "absolute": absolute,
    "sign": sign,
    "floor": rounded("floor"),
    "ceil": rounded("ceil"),
    "rint": rounded("rint"),
    "sqrt": square_root,
    "exp": maths("exp"),
    "expm1": maths("expm1"),
    "log": maths("log"),
    "log1p": maths("log1p"),
    "tanh": maths("tanh"),
    "sigmoid": maths("sigmoid"),
    "erf": maths("erf"),
    "power": power,
    "cast": same,
}

# As NumPy has it, the sum of two booleans is their "or", their product is their "and".
BOOLEAN = {"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}
COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
LOGIC = {"logical_and", "logical_or", "logical_xor", "logical_not"}


def working_dtypes(node: Node, operands: list[str]) -> list[str]:
    """The dtype that each operand is brought to before the operation."""
    if node.operation in COMPARISONS:
        return [np.result_type(*operands).name] * len(operands)
    if node.operation in LOGIC:
        return ["bool"] * len(operands)
    if node.operation == "where":
        return ["bool", node.type.dtype, node.type.dtype]
    return [node.type.dtype] * len(operands)


def pointwise(code: Code, node: Node, operands: list[ir.Value], dtypes: list[str]) -> ir.Value:
    """The result of a pointwise node on registers."""
    wanted = working_dtypes(node, dtypes)
    operation = BOOLEAN.get(node.operation, node.operation) if node.type.dtype == "bool" else node.operation
    values = [converted(code, v, d, w) for v, d, w in zip(operands, dtypes, wanted, strict=True)]
    return POINTWISE[operation](code, node, *values)
