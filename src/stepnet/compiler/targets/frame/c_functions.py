"""Constants, routines and what saved states need as definitions of C99."""

import numpy as np

from stepnet.compiler.targets.frame.c_expressions import (
    C_TYPES,
    MEMORY_TYPES,
    SUFFIX,
    indented,
    literal,
    statements,
)
from stepnet.compiler.targets.frame.halves import HALVES
from stepnet.compiler.targets.frame.program import FrameBuffer, Routine

Array = np.ndarray
WIDTH = 100
"""The most characters of a line of numbers."""


def table_lines(buffer: FrameBuffer, values: Array) -> list[str]:
    """Returns the definition of an array of constants."""
    if buffer.dtype in HALVES:
        numbers = [*map(str, values.ravel().view(np.int16).tolist())]
    else:
        dtype = "int8" if buffer.dtype == "bool" else buffer.dtype
        numbers = [literal(value.item(), dtype) for value in values.ravel()]
    lines, line = list[str](), ""
    for number in numbers:
        if len(line) + len(number) + 2 > WIDTH:
            lines.append(line)
            line = ""
        line += f" {number}," if line else f"{number},"
    title = f"static const {MEMORY_TYPES[buffer.dtype]} {buffer.name}[{values.size}] = {{"
    return [title, *indented([*lines, line]), "};"]


BITS_OF = {"int32": "float32", "int64": "float64", "float32": "int32", "float64": "int64"}
"""For each dtype the one of the same size whose bits it may be."""


def bits_function(target: str) -> list[str]:
    """Returns the function from a float to its bits as an integer, or back. target: its result's dtype."""
    source = BITS_OF[target]
    return [
        f"static inline {C_TYPES[target]} bits_{SUFFIX[source]}({C_TYPES[source]} from)",
        "{",
        f"    {C_TYPES[target]} to;",
        "    (void)memcpy((uint8_t *)&to, (const uint8_t *)&from, sizeof to);",
        "    return to;",
        "}",
    ]


def routine_lines(routine: Routine) -> list[str]:
    """Returns the function of a routine."""
    parameters = [f"{C_TYPES[dtype]} r{number}" for number, dtype in enumerate(routine.parameters)]
    given = [(f"r{number}", dtype) for number, dtype in enumerate(routine.parameters)]
    lines, texts = statements(routine.body, given)
    head = f"static inline {C_TYPES[routine.dtype]} {routine.name}({', '.join(parameters)})"
    return [head, "{", *indented([*lines, f"return {texts[routine.result]};"]), "}"]


def scale_lines(prefix: str, end: FrameBuffer) -> list[str]:
    """Returns the constants of an input or output of integers: its scale, and macros from and to numbers."""
    name, most = f"{prefix}_{end.name.upper()}", 2 ** (8 * end.itemsize - 1) - 1
    scale, type_ = f"{name}_SCALE", MEMORY_TYPES[end.dtype]
    lines = [f"#define {scale} {end.scale!r} /* a number is an integer times this */"]
    if end.kind == "output":
        return [*lines, f"#define {name}_NUMBER(integer) ((integer) * {scale})"]
    return [
        *lines,
        f"#define {name}_INTEGER(number) (({type_})( \\",
        f"    ((number) >= ({most} * {scale})) ? {most} : ((number) <= (-{most} * {scale})) ? -{most} : \\",
        f"    (((number) / {scale}) + (((number) < 0) ? -0.5 : 0.5))))",
    ]


CHECKSUM = """\
/* FNV-1a of bytes: any other byte gives another number. */
static uint32_t checksum(const uint8_t *bytes, size_t count)
{
    uint32_t sum = UINT32_C(2166136261);
    for (size_t at = 0U; at < count; at++) {
        sum = (sum ^ (uint32_t)bytes[at]) * UINT32_C(16777619);
    }
    return sum;
}

static void write_word(uint8_t *bytes, uint32_t word)
{
    for (uint32_t at = 0U; at < 4U; at++) {
        bytes[at] = (uint8_t)((word >> (8U * at)) & UINT32_C(0xFF));
    }
}

static uint32_t read_word(const uint8_t *bytes)
{
    uint32_t word = 0U;
    for (uint32_t at = 0U; at < 4U; at++) {
        word |= (uint32_t)bytes[at] << (8U * at);
    }
    return word;
}"""
"""The functions that compute a checksum, and that write and read a word of a saved state."""
