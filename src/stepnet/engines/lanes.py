"""Sequences of any length laid end to end in a fixed number of lanes, so that nearly every step is full.

    lengths 5 3 3 2 2, three lanes:      a a a a a
                                         b b b d d
                                         c c c e e

A lane begins its next sequence, with its memory reset, in the step after one ends.
"""

from dataclasses import dataclass

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

    def part(self, number: int, parts: int) -> "Lanes":
        """Every `parts`-th lane from `number` on: equal shares of long and short ones."""
        sizes = np.diff(self.first)
        lane = np.repeat(np.arange(self.count), sizes)
        first = np.concatenate([[0], np.cumsum(sizes[number::parts])]).astype(np.int64)
        steps = np.ascontiguousarray(self.steps[number::parts])
        return Lanes(self.order[lane % parts == number], first, steps)


def lanes_for(lengths: Array, most: int) -> Lanes:
    """The lanes of these sequences, at most `most` of them; sequences of no steps are in none.

    Longest first, each round to the lanes with the fewest steps so far (Graham's rule, 1969, by rounds: the
    longest lane is hardly longer than the average one plus the shortest sequences).

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
    load = np.zeros(count, np.int64)
    lane_of = np.empty(len(filled), np.int64)
    for start in range(0, len(filled), count):
        sequences = filled[start : start + count]
        shortest_first = np.argsort(load, kind="stable")[: len(sequences)]
        lane_of[start : start + count] = shortest_first
        load[shortest_first] += lengths[sequences]
    by_load = np.argsort(-load, kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_load] = np.arange(count)
    by_lane = np.argsort(rank[lane_of], kind="stable")
    sizes = np.bincount(rank[lane_of], minlength=count)
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Lanes(filled[by_lane], first, load[by_load])
