"""Sequences of any length laid end to end in a fixed number of lanes, so that nearly every step is full.

    lengths 5 3 3 2 2, three lanes:      a a a a a
                                         b b b d d
                                         c c c e e

A lane begins its next sequence, with its memory reset, in the step after one ends.
"""

from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Lanes:
    """Which sequences each lane runs: `order[first[lane] : first[lane + 1]]`, `steps[lane]` steps in all.

    Lanes are sorted by their steps, most first, so that those still at work are always the first ones.
    """

    order: Array
    first: Array
    steps: Array

    @property
    def count(self) -> int:
        """The number of lanes."""
        return len(self.steps)

    @property
    def room(self) -> int:
        """The steps that there would be if all lanes had as many as the longest one."""
        return self.count * int(self.steps[0])

    def part(self, number: int, parts: int) -> "Lanes":
        """Every `parts`-th lane from `number` on: equal shares of long and short ones."""
        sizes = np.diff(self.first)
        lane = np.repeat(np.arange(self.count), sizes)
        first = np.concatenate([[0], np.cumsum(sizes[number::parts])]).astype(np.int64)
        steps = np.ascontiguousarray(self.steps[number::parts])
        return Lanes(self.order[lane % parts == number], first, steps)


MANY = 32
"""From so many lanes on, rounds in which every lane takes a sequence are done by NumPy."""


def lanes_for(lengths: Array, most: int) -> Lanes:
    """The lanes of these sequences, at most `most` of them; sequences of no steps are in none.

    Longest first, each to the lane with the fewest steps so far (R. L. Graham, Bounds on multiprocessing
    timing anomalies, 1969): the longest lane has at most 4/3 of the steps that it must have.

    >>> lanes = lanes_for(np.array([5, 3, 0, 3, 2, 2]), 3)
    >>> lanes.order.tolist(), lanes.first.tolist(), lanes.steps.tolist()
    ([0, 1, 4, 3, 5], [0, 1, 3, 5], [5, 5, 5])
    """
    if len(lengths) == 1 and lengths[0]:
        return Lanes(np.zeros(1, np.int64), np.array([0, 1]), lengths)
    longest_first = np.argsort(-lengths, kind="stable").astype(np.int64)
    filled = longest_first[: int(np.count_nonzero(lengths))]
    count = min(most, len(filled))
    if count == len(filled):
        return Lanes(filled, np.arange(count + 1, dtype=np.int64), lengths[filled])
    lane_of, load = shared_out(lengths[filled], count)
    by_load = np.argsort(-load, kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_load] = np.arange(count)
    ranks = rank[lane_of]
    by_lane = np.argsort(ranks, kind="stable")
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(ranks, minlength=count), out=first[1:])
    return Lanes(filled[by_lane], first, load[by_load])


def shared_out(lengths: Array, count: int) -> tuple[Array, Array]:
    """The lane of each sequence, which are sorted by length, longest first; and the steps of each lane."""
    lane_of = np.empty(len(lengths), np.int64)
    lane_of[:count], load, begin = np.arange(count), lengths[:count].astype(np.int64), count
    while count >= MANY and begin + count <= len(lengths):
        taken = lengths[begin : begin + count]
        if load.max() > load.min() + taken[-1]:
            break  # a lane that has taken one may have fewer steps still than another that has not
        lanes = np.argsort(load, kind="stable")
        lane_of[begin : begin + count] = lanes
        load[lanes] += taken
        begin += count
    if begin == len(lengths):
        return lane_of, load
    # Steps and lane as one integer: a heap compares these sooner than pairs.
    heap = np.sort(load * count + np.arange(count)).tolist()
    rest = (lengths[begin:] * count).tolist()
    lane_of[begin:] = [heapreplace(heap, heap[0] + more) % count for more in rest]
    load[np.array(heap) % count] = np.array(heap) // count
    return lane_of, load
