"""All other backends of Keras: refuses each call, so that Keras' own loop runs."""

from collections.abc import Callable
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import Results

keras: Any = installed()


def symbolic_results(layer: Any, packed: PackedInputs, states: Any, training: bool) -> Results | None:
    """Returns None: Keras finds the shapes."""
    return None


def prepare(
    layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Callable[[], Results]:
    """Refuses every call with a `StepError` that names the backend."""
    name = keras.backend.backend()
    raise StepError(f"the backend is {name}: stepnet runs layers on torch, tensorflow, jax and numpy")


def without_tracing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function unchanged."""
    return function
