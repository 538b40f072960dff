"""The weights of a recurrence in oneDNN's plain layout, and a cache of them reordered for primitives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from stepnet.engines.onednn.cache import MEGABYTE, Cache
from stepnet.engines.onednn.primitives import Packed, Run
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.errors import InputError

Array = np.ndarray
SERIAL = count()


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a recurrence.

    arrays: copies in float32 by oneDNN's names, in the layout ldigo; they do not change.
    serial: a number that identifies these weights in caches.
    """

    arrays: Mapping[str, Array]
    serial: int = field(default_factory=SERIAL.__next__)

    @classmethod
    def of(cls, recurrence: Recurrence, arrays: Mapping[str, Array]) -> "Weights":
        """The weights of a recurrence; a missing bias is zeros. Raises `InputError` for other shapes."""
        made: dict[str, Array] = {}
        for name in recurrence.weights:
            shape = recurrence.shape(name, 0, 0)
            array = arrays.get(name)
            if array is None and name == "bias":
                array = np.zeros(shape, np.float32)
            if array is None or array.shape != shape:
                was = "missing" if array is None else f"of shape {array.shape}"
                raise InputError(f"{name} of {recurrence} is {was}, and must have shape {shape}")
            made[name] = np.array(array, np.float32, order="C")
        return cls(made)

    def bind(self, run: Run) -> None:
        """Makes a primitive use these weights; they are reordered if not yet cached in its formats."""
        if run.serial == self.serial:
            return
        key = (run.library.path, run.recurrence, run.is_gradient, self.serial)
        packed = PACKED.find(key, lambda kept: next((packed for packed in kept if packed.fits(run)), None))
        if packed is None:
            packed = Packed(run, self.arrays)
            PACKED.put(key, (packed, *(PACKED.held(key) or ())))
        run.bind(packed, self.serial)


PACKED: Cache[tuple[Packed, ...]] = Cache(
    64, 256 * MEGABYTE, lambda listed: sum(packed.bytes for packed in listed)
)
