"""Counts of calls of recurrent layers that ran compiled, and that ran Keras' own loop, with the reasons."""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from stepnet.compiler.values.records import dataclass


class Counters(NamedTuple):
    """Numbers of calls of recurrent layers. fast: ran compiled. slow: ran Keras' own loop."""

    fast: int
    slow: int


@dataclass
class CallRecord:
    """Counts of the calls of one layer. reason: why the latest call ran Keras' own loop, or None."""

    fast: int = 0
    slow: int = 0
    reason: str | None = None


RECORDS = WeakKeyDictionary[Any, CallRecord]()
TOTAL = CallRecord()


def note(layer: Any, reason: str | None) -> None:
    """Counts a call of a layer, for reports. reason: why Keras' own loop ran it; None if it ran compiled."""
    for record in (RECORDS.setdefault(layer, CallRecord()), TOTAL):
        record.fast += reason is None
        record.slow += reason is not None
        record.reason = reason


def counters() -> Counters:
    """Counts the calls of recurrent layers in this process: `fast` ran compiled, `slow` ran Keras' own loop.

    In `tf.function` and `jax.jit`, and so in `fit` and `predict` on these backends, a call counts where it is
    traced, and not each time the graph runs.

    >>> before = counters()
    >>> import numpy as np, stepnet.keras
    >>> _ = stepnet.keras.GRU(4)(np.ones((2, 5, 3)))
    >>> counters().fast - before.fast
    1
    """
    return Counters(TOTAL.fast, TOTAL.slow)
