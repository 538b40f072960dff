"""Dtypes, nested structures of arrays, and checks of arguments: used by every stage."""

from stepnet.compiler.values.dtypes import COMPUTED, DTYPES
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild, transform
from stepnet.compiler.values.version import check_lock, has_lock

__all__ = [
    "COMPUTED",
    "DTYPES",
    "check_lock",
    "dataclass",
    "has_lock",
    "leaves",
    "named_leaves",
    "rebuild",
    "transform",
]
