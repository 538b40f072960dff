"""Dtypes, nested structures of arrays, and checks of arguments: used by every stage."""

from stepnet.compiler.values.dtypes import COMPUTED, DTYPES
from stepnet.compiler.values.structure import leaves, named_leaves, rebuild, transform

__all__ = ["COMPUTED", "DTYPES", "leaves", "named_leaves", "rebuild", "transform"]
