"""The loop over the steps of a recurrent layer: it replaces Keras' `inner_loop`.

    inner_loop(sequences, initial_state, mask, training)   -->   compiled, on Keras' backend
                                                           -->   Keras' own loop, with the reason on record

One procedure for every layer and cell.
"""

from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.installed import installed
from stepnet.keras.records import note
from stepnet.keras.way import Results
from stepnet.keras.whole import Whole

keras: Any = installed()
tree: Any = keras.tree
in_symbolic_scope: Any = installed("keras.src.backend.common.symbolic_scope").in_symbolic_scope

ON = {name: f"stepnet.keras.on_{name}" for name in ("torch", "numpy", "tensorflow", "jax")}
"""The module that runs calls on each of Keras' backends."""

backend: Any = import_module(ON.get(keras.backend.backend(), "stepnet.keras.on_others"))

OWN_LOOP: ContextVar[Any] = ContextVar("OWN_LOOP", default=None)
"""The layer whose own loop is running."""


def inner_loop(
    layer: Any, theirs: Callable[..., Results], sequences: Any, initial_state: Any, mask: Any, training: Any
) -> Results:
    """What a layer's `inner_loop` gives. theirs: Keras' own, which runs what cannot be compiled."""
    if OWN_LOOP.get() is layer:  # Keras' loops call one another
        return theirs(sequences, initial_state, mask, training)
    states = initial_state if tree.is_nested(initial_state) else [initial_state]
    whole = sequences if isinstance(sequences, Whole) else Whole(sequences)
    if shapes := backend.symbolic(layer, whole, states, bool(training)):
        return shapes
    if in_symbolic_scope():  # where Keras asks for shapes alone, this is no call
        return own_loop(layer, theirs, whole, states, mask, bool(training))
    return answer(layer, theirs, whole, states, mask, bool(training))


@backend.untraced
def answer(
    layer: Any, theirs: Callable[..., Results], whole: Whole, states: Any, mask: Any, training: bool
) -> Results:
    """The results, compiled or by Keras' own loop."""
    try:
        run = backend.prepared(layer, whole, states, mask, training)
    except StepError as error:
        note(layer, str(error))
        return own_loop(layer, theirs, whole, states, mask, training)
    note(layer, None)
    return run()


def own_loop(
    layer: Any, theirs: Callable[..., Results], whole: Whole, states: Any, mask: Any, training: bool
) -> Results:
    """The results by Keras' own loop."""
    token = OWN_LOOP.set(layer)
    try:
        return theirs(whole.parts, states, mask, training)
    finally:
        OWN_LOOP.reset(token)
