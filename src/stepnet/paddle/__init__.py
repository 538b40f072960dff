"""Saved programs of PaddlePaddle as graphs: `load`."""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import imported_late

if TYPE_CHECKING:
    from stepnet.paddle.loading import load

__all__ = ["load"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    """Imports a name at its first use."""
    return imported_late(__name__, name, "loading" if name in __all__ else None)
