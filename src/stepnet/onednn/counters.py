"""What the operators and layers on oneDNN have done so far."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from stepnet.engines.onednn.cache import Counts
from stepnet.engines.onednn.padding import PADDINGS
from stepnet.engines.onednn.quiet import WIDENED
from stepnet.engines.onednn.run import RUNS
from stepnet.engines.onednn.weights import PACKED
from stepnet.onednn.kept import KEPT

CACHES: dict[str, Any] = {"primitives": RUNS, "weights": PACKED, "paddings": PADDINGS, "layers": KEPT}


def counters() -> Mapping[str, Counts]:
    """What each cache has done, by name.

    primitives: by recurrence, steps, rows, threads, and thread of Python. weights: in the formats of
    primitives, without lengths. paddings: the places of sequences. layers: those that the operators made of
    their arguments.

    >>> list(counters())
    ['primitives', 'weights', 'paddings', 'layers']
    """
    return MappingProxyType({name: cache.counts for name, cache in CACHES.items()})


def clear() -> None:
    """Removes what is kept, and sets all counts to 0. Layers that a caller holds stay as they are."""
    for cache in (*CACHES.values(), WIDENED):
        cache.clear()
