"""Saved programs of PaddlePaddle as graphs: `load`."""

from stepnet.paddle.loading import load

__all__ = ["load"]
