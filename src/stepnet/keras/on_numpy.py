"""The numpy backend, without gradients: runs a call of a layer with one of Keras' own cells."""

from collections.abc import Callable
from typing import Any

from stepnet.keras.array_call import ArrayCall
from stepnet.keras.backend import KerasBackend
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import Results


def prepare(
    layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Callable[[], Results]:
    """Checks a call of a layer on NumPy and returns the function that runs it compiled.

    packed: the sequences. states: the initial states. mask: Keras' mask, or None. training: whether the layer
    is in training. Raises `StepError` for a call that Keras' own loop must run.
    """
    call = ArrayCall.of(layer, packed, states, mask, training)
    return lambda: call.results(call.loop.results(call.tensors, call.mask))


BACKEND = KerasBackend(prepare)
