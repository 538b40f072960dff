"""The loop of a recurrent layer on Keras' numpy backend, which has no gradients: Keras' own cells."""

from collections.abc import Callable
from typing import Any

from stepnet.keras.array_call import ArrayCall
from stepnet.keras.way import Results
from stepnet.keras.whole import Whole


def symbolic(layer: Any, whole: Whole, states: Any, training: bool) -> Results | None:
    """None: Keras finds shapes from numbers here."""
    return None


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function: nothing is traced on this backend."""
    return function


def prepared(layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> Callable[[], Results]:
    """The function that runs a call of a layer; raises `StepError` for a call that Keras' own loop should
    run.
    """
    call = ArrayCall.of(layer, whole, states, mask, training)
    return lambda: call.results(call.loop.results(call.tensors, call.mask))
