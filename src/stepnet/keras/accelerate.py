"""`accelerate`: makes stepnet run Keras' own recurrent layers, those of loaded models among them."""

from threading import Lock
from typing import Any, Self

from stepnet.keras.installed import installed
from stepnet.keras.overrides import OVERRIDES, overrides_of, standing_in

keras: Any = installed()
METHODS = [(kind, name) for kind, known in OVERRIDES.items() for name in known] + [
    (kind, "inner_loop") for kind in (keras.layers.LSTM, keras.layers.GRU)
]
"""The methods that are replaced, where Keras defines them. Others call one of these."""

THEIRS: dict[Any, Any] = {(kind, name): vars(kind)[name] for kind, name in METHODS}
"""What Keras defines."""


class Accelerated:
    """The result of `accelerate`: until `undo`, or the end of a with-block, stepnet runs Keras' layers."""

    active = 0
    """How many of them there are."""
    changing = Lock()
    """Held while that number and the methods change: threads may begin and end their own."""

    def __init__(self) -> None:
        self.undone = False
        with Accelerated.changing:
            Accelerated.active += 1
            if Accelerated.active == 1:
                for (kind, name), theirs in THEIRS.items():
                    setattr(kind, name, standing_in(theirs, overrides_of(kind)[name]))

    def undo(self) -> None:
        """Ends this acceleration; Keras' own loops run again where no other one is left."""
        with Accelerated.changing:
            if self.undone:
                return
            self.undone = True
            Accelerated.active -= 1
            if not Accelerated.active:
                for (kind, name), theirs in THEIRS.items():
                    setattr(kind, name, theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def accelerate() -> Accelerated:
    """Makes stepnet run Keras' own layers SimpleRNN, LSTM, GRU and RNN, and TimeDistributed of layers that
    work row by row: those of models made before, after, and loaded from files.

    On TensorFlow and JAX, a model that has run before keeps what was traced then: call this before, or
    compile the model anew.

    Give `undo()` of the result, or use it in a with-block, to end it. Keras' backend is not changed.

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
    return Accelerated()
