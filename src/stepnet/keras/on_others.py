"""All other backends of Keras: refuses each call, so that Keras' own loop runs."""

from collections.abc import Callable
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import Results

keras: Any = installed()


def symbolic_results(layer: Any, packed: PackedInputs, states: Any, training: bool) -> Results | None:
    """Returns None: on other backends, Keras' own loop finds the shapes of symbolic results. The arguments,
    those of a call, are not read.
    """
    return None


def prepare(
    layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Callable[[], Results]:
    """Raises `StepError` for every call: stepnet does not run on this backend, so Keras' own loop does. The
    arguments, those of a call, are not read.
    """
    name = keras.backend.backend()
    raise StepError(f"the backend is {name}: stepnet runs layers on torch, tensorflow, jax and numpy")


def without_tracing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function unchanged; on torch and tensorflow it is wrapped to be hidden from tracers."""
    return function
