"""The instructions of frame programs as expressions of C99, without undefined behaviour."""

import math
from collections.abc import Sequence

import numpy as np

from stepnet.compiler.net.text import INFIX
from stepnet.compiler.targets.frame.halves import HALVES
from stepnet.compiler.targets.frame.program import Instruction, StridedView
from stepnet.compiler.targets.frame.routines import DTYPES
from stepnet.compiler.values import c_names

MEMORY_TYPES = {**{dtype: c_names.C_TYPES[dtype] for dtype in DTYPES}, **dict.fromkeys(HALVES, "int16_t")}
"""The type of an element of each dtype in memory. Bits of 16 are signed, as loads extend the sign."""
C_TYPES = {**MEMORY_TYPES, "bool": "bool"}
"""The type of a register of each dtype."""
SUFFIX = {
    "float32": "f32",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
    "bool": "b8",
    "int16": "i16",
    "int8": "i8",
    "float16": "f16",
    "bfloat16": "bf16",
}
"""The ends of names in C by dtype, such as the names of arenas and functions."""
FLOATS = ("float32", "float64")
UNSIGNED = {"int32": "uint32_t", "int64": "uint64_t"}
OPERATORS = {**INFIX, "unsigned_right_shift": ">>"}
"""The operators of C; of a signed number the shift to the right is no operator here."""
LOGIC = {"bitwise_and": "&&", "bitwise_or": "||", "bitwise_xor": "!="}
WRAPPING = {
    operation: OPERATORS[operation]
    for operation in ("add", "subtract", "multiply", *LOGIC, "left_shift", "unsigned_right_shift")
} | {"negative": "-"}
"""Operations of integers that are those of unsigned ones, which wrap around; a negative is 0 less one."""
EXTREMES = {"minimum": "<", "maximum": ">"}
FUNCTIONS = {"absolute": "fabs", "copysign": "copysign", "sqrt": "sqrt"}
"""Functions of math.h that compilers replace by instructions: the first two are operations on bits."""


def literal(value: float | int | bool, dtype: str) -> str:
    """Returns a number as a constant of C.

    >>> literal(0.1, "float32"), literal(-(2**31), "int32"), literal(True, "bool"), literal(2.0, "float64")
    ('0.1F', '(-INT32_C(2147483647) - 1)', 'true', '2.0')
    """
    if dtype in FLOATS:
        if math.isnan(value):
            return "NAN" if dtype == "float32" else "((double)NAN)"
        if math.isinf(value):
            text = "INFINITY" if dtype == "float32" else "((double)INFINITY)"
            return text if value > 0 else f"(-{text})"
        return f"{np.float32(value)!s}F" if dtype == "float32" else repr(float(value))
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in ("int8", "int16"):
        return str(int(value))
    bits = 32 if dtype == "int32" else 64
    if value == -(2 ** (bits - 1)):
        return f"(-INT{bits}_C({2 ** (bits - 1) - 1}) - 1)"
    return f"INT{bits}_C({int(value)})" if value >= 0 else f"(-INT{bits}_C({-int(value)}))"


def expression(instruction: Instruction, operands: Sequence[str], dtypes: Sequence[str]) -> str:
    """Returns the expression of an instruction. operands, dtypes: the text and the dtype of each operand."""
    operation, dtype = instruction.operation, instruction.dtype
    own = dtypes[0] if dtypes else dtype
    if operation == "constant":
        assert not isinstance(instruction.value, str | None)
        return literal(instruction.value, dtype)
    if operation == "element":
        return f"{instruction.value}[{operands[0]}]"
    if operation == "select":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}"
    if operation in EXTREMES:
        return f"({operands[0]} {EXTREMES[operation]} {operands[1]}) ? {operands[0]} : {operands[1]}"
    if operation == "right_shift":  # compilers make one instruction of this
        x, count = operands
        return f"({x} < 0) ? ~(~{x} >> {count}) : ({x} >> {count})"
    if operation == "bits":
        return f"bits_{SUFFIX[own]}({operands[0]})"
    if operation == "convert":
        return converted(operands[0], own, dtype)
    if operation == "negative":
        return f"-{operands[0]}"
    if operation in FUNCTIONS:
        return f"{FUNCTIONS[operation]}{'f' if own == 'float32' else ''}({', '.join(operands)})"
    if operation not in OPERATORS:
        return f"{operation}({', '.join(operands)})"
    sign = OPERATORS[operation]
    if own == "bool" and operation in LOGIC:
        sign = LOGIC[operation]
    return f"{operands[0]} {sign} {operands[1]}"


def converted(text: str, source: str, target: str) -> str:
    """Returns a conversion of a number from one dtype to another."""
    if source == target:
        return text
    if target == "bool":
        return f"{text} != {literal(0, source)}"
    if source == "bool":
        return f"{text} ? {literal(1, target)} : {literal(0, target)}"
    if source == "int64" and target == "int32":
        return f"(int32_t)(uint32_t)((uint64_t){text} & UINT64_C(0xFFFFFFFF))"
    return f"({C_TYPES[target]}){text}"


def statements(body: Sequence[Instruction], given: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Returns the statements of instructions, and the text of all registers. Constants are written where they
    are used.

    given: the text and the dtype of each of the first registers.
    """
    texts, dtypes, lines = [text for text, _ in given], [dtype for _, dtype in given], list[str]()
    unsigned = dict[int, str]()
    for number, each in enumerate(body, len(given)):
        operands, own = [texts[operand] for operand in each.operands], [dtypes[i] for i in each.operands]
        type_ = C_TYPES[each.dtype]
        if own and own[0] in UNSIGNED and each.operation in WRAPPING:
            wide = UNSIGNED[own[0]]
            terms = [unsigned.get(operand, f"({wide}){texts[operand]}") for operand in each.operands]
            right = f" {WRAPPING[each.operation]} ".join(terms if len(terms) > 1 else ["0U", *terms])
            lines += [f"const {wide} u{number} = {right};", f"const {type_} r{number} = ({type_})u{number};"]
            texts.append(f"r{number}")
        elif each.operation == "multiply_high":
            lines.append(f"const int64_t u{number} = (int64_t){operands[0]} * (int64_t){operands[1]};")
            lines.append(f"const {type_} r{number} = ({type_})(uint32_t)((uint64_t)u{number} >> 32U);")
            texts.append(f"r{number}")
        elif each.operation == "constant":
            texts.append(expression(each, operands, own))
            if each.dtype in UNSIGNED:
                bits = 8 * np.dtype(each.dtype).itemsize
                unsigned[number] = f"UINT{bits}_C({int(each.value or 0) % 2**bits})"
        else:
            texts.append(f"r{number}")
            lines.append(f"const {type_} r{number} = {expression(each, operands, own)};")
        dtypes.append(each.dtype)
    return lines, texts


def indexed(view: StridedView, indices: Sequence[str]) -> str:
    """Returns an element of a view as text, by the names of the loop's indices.

    >>> indexed(StridedView("t0", 4, (8, 1)), ["i0", "i1"]), indexed(StridedView("x", 3, (-1,)), ["i0"])
    ('t0[4U + (8U * i0) + i1]', 'x[3U - i0]')
    """
    text = f"{view.offset}U" if view.offset or not any(view.strides) else ""
    for stride, index in zip(view.strides, indices, strict=True):
        if stride:
            term = index if abs(stride) == 1 else f"({abs(stride)}U * {index})"
            text += f" {'+' if stride > 0 else '-'} {term}" if text else term
    return f"{view.buffer}[{text}]"


def loaded(view: StridedView, indices: Sequence[str], dtype: str) -> str:
    """Returns the expression that reads an element of a view into a register."""
    text = indexed(view, indices)
    return f"{text} != 0U" if dtype == "bool" else text


def stored(view: StridedView, indices: Sequence[str], dtype: str, text: str) -> str:
    """Returns the statement that writes a register to an element of a view."""
    value = f"(uint8_t)({text} ? 1U : 0U)" if dtype == "bool" else text
    return f"{indexed(view, indices)} = {value};"


def indented(lines: Sequence[str]) -> list[str]:
    """Indents lines by one level."""
    return [f"    {line}" for line in lines]
