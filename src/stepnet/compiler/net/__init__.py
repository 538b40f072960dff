"""Nets: types, the table of operations, the graph, and the interpreter that defines its meaning."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import imported_late

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
HOMES = {
    "CONST": "types",
    "HOST": "memory",
    "OPERATIONS": "ops",
    "ROWS": "types",
    "STEPS": "types",
    "Builder": "ir",
    "Extension": "extensions",
    "Extent": "types",
    "LevelSizes": "interpreter",
    "Net": "ir",
    "Node": "ir",
    "PairPlaces": "pairs",
    "Precision": "encodings",
    "Recur": "ir",
    "Type": "types",
    "Window": "windows",
    "decay_operands": "decays",
    "gradient_sizes": "decays",
    "interpret": "interpreter",
    "widened": "interpreter",
}
"""The modules of names, which are imported at their first use: a package whose import imports its modules can
wait for a thread that imports one of them, and the thread for the package.
"""


def __getattr__(name: str) -> object:
    """Imports a name at its first use."""
    return imported_late(__name__, name, HOMES.get(name))
