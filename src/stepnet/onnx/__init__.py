"""ONNX: `load` reads a model as a graph, `save` writes a graph as a model, `Backend` is for ONNX's tools."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import imported_late
from stepnet.onnx.loading import load
from stepnet.onnx.saving import save

if TYPE_CHECKING:
    from stepnet.onnx.backend import Backend, Prepared

__all__ = ["Backend", "Prepared", "load", "save"]


def __getattr__(name: str) -> object:
    """Returns `Backend` or `Prepared`, imported at the first access, since only they need the package onnx;
    raises `AttributeError` for any other name.
    """
    return imported_late(__name__, name, "backend" if name in ("Backend", "Prepared") else None)


def __dir__() -> list[str]:
    return sorted(__all__)
