"""Nets: types, the table of operations, the graph, and the interpreter that defines its meaning."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.net.decays import decay_operands, gradient_sizes
    from stepnet.compiler.net.encodings import Precision
    from stepnet.compiler.net.extensions import Extension
    from stepnet.compiler.net.interpreter import LevelSizes, interpret, widened
    from stepnet.compiler.net.ir import Builder, Net, Node, Recur
    from stepnet.compiler.net.memory import HOST
    from stepnet.compiler.net.ops import OPERATIONS
    from stepnet.compiler.net.pairs import PairPlaces
    from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, Type
    from stepnet.compiler.net.windows import Window

__all__ = [
    "CONST",
    "HOST",
    "OPERATIONS",
    "ROWS",
    "STEPS",
    "Builder",
    "Extension",
    "Extent",
    "LevelSizes",
    "Net",
    "Node",
    "PairPlaces",
    "Precision",
    "Recur",
    "Type",
    "Window",
    "decay_operands",
    "gradient_sizes",
    "interpret",
    "widened",
]

__getattr__ = late_names(
    __name__,
    ("decays", "decay_operands gradient_sizes"),
    ("encodings", "Precision"),
    ("extensions", "Extension"),
    ("interpreter", "LevelSizes interpret widened"),
    ("ir", "Builder Net Node Recur"),
    ("memory", "HOST"),
    ("ops", "OPERATIONS"),
    ("pairs", "PairPlaces"),
    ("types", "CONST ROWS STEPS Extent Type"),
    ("windows", "Window"),
)
