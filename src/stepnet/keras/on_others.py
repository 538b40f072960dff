"""Keras' backends whose own loops run: see docs/keras.md for what was measured."""

from collections.abc import Callable
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.installed import installed
from stepnet.keras.way import Results
from stepnet.keras.whole import Whole

keras: Any = installed()

MEASURED = {
    "jax": "a callback was 1.1 to 2.3 times as fast for gradients, 0.8 to 1.3 times for outputs",
    "tensorflow": "a callback was 0.9 to 2.7 times as fast for gradients, 1.5 to 3.6 times for outputs",
}
"""What prototypes measured; docs/keras.md has the sizes."""


def symbolic(layer: Any, whole: Whole, states: Any, training: bool) -> Results | None:
    """None: shapes are found by Keras."""
    return None


def prepared(layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> Callable[[], Results]:
    """Refused."""
    name = keras.backend.backend()
    figure = f" ({MEASURED[name]}, and is not built)" if name in MEASURED else ""
    raise StepError(f"the backend is {name}: stepnet runs layers on torch and numpy{figure}")


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function."""
    return function
