"""ONNX: `load` reads a model as a graph, `save` writes a graph as a model, `Backend` is for ONNX's tools."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names
from stepnet.onnx.kept import load

if TYPE_CHECKING:
    from stepnet.onnx.backend import Backend, Prepared
    from stepnet.onnx.saving import save

__all__ = ["Backend", "Prepared", "load", "save"]

__getattr__ = late_names(__name__, ("backend", "Backend Prepared"), ("saving", "save"))
__dir__ = __all__.copy
