"""Statistics of the caches of operators and layers on oneDNN."""

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
    """The counts of each cache, by name.

    primitives: one per recurrence, number of steps, rows and threads, and Python thread.
    weights: reordered for the formats of primitives; they do not depend on lengths.
    paddings: tables of the positions of steps.
    layers: made by the operators from their arguments.

    >>> list(counters())
    ['primitives', 'weights', 'paddings', 'layers']
    """
    return MappingProxyType({name: cache.counts for name, cache in CACHES.items()})


def clear() -> None:
    """Clears all caches, and sets their counts to 0. Existing layers remain valid."""
    for cache in (*CACHES.values(), WIDENED):
        cache.clear()
