"""The layout of a call's sequences, as tables and pointers for machine code.

    lengths 5 3 2   two sets of lanes   ->   words of each set: 5 steps, order, first, lane_steps, ...

The layout depends only on the lengths and positions of the sequences. So all parts of a schedule that run
over the same sequences share it.

With one lane per sequence, the first steps have many rows and the last steps a single row; a step of one row
takes as long as a step of several. So long calls have only as many lanes as can stay active until the end:

    lengths 5 2 2 1    a a a a a    rows 4 3 1 1 1        a a a a a    rows 2 2 2 2 2
                       b b          in four lanes         b b c c d    in two
                       c c
                       d
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.native.call_words import ENDLESS
from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.targets.base import Array
from stepnet.compiler.targets.cpu.costs import LANES
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.products.tiles import MOST_ROWS, power_of_two
from stepnet.compiler.targets.lanes import Lanes, lanes_for
from stepnet.compiler.values.once import computed_once
from stepnet.ragged.positions import Positions

EXACT = 16
FEW = 32
"""Up to this many lengths, Python's built-in functions are faster than NumPy's."""
EVEN_SECONDS = 1e-3
"""Calls that take at least this long have as few lanes as they need. To distribute sequences over fewer lanes
takes some 20 microseconds longer than one lane per sequence."""
WORTH = 0.9
"""Fewer lanes are used if lanes x steps shrinks below this fraction: not for sequences of similar lengths."""
NUMBERS = np.arange(4096)
"""The offsets of the steps of a contiguous sequence."""
KNOWN = "llvm"
Sets = tuple[tuple[int, tuple[int, ...]], ...]
"""For each set of lanes, the number of lanes, and the argument words from `until` on."""


def rounded(filled: int, longest: int, steps: int) -> CallSize:
    """Rounds the size of a call up, so that calls of about the same size share decisions.

    filled: the number of sequences that have steps.
    longest, steps: the number of steps of the longest one, and of all.

    >>> size = rounded(64, 500, 5130)
    >>> size.filled, size.longest, size.steps
    (64, 512, 6144)
    """
    if not filled:
        return CallSize(0, 0, 0)
    mean = few_digits(-(-steps // filled))
    filled, longest = filled if filled <= EXACT else few_digits(filled), few_digits(longest)
    return CallSize(filled, longest, max(longest, min(longest, mean) * filled))


def few_digits(number: int) -> int:
    """Rounds a number up to three significant binary digits, to make similar numbers equal.

    >>> few_digits(7), few_digits(65), few_digits(81)
    (7, 80, 96)
    """
    left_out = max(0, number.bit_length() - 3)
    return -(-number >> left_out) << left_out


class SequenceLayout:
    """Layout of a call's sequences for machine code: lengths, positions, and sets of lanes (slots for
    sequences).

    filled: the number of sequences that are not empty.
    longest, steps: the steps of the longest sequence, and of all sequences.
    size: the rounded size of the call, which decides how threads divide it.
    """

    def __init__(self, positions: Positions) -> None:
        """Counts the sequences at these positions and their steps, and makes the tables of their lengths,
        starts and step indices that machine code reads.
        """
        lengths = positions.lengths
        counts: Any = lengths if len(lengths) > FEW else lengths.tolist()
        self.rows, self.lengths = len(lengths), lengths
        if len(lengths) > FEW:
            self.filled = int(np.count_nonzero(lengths))
            self.longest, self.steps = int(lengths.max()), int(lengths.sum())
        else:
            self.filled = len(counts) - counts.count(0)
            self.longest, self.steps = max(counts, default=0), sum(counts)
        self.size = rounded(self.filled, self.longest, self.steps)
        numbers = positions.steps
        if numbers is None:
            numbers = NUMBERS if self.longest <= len(NUMBERS) else np.arange(self.longest)
        self._held: list[Any] = [positions.starts, lengths, numbers]
        self.places = tuple(map(pointer, self._held))
        self._sets: dict[tuple[int, int], Sets] = {}

    @classmethod
    def of(cls, positions: Positions) -> "SequenceLayout":
        """Returns the layout of the sequences at these positions: their lengths, and the lanes (slots) that
        run them. It is made once and stored with the positions.
        """
        layout: SequenceLayout = positions.derive(KNOWN, lambda: cls(positions))
        return layout

    @property
    def tables(self) -> Sequence[Array]:
        """The tables that the argument words of calls point to, and that this object keeps alive."""
        return self._held

    @computed_once
    def no_steps(self) -> Array:
        """Zeros [batch]: each sequence's number of earlier steps, if a call begins with the first."""
        return np.zeros(self.rows, np.int64)

    def sets(self, count: int, seconds: float, fewest: int) -> Sets:
        """Divides the sequences into at most `count` sets of lanes (slots that run sequences), one for each
        thread; returns the arguments of each set. seconds: the estimated time of the whole call. fewest: the
        number of lanes of a set from which more gain little.
        """
        fewest = fewest if seconds >= EVEN_SECONDS else 0
        known = self._sets.get((count, fewest))
        if known is None:
            lanes = self._lanes(count, fewest)
            known = self._sets[count, fewest] = tuple(map(self._words, lanes))
        return known

    @computed_once
    def in_one_lane(self) -> Sets:
        """The arguments of one lane (slot that runs sequences) that has all sequences in order, for kernels
        (compiled parts) whose steps do not depend on one another. So rows that are computed together lie side
        by side in memory.
        """
        if not self.filled:
            return ()
        order = np.flatnonzero(self.lengths)
        first, steps = np.array([0, self.filled]), np.array([self.steps])
        return (self._words(Lanes(order, first, steps)),)

    def _lanes(self, count: int, fewest: int) -> list[Lanes]:
        """Assigns sequences to lanes (slots that run sequences), in at most `count` sets, one for each
        thread; no sets if all sequences are empty. fewest: use only about as many lanes of each set as can
        stay active until the end, but at least so many, if these do not leave much more room unused; 0 for
        all lanes.
        """
        if not self.filled:
            return []
        lanes = lanes_for(self.lengths, LANES * count)
        if fewest and (most := self._working_lanes(count, fewest) * count) < lanes.count:
            fewer = lanes_for(self.lengths, most)
            lanes = fewer if fewer.room < WORTH * lanes.room else lanes
        count = min(count, lanes.count)
        return [lanes] if count == 1 else [lanes.every_nth(place, count) for place in range(count)]

    def _working_lanes(self, count: int, fewest: int) -> int:
        """Returns the number, a power of two, of lanes (slots that run sequences) per thread that can all
        stay busy until the end: rounded down to a multiple of the largest register tile's rows, and up if
        they are fewer. count: the number of threads. fewest: the least number.
        """
        working = -(-self.steps // (self.longest * count))
        least = power_of_two(2 * working - 1) if working < MOST_ROWS else power_of_two(working)
        return min(LANES, max(fewest, least))

    def _words(self, lanes: Lanes) -> tuple[int, tuple[int, ...]]:
        """Returns the number of lanes (slots that run sequences), and the arguments that describe them to
        machine code: 0 for no early ends, the number of steps, and pointers to tables, which this object
        keeps alive.
        """
        tables: list[Array] = [lanes.order, lanes.first, lanes.steps]
        self._held += tables
        return lanes.count, (0, int(lanes.steps[0]), *map(pointer, tables), *self.places)

    def waiting(self, order: Array, endings: Sequence[Array]) -> list[tuple[int, ...]]:
        """Returns the arguments that describe the lanes (slots that run sequences) of each thread, for
        threads that take sequences from one queue during the call, as these may end early.

        order: the indices of the sequences in the queue.
        endings: for each thread, the array of words that its machine code reads for early ends.
        """
        return [(pointer(own), ENDLESS, pointer(order), 0, 0, *self.places) for own in endings]
