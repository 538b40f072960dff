"""Constants and routines of frame programs as definitions of C99."""

import numpy as np

from stepnet.compiler.targets.frame.c_expressions import C_TYPES, MEMORY_TYPES, SUFFIX, literal, statements
from stepnet.compiler.targets.frame.c_loops import indented
from stepnet.compiler.targets.frame.program import FrameBuffer, Routine

Array = np.ndarray
WIDTH = 100
"""The most characters of a line of numbers."""


def table_lines(buffer: FrameBuffer, values: Array) -> list[str]:
    """Returns the definition of an array of constants."""
    numbers = [
        literal(value.item(), "int8" if buffer.dtype == "bool" else buffer.dtype) for value in values.ravel()
    ]
    lines, line = list[str](), ""
    for number in numbers:
        if len(line) + len(number) + 2 > WIDTH:
            lines.append(line)
            line = ""
        line += f" {number}," if line else f"{number},"
    title = f"static const {MEMORY_TYPES[buffer.dtype]} {buffer.name}[{buffer.size}] = {{"
    return [title, *indented([*lines, line]), "};"]


def bits_functions(dtype: str) -> list[str]:
    """Returns the functions from the bits of a float to an integer, and back."""
    floating, integer = ("float32", "int32") if dtype == "float32" else ("float64", "int64")
    lines = list[str]()
    for source, target in ((floating, integer), (integer, floating)):
        lines += [
            f"static inline {C_TYPES[target]} bits_{SUFFIX[source]}({C_TYPES[source]} from)",
            "{",
            f"    {C_TYPES[target]} to;",
            "    (void)memcpy(&to, &from, sizeof to);",
            "    return to;",
            "}",
        ]
    return lines


def routine_lines(routine: Routine) -> list[str]:
    """Returns the function of a routine."""
    parameters = [f"{C_TYPES[dtype]} r{number}" for number, dtype in enumerate(routine.parameters)]
    given = [(f"r{number}", dtype) for number, dtype in enumerate(routine.parameters)]
    lines, texts = statements(routine.body, given, {})
    head = f"static inline {C_TYPES[routine.dtype]} {routine.name}({', '.join(parameters)})"
    return [head, "{", *indented([*lines, f"return {texts[routine.result]};"]), "}"]
