"""Keras' backends whose own loops run."""

from collections.abc import Callable
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.installed import installed
from stepnet.keras.way import Results
from stepnet.keras.whole import Whole

keras: Any = installed()


def symbolic(layer: Any, whole: Whole, states: Any, training: bool) -> Results | None:
    """None: shapes are found by Keras."""
    return None


def prepared(layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> Callable[[], Results]:
    """Refused."""
    name = keras.backend.backend()
    raise StepError(f"the backend is {name}: stepnet runs layers on torch, tensorflow, jax and numpy")


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function."""
    return function
