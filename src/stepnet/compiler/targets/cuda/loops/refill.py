"""The choice of a loop's lanes for the lengths of a batch: sorted or refilled, by predicted times.

sorted      sequences of like lengths side by side in a turn, a group of blocks for each or as many as fit
refilled    fewer lanes, each of which begins its next sequence in the step after one ends

Lanes are refilled where not all groups of blocks run at once, so that sorted ones would wait for each other;
or where fewer lanes have a faster kernel. Where there is no estimate, blocks are single, and the device gives
a multiprocessor the next one as soon as one ends: they stay sorted.
"""

from collections.abc import Callable, Hashable

from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import Array
from stepnet.compiler.targets.cuda.loops.kept import ChosenLoop
from stepnet.compiler.targets.cuda.loops.lanes import LaneTable, refilled_lanes, sorted_lanes
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

FASTER = 1.05
"""The factor by which refilled lanes must be faster than sorted ones to be chosen."""
NEAR = 1.02
"""The factor within which lanes take the time of full ones, so that no others are tried."""
TOGETHER = 16
"""The steps to a multiple of which short sequences are rounded up, so that several end with one turn."""


@dataclass(frozen=True)
class LaidLoop:
    """The kernel of a loop, and its lanes for the sequences of a batch.

    lengths: the steps of each sequence. groups: the most groups of blocks; 0 for any number.
    whole: if lanes are refilled, sequences end at a multiple of so many steps; 0 if they are sorted.
    """

    chosen: ChosenLoop
    lengths: Array
    groups: int
    whole: int = 0

    @property
    def loop(self) -> LoopCode:
        """The kernel."""
        return self.chosen.loop

    @property
    def key(self) -> Hashable:
        """The facts that the table depends on besides the lengths."""
        return self.loop.group_rows, self.groups, self.whole

    @computed_once
    def table(self) -> LaneTable:
        """The table of the lanes."""
        lanes, groups = self.loop.group_rows, self.groups
        if self.whole:
            return refilled_lanes(self.lengths, lanes, groups, self.whole)
        return sorted_lanes(self.lengths, lanes, groups)

    @computed_once
    def loads(self) -> tuple[Array, Array]:
        """The steps of each group that runs at once, and its turns."""
        pace, table = self.chosen.pace, self.table
        if pace is not None and table.groups > pace.at_once:
            table = sorted_lanes(self.lengths, self.loop.group_rows, pace.at_once)
        return table.loads(self.loop.whole)

    @computed_once
    def microseconds(self) -> float:
        """The predicted time of all steps; 0.0 if there is no estimate."""
        pace, (steps, turns) = self.chosen.pace, self.loads
        return 0.0 if pace is None else float((steps * pace.step + turns * pace.turn).max(initial=0.0))

    @property
    def text(self) -> str:
        """A description for people: the lanes, and how many of their steps are steps of sequences."""
        steps, _ = self.loads
        lanes = min(len(steps) * self.loop.group_rows, len(self.lengths))
        share = self.table.full_steps / max(1, lanes * int(steps.max(initial=0)))
        name = "refilled" if self.whole else "sorted by length"
        return f"{lanes} lanes, {name}: {min(share, 1):.0%} of their steps are full"


def laid(loop: Callable[[int], ChosenLoop], lengths: Array) -> LaidLoop:
    """Returns the loop for some sequences and what its lanes do, by the predicted time.

    loop: gives the kernel for a number of sequences that run side by side. lengths: the steps of each.
    """
    alone = loop(len(lengths))
    by_length = LaidLoop(alone, lengths, alone.groups)
    longest, total = int(lengths.max()), int(lengths.sum())
    if alone.pace is None or total == longest * len(lengths):
        return by_length
    counts = lane_counts(alone.pace.at_once * alone.loop.group_rows, len(lengths), total / longest)
    few = [one for count in counts if (one := in_fewer(loop(count), lengths, count)) is not None]
    best, most = by_length, by_length.microseconds / FASTER
    for least, options in sorted(few, key=lambda one: one[0]):
        for option in options:
            if NEAR * least < most and option.microseconds < most:
                best, most = option, option.microseconds
    return best


def lane_counts(at_once: int, rows: int, filled: float) -> list[int]:
    """Lists the numbers of lanes that are tried, less than a lane for each of `rows` sequences.

    at_once: the lanes that run at once. filled: how many are full as long as the longest sequence runs.

    >>> lane_counts(48, 100, 14.5)
    [8, 16, 32, 48, 64]
    """
    first = max(0, int(filled).bit_length() - 1)
    powers = {1 << bit for bit in range(first, rows.bit_length())}
    return sorted(count for count in {at_once, *powers} if count < rows)


def in_fewer(chosen: ChosenLoop, lengths: Array, lanes: int) -> tuple[float, list[LaidLoop]] | None:
    """Returns the loops that fewer lanes than sequences may run, with sorted sequences run whole or with
    refilled lanes, and the microseconds that full lanes would take; None if not all lanes run at once.

    lanes: their number, or a few less, so that groups are whole.
    """
    pace, rows = chosen.pace, chosen.loop.group_rows
    groups = -(-lanes // rows)
    if pace is None or groups > pace.at_once:
        return None
    steps = max(int(lengths.max()), int(lengths.sum()) / (groups * rows))
    is_short = steps * groups < TOGETHER * len(lengths)  # of a turn, if each ended alone
    whole = TOGETHER if is_short else chosen.loop.whole
    return steps * pace.step, [LaidLoop(chosen, lengths, groups, each) for each in (0, whole)]
