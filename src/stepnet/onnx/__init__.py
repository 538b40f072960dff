"""ONNX: `load` makes a graph of a model, `save` a model of a graph, and `Backend` is for ONNX's own tools."""

from stepnet.onnx.backend import Backend, Prepared
from stepnet.onnx.loading import load
from stepnet.onnx.saving import save

__all__ = ["Backend", "Prepared", "load", "save"]


def __dir__() -> list[str]:
    return sorted(__all__)
