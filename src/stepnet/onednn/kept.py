"""The layers that the operators made of their arguments: found again by the numbers of the weights.

An operator is a function: it is given the weights with every call, and a caller may have changed them in
place. So the weights are compared with the copies that a layer was made of, bit by bit. That takes
less time than reordering them, and a small part of a call's.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.engines.onednn.cache import MEGABYTE, Cache
from stepnet.engines.onednn.latest import same_bits

Array = np.ndarray
SETS = 4
"""For how many sets of numbers there are layers at a time, of the same shapes and settings."""


@dataclass(frozen=True)
class Kept:
    """A layer, and copies of the arrays that it was made of."""

    arrays: tuple[Array, ...]
    layer: Any

    def holds(self, arrays: tuple[Array, ...]) -> bool:
        """Whether these arrays, of the same shapes and dtypes, have the same bits."""
        return all(map(same_bits, self.arrays, arrays))

    @property
    def bytes(self) -> int:
        """The memory of the copies, and of as much in the layer."""
        return 2 * sum(array.nbytes for array in self.arrays)


def kept(settings: Hashable, given: Mapping[str, Array], make: Callable[[dict[str, Array]], Any]) -> Any:
    """The layer of these settings and arrays; made of copies where there is none yet."""
    names, arrays = tuple(given), tuple(given.values())
    kinds = ((name, array.shape, array.dtype.char, array.dtype.isnative) for name, array in given.items())
    key = (settings, *kinds)
    entry = KEPT.find(key, lambda listed: next((entry for entry in listed if entry.holds(arrays)), None))
    if entry is None:
        copies = tuple(np.array(array, order="C") for array in arrays)
        entry = Kept(copies, make(dict(zip(names, copies, strict=True))))
        KEPT.put(key, (entry, *(KEPT.held(key) or ()))[:SETS])
    return entry.layer


KEPT: Cache[tuple[Kept, ...]] = Cache(64, 256 * MEGABYTE, lambda listed: sum(entry.bytes for entry in listed))
