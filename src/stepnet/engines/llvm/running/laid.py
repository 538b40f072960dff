"""Where the sequences of a call lie, as tables and pointers for machine code.

    lengths 5 3 2   two sets of lanes   ->   words of each set: 5 steps, order, first, lane_steps, ...

It depends on lengths and places alone. So all parts of a schedule that run over the same sequences share it.

A lane for each sequence gives steps of many rows first, and of one row in the end, which takes as long as
some rows do. So long calls have no more lanes than stay at work until the end:

    lengths 5 2 2 1    a a a a a    rows 4 3 1 1 1        a a a a a    rows 2 2 2 2 2
                       b b          in four lanes         b b c c d    in two
                       c c
                       d
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.engines.base import Array, Call
from stepnet.engines.lanes import Lanes, lanes_for
from stepnet.engines.llvm.machine.memory import pointer
from stepnet.engines.llvm.machine.words import ENDLESS
from stepnet.engines.llvm.products.tiles import MOST_ROWS, power_of_two
from stepnet.plan.load import LANES, Size

EXACT = 16
FEW = 32
"""So many lengths are looked at by Python sooner than by NumPy."""
EVEN_SECONDS = 1e-3
"""Calls that take as long as this have no more lanes than they need. To find who follows whom in a lane takes
some 20 microseconds more than to give each sequence a lane of its own."""
FEWEST_LANES = MOST_ROWS
"""A set has as many lanes as this, as long as there are sequences: it computes so many rows at a time."""
WORTH = 0.9
"""Fewer lanes must leave no more room than this part of it, or sequences of about one length share lanes."""
NUMBERS = np.arange(4096)
"""The places of the steps of a sequence whose steps lie one after the other."""
KNOWN = "llvm"
Sets = tuple[tuple[int, tuple[int, ...]], ...]
"""For each set of lanes how many there are, and the words from `until` on."""


def rounded(filled: int, longest: int, steps: int) -> Size:
    """The size of a call, with few digits, so that many calls are of the same.

    >>> rounded(64, 500, 5130)
    Size(filled=64, longest=512, steps=6144, words=())
    """
    if not filled:
        return Size(0, 0, 0)
    mean = few_digits(-(-steps // filled))
    filled, longest = filled if filled <= EXACT else few_digits(filled), few_digits(longest)
    return Size(filled, longest, max(longest, min(longest, mean) * filled))


def few_digits(number: int) -> int:
    """A number rounded up to three binary digits.

    >>> few_digits(7), few_digits(65), few_digits(81)
    (7, 80, 96)
    """
    left_out = max(0, number.bit_length() - 3)
    return -(-number >> left_out) << left_out


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
        self._sets: dict[tuple[int, bool], Sets] = {}
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

    def sets(self, count: int, seconds: float) -> Sets:
        """So many sets of lanes at most. seconds: how long the whole call is estimated to take."""
        even = seconds >= EVEN_SECONDS
        known = self._sets.get((count, even))
        if known is None:
            lanes = self._lanes(count, even)
            known = self._sets[count, even] = tuple(map(self._words, lanes))
        return known

    def _lanes(self, count: int, even: bool) -> list[Lanes]:
        """The lanes of each set, none without steps; even: as few as stay at work until the end."""
        if not self.filled:
            return []
        lanes = lanes_for(self.lengths, LANES * count)
        if even and (most := self._working_lanes(count) * count) < lanes.count:
            fewer = lanes_for(self.lengths, most)
            lanes = fewer if fewer.room < WORTH * lanes.room else lanes
        count = min(count, lanes.count)
        return [lanes] if count == 1 else [lanes.part(place, count) for place in range(count)]

    def _working_lanes(self, count: int) -> int:
        """The most lanes of a set that can all have as many steps as the longest sequence: a power of two."""
        working = max(1, self.steps // (self.longest * count))
        return min(LANES, max(FEWEST_LANES, power_of_two(working)))

    def _words(self, lanes: Lanes) -> tuple[int, tuple[int, ...]]:
        """The number of lanes of a set, and its words."""
        tables: list[Array] = [lanes.order, lanes.first, lanes.steps]
        self._held += tables
        return lanes.count, (0, int(lanes.steps[0]), *map(pointer, tables), *self._places)

    def waiting(self, order: Array, endings: Sequence[Array]) -> list[tuple[int, ...]]:
        """The words of sets of lanes that take sequences in this order, with the words `ENDING` of each."""
        return [(pointer(own), ENDLESS, pointer(order), 0, 0, *self._places) for own in endings]
