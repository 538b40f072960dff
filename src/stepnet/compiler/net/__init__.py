"""Nets: types, the table of operations, the graph, and the interpreter that defines its meaning."""

from stepnet.compiler.net.decays import decay_operands
from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.net.extensions import Extension
from stepnet.compiler.net.interpret import LevelSizes, interpret, widened
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
    "interpret",
    "widened",
]
