"""The elementary functions by the names of their operations: one table, one row per function.

Each is straight-line code on vectors (or scalars) of float or double; see `maths`.
"""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import Code
from stepnet.compiler.targets.cpu.writing.hyperbolic import cosh, sinh
from stepnet.compiler.targets.cpu.writing.maths import erf, exp, expm1, log, log1p, sigmoid, tanh
from stepnet.compiler.targets.cpu.writing.trigonometry import arctan, cos, sin, tan

ELEMENTARY: dict[str, Callable[[Code, ir.Value], ir.Value]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "arctan": arctan,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
}
