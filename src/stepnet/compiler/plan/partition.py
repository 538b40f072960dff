"""The sharing of a call between threads: each way is weighed by an estimate of its time.

    alone     rows          units         steps      at once           (threads a and b)
    a a a a   a a a a       a a | b b     a a b b    a a a a           a recurrence that does not
    a a a a   a a a a       a a | b b     a a b b    b b b b           depend on the first
    a a a a   b b b b       a a | b b     a a b b
    a a a a   b b b b       a a | b b     a a b b

By rows, each thread runs different sequences. It reads all parameters, and never waits. By units, all
threads share each step of all sequences. Each thread reads a part of the parameters, which may fit its cache
when all parameters do not, and multiplies it by more rows; the threads wait for one another at the end of
each phase of a step. By steps, if no step depends on another, each thread has steps of its own, also those of
a single sequence. At once, recurrences that do not depend on each other, such as both directions of a layer,
run on different threads.

Layers of a stack run one after the other, each shared in one of these ways, or as a wavefront:

    in turn        wavefront, in blocks of two steps
    a a a a        a a a a
    a a a a            b b b b    the layer behind waits for the outputs of a block,
                                  once per block: each thread has its own layer's parameters

"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Literal

from stepnet.compiler.plan.load import CallSize, Load, Machine
from stepnet.compiler.values.records import dataclass

How = Literal["alone", "rows", "units", "steps"]


@dataclass(frozen=True)
class CallPartition:
    """One way to share a call between threads, and its estimated seconds.

    how: "alone" (one thread), "rows" (threads have sequences of their own), "units" (threads share each
        step) or "steps" (threads have steps of their own of all sequences).
    blocks: for "units", the unit blocks of the thread that has most of them, in each product.
    waits: for "units", the number of barriers per step.
    """

    how: How
    threads: int
    seconds: float
    blocks: tuple[int, ...] = ()
    waits: int = 0

    @property
    def sets(self) -> int:
        """The number of threads with sequences of their own; 1 if threads share each step."""
        return self.threads if self.how == "rows" else 1

    @property
    def threads_per_step(self) -> int:
        """The number of threads that share each step; 1 if each thread has sequences of its own."""
        return self.threads if self.how == "units" else 1

    @property
    def parts(self) -> int:
        """The number of threads that divide a call's steps, each with some of all sequences; 1 for none."""
        return self.threads if self.how == "steps" else 1

    def __str__(self) -> str:
        """Describes the way to share a call in words."""
        if self.how == "alone":
            return "one thread"
        if self.how == "rows":
            return f"{self.threads} threads with sequences of their own"
        if self.how == "steps":
            return f"{self.threads} threads share the steps"
        blocks = ", ".join(map(str, self.blocks)) if len({*self.blocks}) > 1 else str(max(self.blocks))
        barriers = {0: "no barrier", 1: "a barrier"}.get(self.waits, f"{self.waits} barriers")
        return f"{self.threads} threads share the units (up to {blocks} blocks each), {barriers} per step"


@dataclass(frozen=True)
class Partition:
    """Decision how a call is shared between threads, and all ways that were weighed.

    >>> size = CallSize(filled=1, longest=10, steps=10)
    >>> alone, units = CallPartition("alone", 1, 4e-6), CallPartition("units", 2, 5e-6, (8,), 1)
    >>> print(Partition(alone, (alone, units)))
    one thread: 4.0 us predicted
      not 2 threads share the units (up to 8 blocks each), a barrier per step: 5.0 us
    """

    chosen: CallPartition
    weighed: tuple[CallPartition, ...]

    def __post_init__(self) -> None:
        """Raises `AssertionError` if the chosen way to share the call was not weighed."""
        if self.chosen not in self.weighed:
            raise AssertionError("the chosen way is none of those weighed")

    def __str__(self) -> str:
        """Describes the chosen way to share a call between threads, and the others, with estimated times."""
        others = (way for way in self.weighed if way != self.chosen)
        lines = [f"  not {way}: {duration(way.seconds)}" for way in others]
        return "\n".join([f"{self.chosen}: {duration(self.chosen.seconds)} predicted", *lines])


def duration(seconds: float) -> str:
    """Writes seconds as text, with two digits.

    >>> duration(41.4e-6), duration(3.14159e-3), duration(2)
    ('41 us', '3.1 ms', '2.0 s')
    """
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.{0 if seconds * factor >= 9.95 else 1}f} {unit}"
    return f"{seconds:.{0 if seconds >= 9.95 else 1}f} s"


def partition(
    load: Load, size: CallSize, max_threads: int, machine: Machine, how: How | None = None
) -> Partition:
    """Chooses how at most `max_threads` threads share a call of a recurrence: in the way of the least
    estimated time, or on one thread if that is not much slower.

    load, size: the work of the recurrence, and the size of the call. machine: the rates of the processor.
    how: the way to choose, with all threads, where it is possible, and else one thread; None to choose by the
        estimates.
    """
    ways = tuple(ways_of(load, size, max_threads, machine))
    if how is not None:
        return Partition(next((way for way in reversed(ways) if way.how == how), ways[0]), ways)
    best = min(ways, key=lambda way: way.seconds)
    return Partition(best if best.seconds < machine.worth * ways[0].seconds else ways[0], ways)


def ways_of(load: Load, size: CallSize, max_threads: int, machine: Machine) -> Iterator[CallPartition]:
    """Yields the ways to share a call of a recurrence between at most `max_threads` threads, with estimated
    times; the first is one thread. Threads may divide the sequences ("rows"), the features of each step
    ("units"), or, if there is no loop, the steps. load, size: the work of the recurrence, and the size of the
    call. machine: the rates of the processor.
    """
    yield CallPartition("alone", 1, load.seconds(size, 1, 1, machine))
    for threads in thread_counts(max_threads):
        if load.is_plain and size.filled:  # ahead of "rows", which takes as long by this estimate
            yield CallPartition("steps", threads, load.seconds(size, 1, threads, machine))
        if threads <= size.filled:
            yield CallPartition("rows", threads, load.seconds(size, threads, 1, machine))
        if (load.loop.products or load.loop.blocks) and size.filled:
            blocks = tuple(product.largest(threads) for product in load.loop.products)
            blocks += tuple(ceil(count / threads) for count in load.loop.blocks)
            seconds = load.seconds(size, 1, threads, machine)
            yield CallPartition("units", threads, seconds, blocks, load.loop.waits)


def thread_counts(max_threads: int) -> list[int]:
    """Lists the numbers of threads to try: powers of two below `max_threads`, and `max_threads` itself.

    >>> thread_counts(1), thread_counts(2), thread_counts(6)
    ([], [2], [2, 4, 6])
    """
    return [
        *(2**power for power in range(1, max_threads.bit_length()) if 2**power < max_threads),
        *([max_threads] * (max_threads > 1)),
    ]


@dataclass(frozen=True)
class Concurrency:
    """Decision whether independent recurrences run at the same time, or one after the other.

    order: their positions in the order in which threads take them, the longest first; None if they run one
        after the other.
    ways: how each recurrence is shared in the way that was chosen.
    seconds: the estimated time if they run at the same time.
    in_turn: the estimated time if they run one after the other.
    """

    order: tuple[int, ...] | None
    ways: tuple[CallPartition, ...]
    seconds: float
    in_turn: float

    def __str__(self) -> str:
        """Describes in words whether independent recurrences run at the same time, with estimated times."""
        times = duration(self.seconds), duration(self.in_turn)
        if self.order is None:
            return f"one after the other: {times[1]} predicted\n  not at the same time: {times[0]}"
        threads = max(way.threads for way in self.ways)
        label = "a thread" if threads == 1 else f"{threads} threads"
        return (
            f"at the same time, {label} for each: {times[0]} predicted\n  not one after the other: {times[1]}"
        )


def at_once(
    loads: Sequence[Load], sizes: Sequence[CallSize], max_threads: int, machine: Machine
) -> Concurrency:
    """Decides whether independent recurrences, such as both directions of a layer, run at the same time or
    one after the other, by the estimated time.

    One after the other, each is shared in its best way. At the same time, each has an equal share of the
    threads, which divide its sequences; the longest starts first.

    loads, sizes: the work of each recurrence, and the size of its call.
    max_threads, machine: the number of threads for all of them, and the rates of the processor.
    """
    parts = [
        partition(load, size, max_threads, machine).chosen for load, size in zip(loads, sizes, strict=True)
    ]
    in_turn = sum(way.seconds for way in parts)
    threads_per_part = max(1, max_threads // len(loads))
    own = [by_rows(load, size, threads_per_part, machine) for load, size in zip(loads, sizes, strict=True)]
    order = sorted(range(len(own)), key=lambda index: own[index].seconds, reverse=True)
    ends = [0.0] * min(max_threads, len(own))
    for index in order:
        ends[ends.index(min(ends))] += own[index].seconds
    # The threads of a part that several share are counted as uneven there.
    uneven = machine.uneven if threads_per_part == 1 else 0.0
    seconds = max(ends) * (1 + uneven) + machine.handover
    if max_threads > 1 and seconds < in_turn:
        return Concurrency(tuple(order), tuple(own), seconds, in_turn)
    return Concurrency(None, tuple(parts), seconds, in_turn)


@dataclass(frozen=True)
class Wavefront:
    """Decision how the layers of a stack run: in groups one after the other; the layers of a group run at
    once.

    groups: for each group, the number of its layers, and the number of steps by which they follow one
        another; 0 for a single layer.
    ways: how each layer is shared.
    seconds: the estimated time of all groups.
    in_turn: the estimated time layer after layer.
    """

    groups: tuple[tuple[int, int], ...]
    ways: tuple[CallPartition, ...]
    seconds: float
    in_turn: float

    def __str__(self) -> str:
        """Describes in words which layers run one after the other or as a wavefront, with estimated times."""
        if all(count == 1 for count, _ in self.groups):
            return f"one layer after the other: {duration(self.in_turn)} predicted"
        texts = [
            f"{count} layers as a wavefront, blocks of {block} steps" if count > 1 else "one layer alone"
            for count, block in self.groups
        ]
        return (
            f"{', then '.join(texts)}: {duration(self.seconds)} predicted\n"
            f"  not one layer after the other: {duration(self.in_turn)}"
        )


def wavefront(
    loads: Sequence[Load], sizes: Sequence[CallSize], max_threads: int, machine: Machine
) -> Wavefront:
    """Decides whether layers, each of which reads the outputs of the one before, run one after the other, or
    in groups that run at once, some steps apart.

    All divisions into groups are weighed, from the last layer to the first. The division with the least
    estimated time is chosen, unless it gains little over one thread. Each layer of a group has one thread.

    loads, sizes: the work of each layer, in order, and the size of its call. max_threads, machine: the number
        of threads, and the rates of the processor.
    """
    parts = [
        partition(load, size, max_threads, machine).chosen for load, size in zip(loads, sizes, strict=True)
    ]
    alone = [
        CallPartition("alone", 1, load.seconds(size, 1, 1, machine))
        for load, size in zip(loads, sizes, strict=True)
    ]
    # For each layer, the best way to run this layer and all after it.
    best: list[tuple[float, tuple[tuple[int, int], ...]]] = [(0.0, ())]
    for first in reversed(range(len(loads))):
        ways = [(parts[first].seconds + best[0][0], ((1, 0), *best[0][1]))]
        for count in range(2, min(max_threads, len(loads) - first) + 1):
            last = first + count
            seconds, block = wavefront_time(loads[first:last], sizes[first:last], machine)
            after, groups = best[count - 1]
            ways.append((seconds + after, ((count, block), *groups)))
        best.insert(0, min(ways))
    in_turn = sum(way.seconds for way in parts)
    seconds, groups = best[0]
    if seconds >= machine.worth * sum(way.seconds for way in alone):
        return Wavefront(((1, 0),) * len(loads), tuple(parts), in_turn, in_turn)
    first = 0
    for count, block in groups:
        if block:
            parts[first : first + count] = alone[first : first + count]
        first += count
    return Wavefront(groups, tuple(parts), seconds, in_turn)


def wavefront_time(loads: Sequence[Load], sizes: Sequence[CallSize], machine: Machine) -> tuple[float, int]:
    """Estimates the time of layers that run at once, each on its own thread and a block of steps behind the
    layer before. Returns the seconds, and the best number of steps per block. loads, sizes: the work of each
    layer, and the size of its call. machine: the rates of the processor.
    """

    def seconds(block: int) -> float:
        """Estimates the seconds of a call whose layers run at the same time, one thread each, if each hands
        its outputs to the next one after every `block` steps.
        """
        blocks = max(1, ceil(sizes[0].longest / block))
        part_seconds = [
            load.seconds(size, 1, 1, machine, block) + blocks * machine.block
            for load, size in zip(loads, sizes, strict=True)
        ]
        # The slowest layer is busy all the time. Each other layer adds one block at the start or the end.
        busy = max(part_seconds) + (sum(part_seconds) - max(part_seconds)) / blocks
        return busy * (1 + machine.uneven) + machine.handover

    return min((seconds(block), block) for block in machine.block_sizes)


def by_rows(load: Load, size: CallSize, threads: int, machine: Machine) -> CallPartition:
    """Estimates the time of a call of a recurrence in which each thread runs some of the sequences. At most
    `threads` threads are used. load, size: the work of the recurrence, and the size of the call. machine: the
    rates of the processor.
    """
    sets = max(1, min(threads, size.filled))
    return CallPartition("rows" if sets > 1 else "alone", sets, load.seconds(size, sets, 1, machine))
