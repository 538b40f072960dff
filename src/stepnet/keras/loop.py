"""The replacement of Keras' method `inner_loop`, which runs the loop of all recurrent layers.

inner_loop(sequences, initial_state, mask, training)   -->   compiled, on Keras' backend
                                                       -->   Keras' own loop; the reason is recorded
"""

from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.backend import KerasBackend
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.records import note
from stepnet.keras.recurrences import Results

keras: Any = installed()
tree: Any = keras.tree
in_symbolic_scope: Any = installed("keras.src.backend.common.symbolic_scope").in_symbolic_scope

ON = {name: f"stepnet.keras.on_{name}" for name in ("torch", "numpy", "tensorflow", "jax")}
"""The module that runs calls on each backend of Keras."""

backend: KerasBackend = import_module(ON.get(keras.backend.backend(), "stepnet.keras.on_others")).BACKEND

OWN_LOOP: ContextVar[Any] = ContextVar("OWN_LOOP", default=None)
"""The layer whose own loop is running now, or None."""


def inner_loop(
    layer: Any, theirs: Callable[..., Results], sequences: Any, initial_state: Any, mask: Any, training: Any
) -> Results:
    """Runs the loop of a recurrent layer over the steps, compiled where possible, and records how it ran.

    theirs: the layer's own `inner_loop`, which runs calls that cannot be compiled. The other parameters, and
    the result (last output, outputs, final states), are as in Keras' `inner_loop`.
    """
    if OWN_LOOP.get() is layer:  # the loops of Keras' classes call one another
        return theirs(sequences, initial_state, mask, training)
    states = initial_state if tree.is_nested(initial_state) else [initial_state]
    packed = sequences if isinstance(sequences, PackedInputs) else PackedInputs(sequences)
    if shapes := backend.symbolic_results(layer, packed, states, bool(training)):
        return shapes
    if in_symbolic_scope():  # Keras only asks for shapes: not counted as a call
        return own_loop(layer, theirs, packed, states, mask, bool(training))
    return compiled_or_own_loop(layer, theirs, packed, states, mask, bool(training))


@backend.without_tracing
def compiled_or_own_loop(
    layer: Any, theirs: Callable[..., Results], packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Results:
    """Runs a call compiled, or by Keras' own loop (`theirs`) if the backend refuses it; records which.

    packed: the sequences. states: the initial states. mask: [batch, time] or None. training: whether the
    layer is in training.
    """
    try:
        run = backend.prepare(layer, packed, states, mask, training)
    except StepError as error:
        note(layer, str(error))
        return own_loop(layer, theirs, packed, states, mask, training)
    note(layer, None)
    return run()


def own_loop(
    layer: Any, theirs: Callable[..., Results], packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Results:
    """Runs a call by Keras' own loop (`theirs`). Meanwhile the layer is stored in `OWN_LOOP`, as this loop
    may call the replaced `inner_loop` again, which must then run Keras' own.

    packed: the sequences. states: the initial states. mask: [batch, time] or None. training: whether the
    layer is in training.
    """
    token = OWN_LOOP.set(layer)
    try:
        return theirs(packed.parts, states, mask, training)
    finally:
        OWN_LOOP.reset(token)
