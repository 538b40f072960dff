"""Saved programs of PaddlePaddle as graphs: `load`."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.paddle.loading import load

__all__ = ["load"]

__getattr__ = late_names(__name__, ("loading", "load"))
__dir__ = __all__.copy
