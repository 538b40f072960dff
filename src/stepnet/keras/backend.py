"""The record of a backend of Keras: how calls of recurrent layers run on it. Each `on_*.py` makes one."""

from collections.abc import Callable
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import Results


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
    symbolic_results: Callable[[Any, PackedInputs, Any, bool], Results | None] = lambda _, __, ___, ____: None
    without_tracing: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
