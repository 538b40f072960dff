"""Sequences of any length laid end to end in a fixed number of lanes, so that nearly every step is full.

    lengths 5 3 3 2 2, three lanes:      a a a a a
                                         b b b d d
                                         c c c e e

A lane begins its next sequence, with its memory reset, in the step after one ends.
"""

import numpy as np

from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class Lanes:
    """Assignment of sequences to lanes, the slots of the loop, each of which runs one sequence after another.

    order: the numbers of the sequences, lane after lane, int64.
    first: the offset in `order` of each lane's first sequence, and the length of `order`, int64.
    steps: the number of steps of each lane.

    Lanes are sorted by their steps, most first: the lanes that still run are always the first ones.
    """

    order: Array
    first: Array
    steps: Array

    @property
    def count(self) -> int:
        """The number of lanes (slots of the loop that run one sequence after another)."""
        return len(self.steps)

    @property
    def room(self) -> int:
        """The lanes times the steps of the longest: of two assignments, the lower has fewer idle steps."""
        return self.count * int(self.steps[0])

    def every_nth(self, number: int, step: int) -> "Lanes":
        """Takes every `step`-th lane (slot of the loop, which runs one sequence after another), from lane
        `number` on, as the share of one thread. Each share has long and short lanes.
        """
        sizes = np.diff(self.first)
        lane = np.repeat(np.arange(self.count), sizes)
        first = np.concatenate([[0], np.cumsum(sizes[number::step])]).astype(np.int64)
        steps = np.ascontiguousarray(self.steps[number::step])
        return Lanes(self.order[lane % step == number], first, steps)


MANY = 32
"""The number of lanes from which NumPy assigns a sequence to every lane at once, round by round."""


def lanes_for(lengths: Array, most: int) -> Lanes:
    """Assigns sequences to at most `most` lanes (slots of the loop that run one sequence after another).

    Sequences are assigned longest first, each to the lane with the fewest steps so far: the longest lane has
    at most 4/3 of the steps of an optimal assignment (R. L. Graham, Bounds on multiprocessing timing
    anomalies, 1969). Empty sequences are in no lane.

    >>> lanes = lanes_for(np.array([5, 3, 0, 3, 2, 2]), 3)
    >>> lanes.order.tolist(), lanes.first.tolist(), lanes.steps.tolist()
    ([0, 1, 4, 3, 5], [0, 1, 3, 5], [5, 5, 5])
    """
    if len(lengths) == 1 and lengths[0]:
        return Lanes(np.zeros(1, np.int64), np.array([0, 1]), lengths)
    longest_first = stable_order(-lengths)
    filled = longest_first[: int(np.count_nonzero(lengths))]
    count = min(most, len(filled))
    if count == len(filled):
        return Lanes(filled, np.arange(count + 1, dtype=np.int64), lengths[filled])
    lane_of, load = assign_lanes(lengths[filled], count)
    by_load = np.argsort(-load, kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_load] = np.arange(count)
    ranks = rank[lane_of]
    by_lane = stable_order(ranks)
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(ranks, minlength=count), out=first[1:])
    return Lanes(filled[by_lane], first, load[by_load])


def stable_order(numbers: Array) -> Array:
    """Returns the indices that sort integers stably; short ones by digits, in a fifth of the time."""
    limits = np.iinfo(np.int16)
    is_short = numbers.size and limits.min <= numbers.min() and numbers.max() <= limits.max
    return np.argsort(numbers.astype(np.int16) if is_short else numbers, kind="stable").astype(np.int64)


def assign_lanes(lengths: Array, count: int) -> tuple[Array, Array]:
    """Assigns sequences, longest first, each to the lane (slot of the loop) with the fewest steps so far.
    Rounds of one sequence per lane are assigned at once where the result is the same. lengths: the lengths of
    the sequences, longest first. count: the number of lanes; less than the number of sequences. Returns the
    lane of each sequence, and the number of steps of each lane.
    """
    with IMPORTS:  # late: few calls have more sequences than lanes
        from bisect import bisect_right
        from heapq import heapreplace

    lane_of, descending = np.empty(len(lengths), np.int64), -lengths
    lane_of[:count], load, begin = np.arange(count), lengths[:count].astype(np.int64), count
    while count >= MANY and begin + count <= len(lengths):
        next_lengths = lengths[begin : begin + count]
        if load.max() > load.min() + next_lengths[-1]:
            break  # one lane may need two more sequences before another needs one
        lanes = np.argsort(load, kind="stable")
        # Of sequences of one length, all rounds are alike: loads differ as before.
        equal = bisect_right(descending, descending[begin], begin) - begin
        rounds = max(1, equal // count)
        lane_of[begin : begin + rounds * count] = np.tile(lanes, rounds)
        load[lanes] += rounds * next_lengths
        begin += rounds * count
    if begin == len(lengths):
        return lane_of, load
    # Each heap entry is an integer that combines steps and lane: it is faster to compare than a pair.
    heap = np.sort(load * count + np.arange(count)).tolist()
    scaled = (lengths[begin:] * count).tolist()
    lane_of[begin:] = [heapreplace(heap, heap[0] + steps) % count for steps in scaled]
    load[np.array(heap) % count] = np.array(heap) // count
    return lane_of, load
