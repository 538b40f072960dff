"""ONNX: `load` reads a model as a graph, `save` writes a graph as a model, `Backend` is for ONNX's tools."""

from importlib import import_module
from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.onnx.loading import load
from stepnet.onnx.saving import save

if TYPE_CHECKING:
    from stepnet.onnx.backend import Backend, Prepared

__all__ = ["Backend", "Prepared", "load", "save"]


def __getattr__(name: str) -> object:
    """Returns `Backend` or `Prepared`, imported at the first access, since only they need the package onnx;
    raises `AttributeError` for any other name.
    """
    if name not in ("Backend", "Prepared"):
        raise AttributeError(f"module 'stepnet.onnx' has no attribute '{name}'")
    with IMPORTS:
        return getattr(import_module("stepnet.onnx.backend"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
