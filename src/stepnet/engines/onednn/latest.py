"""The weights that the last call made of its parameters, for the next call with the same numbers.

A forward pass and its backward pass are given the same parameters, one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepnet.engines.onednn.engine import OneDnnKernel
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.engines.onednn.weights import Weights

Array = np.ndarray
SMALL = 16 * 1024


@dataclass
class Latest:
    """The parameters, copied, and what was made of them; nothing before the first call."""

    kernel: OneDnnKernel
    entry: tuple[tuple[Array, ...], tuple[Recurrence, Weights]] | None = field(default=None)

    def weights(self, parameters: Sequence[Array]) -> tuple[Recurrence, Weights]:
        """The weights that these parameters make."""
        entry = self.entry  # read once: another thread may set it
        if entry is not None and all(map(same_bits, entry[0], parameters)):
            return entry[1]
        copies = tuple(np.array(array, order="C") for array in parameters)
        made = self.kernel.weights(copies)
        self.entry = copies, made
        return made


def same_bits(first: Array, second: Array) -> bool:
    """Whether two arrays of one shape and dtype are equal bit by bit; NaN is equal to itself."""
    if first.nbytes < SMALL:  # where copies take less time than a function of NumPy's does to begin
        return first.tobytes() == second.tobytes()
    word = np.dtype(f"u{first.dtype.itemsize}")
    return bool((first.view(word) == second.view(word)).all())
