"""The decision which loops run at the same time: independent ones on streams, and layers as wavefronts.

at once     two directions            gru | gru                        the time of the longer one
wavefront   layers of a stack         chunk k beside chunk k - 1       first chunks, then the slowest layer

A loop that runs 16 sequences takes a few blocks, and the rest of the GPU is idle. Loops run at the same time
if all their blocks fit on it; one that takes all of it when it is alone may have a kernel of fewer blocks,
which takes longer. What is gained must pay for the events that order the streams, and for the launches of
chunks, which Python gives one after the other.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil
from typing import NamedTuple

from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.loops.kept import ChosenLoop
from stepnet.compiler.targets.cuda.tensor.facts import facts_of
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class StreamCosts:
    """The costs by which it is decided what runs at the same time, in microseconds.

    events: the events of a fork and its join. chunk: the GPU's time between two chunks of a layer, for
        launches, moves and the products ahead of the loop.
    given: Python's time for the launches of a chunk, as measured with a driver that does nothing; 0 for
        launches that a graph gives.
    unknown: a step of a loop that has no estimate.
    chunks: the numbers of chunks that are weighed. fewest: the fewest steps of a chunk.
    most: the most loops that run at the same time.
    faster: the factor by which a wavefront must be faster to be chosen.
    """

    events: float = 20.0
    chunk: float = 25.0
    given: float = 350.0
    unknown: float = 1.0
    chunks: tuple[int, ...] = (2, 4, 8, 16, 32)
    fewest: int = 16
    most: int = 4
    faster: float = 1.1


ESTIMATED = StreamCosts()
COSTS = ContextVar[StreamCosts | None]("COSTS", default=ESTIMATED)
"""The present costs; None for everything in order, on one stream."""


@contextmanager
def weighed_by(costs: StreamCosts | None) -> Generator[None]:
    """Context in which other costs decide what runs at the same time; None for everything in order."""
    token = COSTS.set(costs)
    try:
        yield
    finally:
        COSTS.reset(token)


@dataclass(frozen=True)
class LoopLoad:
    """The share of a GPU and the time that a loop takes.

    share: the part of the blocks that run at once. microseconds: the estimate of a step's time.
    is_divisible: whether it can run in chunks of its steps.
    """

    share: float
    microseconds: float
    is_divisible: bool = True


def load_of(
    chosen: ChosenLoop, rows: int, facts: DeviceFacts, is_divisible: bool, unknown: float
) -> LoopLoad:
    """Estimates the share of a device that a loop over `rows` sequences takes, and its time. unknown: see
    `StreamCosts`.
    """
    if chosen.by_steps:  # each product of a step takes all of it
        return LoopLoad(1.0, chosen.microseconds, is_divisible)
    groups = ceil(rows / chosen.loop.group_rows)
    groups = min(groups, chosen.groups or groups)
    blocks, at_once = chosen.loop.code.group, facts.multiprocessors
    if chosen.loop.code.exchange == "cluster":
        at_once = blocks * facts_of(facts).clusters_at_once(blocks, facts.multiprocessors)
    share = min(1.0, groups * blocks / at_once)
    is_divisible = is_divisible and chosen.loop.together == 1
    return LoopLoad(share, chosen.microseconds or unknown, is_divisible)


LoadsOf = Callable[[int], Sequence[LoopLoad]]
"""Returns the part of the GPU that each of some loops takes, if so many of them run at the same time."""


class PartPlace(NamedTuple):
    """Where a part runs: the number of its stream, the number of chunks of its steps, and the number of loops
    that share the GPU with it.
    """

    stream: int
    chunks: int
    share: int


@dataclass(frozen=True)
class LoopsAtOnce:
    """Independent loops, each on one of several streams.

    streams: the stream of each loop. microseconds: the predicted time. in_turn: the predicted time on one
    stream.
    """

    streams: tuple[int, ...]
    microseconds: float
    in_turn: float

    @property
    def count(self) -> int:
        """The number of streams."""
        return max(self.streams) + 1

    @property
    def places(self) -> list[PartPlace]:
        """Where the loops run; empty if that is on one stream."""
        return [PartPlace(stream, 1, self.count) for stream in self.streams] if self.count > 1 else []

    def __str__(self) -> str:
        """Describes the decision and the alternative, with the predicted time of each."""
        if self.count == 1:
            return f"one after the other: {self.in_turn:,.0f} us predicted"
        return (
            f"at once, on {self.count} streams: {self.microseconds:,.0f} us predicted; one after the other "
            f"{self.in_turn:,.0f} us"
        )


def at_once(loads_of: LoadsOf, steps: int, costs: StreamCosts) -> LoopsAtOnce:
    """Decides on which streams independent loops of so many steps run: on as many as are predicted to be the
    fastest of those whose loops fit on the GPU at once.
    """
    in_turn = sum(load.microseconds for load in loads_of(1)) * steps
    best = LoopsAtOnce((0,) * len(loads_of(1)), in_turn, in_turn)
    for count in range(2, 1 + min(len(best.streams), costs.most) if in_turn > 2 * costs.events else 0):
        loads = loads_of(count)
        if sum(sorted((load.share for load in loads), reverse=True)[:count]) > 1:
            continue
        ends, streams = [costs.events] * count, list[int]()
        for load in loads:
            streams.append(ends.index(min(ends)))
            ends[streams[-1]] += load.microseconds * steps
        if max(ends) < best.microseconds:
            best = LoopsAtOnce(tuple(streams), max(ends), in_turn)
    return best


@dataclass(frozen=True)
class LayersAsWavefronts:
    """Layers that read one another's outputs, in groups that run as wavefronts.

    groups: for each group, the number of its layers and the number of their chunks; 1 for layers in turn.
    share: how many layers of a wavefront run at once, at most. microseconds: the predicted time.
    in_turn: the predicted time of one layer after the other.
    """

    groups: tuple[tuple[int, int], ...]
    share: int
    microseconds: float
    in_turn: float

    @property
    def places(self) -> list[PartPlace]:
        """Where the layers run; empty if that is one after the other."""
        if all(chunks == 1 for _, chunks in self.groups):
            return []
        return [
            PartPlace(place, chunks, self.share if chunks > 1 else 1)
            for count, chunks in self.groups
            for place in range(count)
        ]

    def __str__(self) -> str:
        """Describes the decision and the alternative, with the predicted time of each."""
        if not self.places:
            return f"one layer after the other: {self.in_turn:,.0f} us predicted"
        texts = [
            f"{count} layers as a wavefront of {chunks} chunks" if chunks > 1 else f"{count} in turn"
            for count, chunks in self.groups
        ]
        return (
            f"{', then '.join(texts)}: {self.microseconds:,.0f} us predicted; one layer after the other "
            f"{self.in_turn:,.0f} us"
        )


def as_wavefronts(loads_of: LoadsOf, steps: int, costs: StreamCosts) -> LayersAsWavefronts:
    """Decides which layers of a stack run as wavefronts, of how many layers each, and in how many chunks: the
    fastest choice by the estimates that fits on the GPU at once.
    """
    alone = loads_of(1)
    in_turn = sum(load.microseconds for load in alone) * steps
    best = LayersAsWavefronts(((len(alone), 1),), 1, in_turn, in_turn)
    for share in range(2, 1 + min(len(alone), costs.most) if steps >= costs.fewest * costs.chunks[0] else 0):
        groups, time, first = list[tuple[int, int]](), 0.0, 0
        for group in fitting(loads_of(share), share):
            own = alone[first : first + len(group)]
            chunks, predicted = best_chunks(group, own, steps, costs)
            groups.append((len(group), chunks))
            time, first = time + predicted, first + len(group)
        if time < best.microseconds:
            best = LayersAsWavefronts(tuple(groups), share, time, in_turn)
    return best


def fitting(loads: Sequence[LoopLoad], most: int) -> list[list[LoopLoad]]:
    """Divides layers into groups of at most `most` neighbours whose loops fit on the GPU at once."""
    groups = list[list[LoopLoad]]()
    for load in loads:
        last = groups[-1] if groups else []
        joins = 0 < len(last) < most and all(each.is_divisible for each in (*last, load))
        if joins and sum(each.share for each in last) + load.share <= 1:
            last.append(load)
        else:
            groups.append([load])
    return groups


def best_chunks(
    loads: Sequence[LoopLoad], alone: Sequence[LoopLoad], steps: int, costs: StreamCosts
) -> tuple[int, float]:
    """Returns the number of chunks of layers that run at once, 1 for no wavefront, and the microseconds of
    all steps.

    alone: the loops of the layers if they run one after the other.
    """
    in_turn = sum(load.microseconds for load in alone) * steps
    counts = [count for count in costs.chunks if steps >= costs.fewest * count] if len(loads) > 1 else []
    times = {count: wavefront_time(loads, steps, count, costs) for count in counts}
    best = min(times, key=lambda count: times[count], default=1)
    return (best, times[best]) if times and costs.faster * times[best] < in_turn else (1, in_turn)


def wavefront_time(loads: Sequence[LoopLoad], steps: int, count: int, costs: StreamCosts) -> float:
    """Returns the predicted microseconds of a wavefront: the first chunk of each layer, then the other chunks
    of the slowest one; or those of Python, which gives all launches.
    """
    chunks = [load.microseconds * steps / count + costs.chunk for load in loads]
    return costs.events + max(sum(chunks) + (count - 1) * max(chunks), costs.given * count * len(loads))
