"""The reductions of frame programs as LLVM code: what each begins with, and what an element does to it."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.frame.machine.instructions import FLOATS, FrameCode

Values = list[ir.Value]


def add(code: FrameCode, dtype: str, value: ir.Value, total: ir.Value) -> Values:
    """Writes the sum so far plus an element."""
    return [code.fadd(total, value) if dtype in FLOATS else code.add(total, value)]


def multiply(code: FrameCode, dtype: str, value: ir.Value, total: ir.Value) -> Values:
    """Writes the product so far times an element."""
    return [code.fmul(total, value) if dtype in FLOATS else code.mul(total, value)]


def extreme(sign: Literal["<", ">"]) -> Callable[..., Values]:
    """Makes the function that writes the largest (">") or smallest ("<") element so far; NaN once it is."""

    def write(code: FrameCode, dtype: str, value: ir.Value, best: ir.Value) -> Values:
        """Writes the extreme of the one so far and an element."""
        if dtype not in FLOATS:
            return [code.select(code.compare(sign_of(dtype), sign, value, best), value, best)]
        better = code.or_(code.fcmp_ordered(sign, value, best), code.fcmp_unordered("uno", value, value))
        ended = code.fcmp_unordered("uno", best, best)
        return [code.select(ended, best, code.select(better, value, best))]

    return write


def first_maximum(
    code: FrameCode, dtype: str, value: ir.Value, best: ir.Value, found: ir.Value, place: ir.Value
) -> Values:
    """Writes the largest element so far and its place, and the place of the next one. NaN is the largest."""
    better = is_larger(code, dtype, value, best)
    following = code.add(place, ir.Constant(place.type, 1))
    return [code.select(better, value, best), code.select(better, place, found), following]


def is_larger(code: FrameCode, dtype: str, value: ir.Value, best: ir.Value) -> Any:
    """Writes whether an element is larger than the largest one so far, which is none if it is NaN."""
    if dtype not in FLOATS:
        return code.compare(sign_of(dtype), ">", value, best)
    is_nan = code.fcmp_unordered("uno", value, value)
    open_ = code.fcmp_ordered("ord", best, best)
    return code.or_(code.fcmp_ordered(">", value, best), code.and_(is_nan, open_))


def sign_of(dtype: str) -> str:
    """Returns whether integers of a dtype compare as signed ("s") or not ("u")."""
    return "u" if dtype == "bool" else "s"


REDUCTIONS: Mapping[str, tuple[str, Callable[..., Values]]] = {
    "sum": ("zero", add),
    "max": ("least", extreme(">")),
    "min": ("most", extreme("<")),
    "argmax": ("least", first_maximum),
    "cumsum": ("minus zero", add),
    "cumprod": ("one", multiply),
}
"""The beginning of each reduction, and the function that writes the step of an element."""


def start_of(kind: str, dtype: str) -> float | int:
    """Returns the number that a reduction begins with: "zero", "minus zero" (a prefix sum of -0 is -0),
    "one", or the "least" or "most" of a dtype.
    """
    if kind == "minus zero":
        return -0.0 if dtype in FLOATS else 0
    if kind in ("zero", "one"):
        return int(kind == "one")
    if dtype == "bool":
        return int(kind == "most")
    if dtype in FLOATS:
        return float("-inf") if kind == "least" else float("inf")
    info = np.iinfo(dtype)
    return int(info.min if kind == "least" else info.max)
