"""Saved programs of PaddlePaddle as graphs: `load`."""

from stepnet.paddle.loading import load

__all__ = ["load"]


def __dir__() -> list[str]:
    return __all__
