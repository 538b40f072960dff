"""Which layers ran compiled, and which ran Keras' own loop and why: what `report` and `counters` say."""

from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary


class Counters(NamedTuple):
    """How many calls of layers ran compiled, fast, and how many by Keras' own loop, slow."""

    fast: int
    slow: int


@dataclass
class Record:
    """The calls of a layer so far. reason: why the latest of them ran Keras' own loop; None if it did not."""

    fast: int = 0
    slow: int = 0
    reason: str | None = None


RECORDS = WeakKeyDictionary[Any, Record]()
TOTAL = Record()


def note(layer: Any, reason: str | None) -> None:
    """Records a call of a layer: compiled, or by Keras' own loop for this reason."""
    for record in (RECORDS.setdefault(layer, Record()), TOTAL):
        record.fast += reason is None
        record.slow += reason is not None
        record.reason = reason


def counters() -> Counters:
    """How many calls of recurrent layers ran compiled, and how many by Keras' own loop, in this process.

    In `tf.function` and `jax.jit`, and so in `fit` and `predict` on these backends, a call counts where it is
    traced, and not each time the graph runs.

    >>> before = counters()
    >>> import numpy as np, stepnet.keras
    >>> _ = stepnet.keras.GRU(4)(np.ones((2, 5, 3)))
    >>> counters().fast - before.fast
    1
    """
    return Counters(TOTAL.fast, TOTAL.slow)
