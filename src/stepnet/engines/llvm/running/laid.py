"""Where the sequences of a call lie, as tables and pointers for machine code.

    lengths 5 3 2   two sets of lanes   ->   words of each set: 5 steps, order, first, lane_steps, ...

It depends on lengths and places alone. So all parts of a schedule that run over the same sequences share it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.engines.base import Array, Call
from stepnet.engines.lanes import Lanes, lanes_for
from stepnet.engines.llvm.machine.memory import pointer
from stepnet.engines.llvm.machine.words import ENDLESS
from stepnet.plan.load import LANES, Size

EXACT = 16
FEW = 32
"""So many lengths are looked at by Python sooner than by NumPy."""
NUMBERS = np.arange(4096)
"""The places of the steps of a sequence whose steps lie one after the other."""
KNOWN = "llvm"
Sets = tuple[tuple[int, tuple[int, ...]], ...]
"""For each set of lanes how many there are, and the words from `until` on."""


def rounded(filled: int, longest: int, steps: int) -> Size:
    """The size of a call, with few digits, so that many calls are of the same: from 16 sequences on, and of
    steps, numbers are rounded up to powers of two.
    """
    longest = 1 << max(0, longest - 1).bit_length()
    mean = min(longest, 1 << max(0, -(-steps // max(1, filled)) - 1).bit_length())
    filled = filled if filled <= EXACT else 1 << (filled - 1).bit_length()
    return Size(filled, longest if filled else 0, max(longest, mean * filled) if filled else 0)


class Laid:
    """The lengths and places of a call, and the lanes made of them so far.

    filled: how many sequences have steps. size: of the call, by which it is shared between threads.
    """

    def __init__(self, call: Call) -> None:
        lengths = call.lengths
        counts: Any = lengths if len(lengths) > FEW else lengths.tolist()
        self.rows, self.lengths = len(lengths), lengths
        if len(lengths) > FEW:
            self.filled = int(np.count_nonzero(lengths))
            self.longest, self.steps = int(lengths.max()), int(lengths.sum())
        else:
            self.filled = len(counts) - counts.count(0)
            self.longest, self.steps = max(counts, default=0), sum(counts)
        self.size = rounded(self.filled, self.longest, self.steps)
        numbers = call.steps
        if numbers is None:
            numbers = NUMBERS if self.longest <= len(NUMBERS) else np.arange(self.longest)
        self._held: list[Any] = [call.starts, lengths, numbers]
        self._places = tuple(map(pointer, self._held))
        self._sets: dict[int, Sets] = {}
        self._begun = call.begun

    @classmethod
    def of(cls, call: Call) -> "Laid":
        """Those of a call, worked out once for all calls of the same sequences."""
        laid = call.known.get(KNOWN)
        if laid is None:
            laid = call.known[KNOWN] = cls(call)
        return laid

    def begun(self) -> int:
        """The pointer to how many steps of each sequence were run before."""
        if self._begun is None:
            self._begun = np.zeros(self.rows, np.int64)
        return pointer(self._begun)

    def sets(self, count: int) -> Sets:
        """So many sets of lanes at most."""
        known = self._sets.get(count)
        if known is None:
            known = self._sets[count] = tuple(map(self._words, self._lanes(count)))
        return known

    def _lanes(self, count: int) -> list[Lanes]:
        """The lanes of each set; none where there are no steps."""
        if not self.filled:
            return []
        lanes = lanes_for(self.lengths, LANES * count)
        count = min(count, lanes.count)
        return [lanes] if count == 1 else [lanes.part(place, count) for place in range(count)]

    def _words(self, lanes: Lanes) -> tuple[int, tuple[int, ...]]:
        """The number of lanes of a set, and its words."""
        tables: list[Array] = [lanes.order, lanes.first, lanes.steps]
        self._held += tables
        return lanes.count, (0, int(lanes.steps[0]), *map(pointer, tables), *self._places)

    def waiting(self, order: Array, endings: Sequence[Array]) -> list[tuple[int, ...]]:
        """The words of sets of lanes that take sequences in this order, with the words `ENDING` of each."""
        return [(pointer(own), ENDLESS, pointer(order), 0, 0, *self._places) for own in endings]
