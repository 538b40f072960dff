"""All other backends of Keras: refuses each call, so that Keras' own loop runs."""

from collections.abc import Callable
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.backend import KerasBackend
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import Results

keras: Any = installed()


def prepare(
    layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Callable[[], Results]:
    """Raises `StepError` for every call: stepnet does not run on this backend, so Keras' own loop does. The
    arguments, those of a call, are not read.
    """
    name = keras.backend.backend()
    raise StepError(f"the backend is {name}: stepnet runs layers on torch, tensorflow, jax and numpy")


BACKEND = KerasBackend(prepare)
