"""The memory of values between the kernels of a prepared chain, whose sizes depend on lengths.

    turn        0      1      2      3          each value is written in one turn, and read until another
    value a     w ---- r
    value b            w ---- r                 a and c share a buffer
    value c                   w ---- r

A prepared call keeps the buffers, and makes one larger where a call needs it. So few of them stay in the near
caches, however many kernels there are, and calls ask the system for no memory.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np

from stepnet.compiler.targets.base import Array, Links
from stepnet.compiler.targets.cpu.machine.memory import APART, aligned, maker_of
from stepnet.compiler.targets.cpu.running.across import AcrossTask
from stepnet.compiler.values.records import dataclass

MOST_BYTES = 2**23
"""The most bytes of buffers that a prepared call keeps; those of larger calls are new at each call."""


class Life(NamedTuple):
    """The first and the last turn of a call in which the memory of a value is in use."""

    first: int
    last: int


class StepBytes(NamedTuple):
    """A value whose size depends on lengths: the place of its axis in the call, and the bytes of a step."""

    axis: int
    bytes: int


@dataclass
class SharedBuffers:
    """Buffers that hold values which are not in use at the same time.

    values: the values of each buffer.
    order: for each value, in the order in which a call lists them, the number of its buffer.
    room: the number of steps along each axis for which the buffers are large enough.
    listed: the buffer of each value.
    bytes: the bytes of all buffers.
    """

    values: list[list[StepBytes]]
    order: list[int]
    room: list[int]
    listed: list[Array] = field(default_factory=list[Array])
    bytes: int = 0

    @classmethod
    def of(cls, values: Sequence[StepBytes], lives: Sequence[Life], axes: int) -> "SharedBuffers":
        """Assigns a buffer to each value that compiled parts of a net hand on: the first whose values are not
        in use at the same time.

        values, lives: the sizes of the values, and the turns (times of a call, one after the other) in which
        each is in use. axes: the number of axes of steps.
        """
        shared, busy, order = list[list[StepBytes]](), list[Life](), [0] * len(values)
        for place in sorted(range(len(values)), key=lives.__getitem__):
            number = next((n for n, own in enumerate(busy) if own.last < lives[place].first), len(busy))
            if number == len(busy):
                shared.append([])
                busy.append(lives[place])
            shared[number].append(values[place])
            busy[number] = lives[place]
            order[place] = number
        return cls(shared, order, [0] * axes)

    def sizes(self, totals: Sequence[int]) -> list[int]:
        """Returns the bytes that each buffer needs. totals: the number of steps along each axis."""
        return [max(totals[value.axis] * value.bytes for value in values) for values in self.values]

    def arrays(self, totals: Sequence[int]) -> list[Array]:
        """Returns, for each value that compiled parts of a net hand on, the buffer that holds it; buffers
        that are too small are replaced. Values share one if they are in use at different times.

        totals: the number of steps along each axis of the present call.
        """
        for place, room in enumerate(self.room):
            if totals[place] > room:
                return self.larger(totals)
        return self.listed

    def larger(self, totals: Sequence[int]) -> list[Array]:
        """Makes buffers with room for a quarter more steps than these along each axis, and keeps them unless
        they are too large; returns that of each value that compiled parts of a net hand on.
        """
        room = [max(total + total // 4, known) for total, known in zip(totals, self.room, strict=True)]
        sizes = self.sizes(room)
        is_kept = sum(sizes) <= MOST_BYTES
        # The same row of several buffers should not map to the same cache set.
        begins = [number * APART for number in range(len(sizes))]
        whole = [begin + size for begin, size in zip(begins, sizes, strict=True)]
        new = [aligned(size) if is_kept else maker_of(((size,), np.uint8))() for size in whole]
        buffers = [buffer[begin:] for buffer, begin in zip(new, begins, strict=True)]
        listed = [buffers[number] for number in self.order]
        if is_kept:
            self.room, self.listed, self.bytes = room, listed, sum(sizes)
        return listed


def lives_of(
    links: Links,
    waves: Sequence[Sequence[int]],
    behind: Mapping[int, Sequence[object]],
    tasks: Sequence[object],
) -> dict[Hashable, Life]:
    """Returns the turns (times of a call, one after the other) in which the memory of each value of a chain
    of kernels (compiled parts) is in use: from that in which it is written to the last one in which it is
    read. Values are given by key.

    links: the values that kernels and operations across extents (such as sums over steps) read and compute.
    waves: the kernels that run at the same time, by position.
    behind: the operations that run behind each wave, by its position; under -1 those ahead of the first.
    tasks: all of them, in the order of `links.across`.
    """
    first, last, turn = dict[Hashable, int](), dict[Hashable, int](), 0
    through = dict[Hashable, Hashable]()

    def use(written: Iterable[Hashable], read: Iterable[Hashable]) -> None:
        """Notes in `last` that the present turn writes and reads these values, and in `first` that it is the
        turn in which those written begin. A read of addresses (keys of `through`) also reads the value that
        they point into.
        """
        for key in written:
            first[key] = last[key] = turn
        for key in read:
            while True:
                last[key] = turn
                if key not in through:
                    break
                key = through[key]

    for wave in range(-1, len(waves)):
        for place in waves[wave] if wave >= 0 else ():
            kernel = links.kernels[place]
            use(kernel.results, (*kernel.sequences, *kernel.memories, *kernel.statics))
        turn += 1
        for task in behind.get(wave, ()):
            (*read, result) = links.across[next(n for n, own in enumerate(tasks) if own is task)]
            if isinstance(task, AcrossTask) and task.across.in_place:
                through[result] = read[0]  # who reads the addresses of steps reads these
            use([result], read)
            turn += 1
    return {key: Life(begin, last[key]) for key, begin in first.items()}
