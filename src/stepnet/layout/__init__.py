"""Layouts of weights in other frameworks: the place and the meaning of each number, and conversions."""

from stepnet.layout.convert import Conversion, convert
from stepnet.layout.find import find
from stepnet.layout.layers import layers
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes
from stepnet.layout.state import from_torch
from stepnet.layout.verify import Weights, verify

__all__ = [
    "Conversion",
    "Record",
    "Semantics",
    "Sizes",
    "Weights",
    "convert",
    "find",
    "from_torch",
    "layers",
    "record",
    "records",
    "verify",
]

__dir__ = __all__.copy
