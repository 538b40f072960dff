"""`accelerate`: makes stepnet run the recurrent layers of Keras itself, also in loaded models."""

from threading import Lock
from typing import Any, Self

from stepnet.compiler.targets import Order, checked_engine
from stepnet.errors import InputError
from stepnet.keras.installed import installed
from stepnet.keras.overrides import OVERRIDES, bind_override, overrides_of
from stepnet.keras.recurrences import ACCELERATED
from stepnet.model.program import Asked

keras: Any = installed()
METHODS = [(kind, name) for kind, known in OVERRIDES.items() for name in known] + [
    (kind, "inner_loop") for kind in (keras.layers.LSTM, keras.layers.GRU)
]
"""The methods to replace, as (class, name), where Keras defines them; other methods call one of these."""

THEIRS: dict[Any, Any] = {(kind, name): vars(kind)[name] for kind, name in METHODS}
"""Keras' original methods, by class and name, to restore."""


class Accelerated:
    """An acceleration of Keras, active until `undo` or the end of its with-block. Several may be active."""

    changing = Lock()
    """Lock for `ACCELERATED` and the replaced methods: threads may begin and end accelerations."""

    def __init__(self, engine: Order = "auto") -> None:
        """Starts an acceleration; the first active one replaces the methods of Keras.

        engine: the engines that run the layers of Keras while no later acceleration is active.
        """
        with Accelerated.changing:
            ACCELERATED[self] = engine
            if len(ACCELERATED) == 1:
                for (kind, name), theirs in THEIRS.items():
                    setattr(kind, name, bind_override(theirs, overrides_of(kind)[name]))

    def __str__(self) -> str:
        """Says whether the acceleration is active, and what lists the layers."""
        state = "active" if self in ACCELERATED else "ended"
        return f"acceleration of Keras' recurrent layers, {state}; stepnet.keras.report(model) lists these"

    def undo(self) -> None:
        """Ends this acceleration of Keras' layers. Without other ones, Keras' own methods are restored."""
        with Accelerated.changing:
            if ACCELERATED.pop(self, None) is not None and not ACCELERATED:
                for (kind, name), theirs in THEIRS.items():
                    setattr(kind, name, theirs)

    def __enter__(self) -> Self:
        """Returns the acceleration itself, for a with-block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the acceleration at the end of the with-block."""
        self.undo()


def accelerate(*models: Any, engine: Asked = "auto") -> Accelerated:
    """Makes stepnet run Keras' own SimpleRNN, LSTM, GRU and RNN, and TimeDistributed of layers that compute
    each row separately, in models built before or after the call, or loaded from files.

    On TensorFlow and JAX, a model that has run before keeps its traces, with their engine: call this before,
    or compile the model again. The backend of Keras does not change.

    Args:
        models: None: the layers of all models are accelerated.
        engine: The engine that runs these layers, or several in order of preference, as for a call of
            `stepnet.RNN`. If several accelerations are active, it is that of the last one.

    Returns:
        An `Accelerated`. Call its `undo()`, or use it in a with-block, to end the acceleration.

    Raises:
        InputError: For an engine that is not known, and for a model as argument.

    >>> import keras, numpy as np, stepnet.keras
    >>> layer, before = keras.layers.GRU(4), stepnet.keras.counters()
    >>> with stepnet.keras.accelerate():
    ...     _ = layer(np.ones((2, 5, 3)))
    >>> stepnet.keras.counters().fast - before.fast
    1
    >>> _ = layer(np.ones((2, 5, 3)))
    >>> stepnet.keras.counters().fast - before.fast
    1
    """
    if models:
        raise InputError(
            "accelerate() takes no model, as it is for the layers of all: with stepnet.keras.accelerate(): "
            "model.predict(x)"
        )
    return Accelerated(checked_engine(engine))
