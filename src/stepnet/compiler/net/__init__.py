"""Nets: types, the table of operations, the graph, and the interpreter that defines its meaning."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.net.decays import decay_operands as decay_operands
    from stepnet.compiler.net.decays import gradient_sizes as gradient_sizes
    from stepnet.compiler.net.encodings import Precision as Precision
    from stepnet.compiler.net.extensions import Extension as Extension
    from stepnet.compiler.net.interpreter import LevelSizes as LevelSizes
    from stepnet.compiler.net.interpreter import interpret as interpret
    from stepnet.compiler.net.interpreter import widened as widened
    from stepnet.compiler.net.ir import Builder as Builder
    from stepnet.compiler.net.ir import Net as Net
    from stepnet.compiler.net.ir import Node as Node
    from stepnet.compiler.net.ir import Recur as Recur
    from stepnet.compiler.net.memory import HOST as HOST
    from stepnet.compiler.net.ops import OPERATIONS as OPERATIONS
    from stepnet.compiler.net.pairs import PairPlaces as PairPlaces
    from stepnet.compiler.net.types import CONST as CONST
    from stepnet.compiler.net.types import ROWS as ROWS
    from stepnet.compiler.net.types import STEPS as STEPS
    from stepnet.compiler.net.types import Extent as Extent
    from stepnet.compiler.net.types import Type as Type
    from stepnet.compiler.net.windows import Window as Window

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
