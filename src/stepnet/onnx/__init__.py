"""ONNX: `load` reads a model as a graph, `save` writes a graph as a model, `Backend` is for ONNX's tools."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import imported_late
from stepnet.onnx.kept import load

if TYPE_CHECKING:
    from stepnet.onnx.backend import Backend, Prepared
    from stepnet.onnx.saving import save

__all__ = ["Backend", "Prepared", "load", "save"]


HOMES = {"Backend": "backend", "Prepared": "backend", "save": "saving"}
"""The modules of names that are imported at their first use: `load` does not need what they import."""


def __getattr__(name: str) -> object:
    """Returns one of `HOMES`, imported at the first access; raises `AttributeError` for any other name."""
    return imported_late(__name__, name, HOMES.get(name))


def __dir__() -> list[str]:
    return sorted(__all__)
