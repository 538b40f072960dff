"""ONNX models as graphs, and graphs as ONNX models: `load`, `save`, and `Backend`, with which ONNX's own tools
run them.
"""

from stepnet.onnx.backend import Backend, Prepared
from stepnet.onnx.loading import load
from stepnet.onnx.saving import save

__all__ = ["Backend", "Prepared", "load", "save"]
