"""Cache of the layers that operators make from their arguments, and statistics of all caches."""

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from stepnet.compiler.targets.onednn.cache import MEGABYTE, Cache, Counts
from stepnet.compiler.targets.onednn.padding import PADDINGS
from stepnet.compiler.targets.onednn.primitives import PACKED
from stepnet.compiler.targets.onednn.run import RUNS
from stepnet.compiler.targets.onednn.training import WIDENED
from stepnet.compiler.values.dtypes import same_bits
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
SETS = 4
"""The largest number of cached layers with the same shapes and settings but different weights."""


@dataclass(frozen=True)
class CachedLayer:
    """Entry of the cache: a layer, and copies of the arrays from which it was made."""

    arrays: tuple[Array, ...]
    layer: Any

    def holds(self, arrays: tuple[Array, ...]) -> bool:
        """Tells whether this entry's layer was made from arrays bitwise equal to these, and can be reused."""
        return all(map(same_bits, self.arrays, arrays))

    @property
    def bytes(self) -> int:
        """The estimated memory of a cache entry: the copies of arrays, and as much again for the layer."""
        return 2 * sum(array.nbytes for array in self.arrays)


def cached_layer(
    settings: Hashable, weights: Mapping[str, Array], make: Callable[[dict[str, Array]], Any]
) -> Any:
    """Returns the cached layer for settings and arrays; if there is none, makes it from copies of the arrays,
    and caches it with the `SETS` - 1 latest layers of the same settings and shapes.

    settings: the values that the layer depends on besides the arrays.
    weights: the arrays by name, which are compared bit by bit, so that a change in place is seen.
    make: a function that makes the layer from the copies.
    """
    names, arrays = tuple(weights), tuple(weights.values())
    kinds = ((name, array.shape, array.dtype.char, array.dtype.isnative) for name, array in weights.items())
    key = (settings, *kinds)
    entry = KEPT.find(key, lambda entries: next((entry for entry in entries if entry.holds(arrays)), None))
    if entry is None:
        copies = tuple(np.array(array, order="C") for array in arrays)
        entry = CachedLayer(copies, make(dict(zip(names, copies, strict=True))))
        KEPT.put(key, (entry, *(KEPT.peek(key) or ()))[:SETS])
    return entry.layer


KEPT: Cache[tuple[CachedLayer, ...]] = Cache(
    64, 256 * MEGABYTE, lambda listed: sum(entry.bytes for entry in listed)
)


CACHES: dict[str, Any] = {"primitives": RUNS, "weights": PACKED, "paddings": PADDINGS, "layers": KEPT}


def counters() -> Mapping[str, Counts]:
    """Returns the counts of hits and misses of each cache, by name.

    primitives: one per recurrence, number of steps, rows and threads, and Python thread.
    weights: reordered for the formats of primitives; they do not depend on lengths.
    paddings: tables of the positions of steps.
    layers: made by the operators from their arguments.

    >>> list(counters())
    ['primitives', 'weights', 'paddings', 'layers']
    """
    return MappingProxyType({name: cache.counts for name, cache in CACHES.items()})


def clear() -> None:
    """Empties all caches of oneDNN, and sets their counts to 0. Existing layers remain valid."""
    for cache in (*CACHES.values(), WIDENED):
        cache.clear()
