"""ONNX models as graphs: `load`, and `Backend`, with which ONNX's own tools run them."""

from stepnet.onnx.backend import Backend, Prepared
from stepnet.onnx.loading import load

__all__ = ["Backend", "Prepared", "load"]


def __dir__() -> list[str]:
    return sorted(__all__)
