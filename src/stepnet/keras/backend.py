"""The record of a backend of Keras: how calls of recurrent layers run on it. Each `on_*.py` makes one."""

from collections.abc import Callable
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import Results


def no_results(layer: Any, packed: PackedInputs, states: Any, training: bool) -> Results | None:
    """Returns None: Keras' own loop finds the shapes of symbolic results. The arguments are not read."""
    return None


def unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as it is, for backends that trace none (see `KerasBackend.without_tracing`)."""
    return function


@dataclass(frozen=True)
class KerasBackend:
    """The way in which calls of recurrent layers run on a backend of Keras.

    prepare: checks a call, of a layer on sequences from initial states, with Keras' mask or None, and whether
        the layer is in training. It returns the function that runs the call compiled, and raises `StepError`
        for a call that Keras' own loop must run.
    symbolic_results: returns the results of a call as shapes without numbers; None where Keras finds them.
    without_tracing: hides a function from the tracers of the backend.
    """

    prepare: Callable[[Any, PackedInputs, Any, Any, bool], Callable[[], Results]]
    symbolic_results: Callable[[Any, PackedInputs, Any, bool], Results | None] = no_results
    without_tracing: Callable[..., Any] = unchanged
