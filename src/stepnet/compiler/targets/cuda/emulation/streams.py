"""The streams of an emulated device: work waits until the join, and then runs in a random order.

    order       any that the marks allow: a stream's work in its order, and behind those that it waits for
    accesses    of a block by two streams, one of which writes: an error if no mark orders them

Each piece of work has a vector clock: how many pieces of each stream are ahead of it. Of a block all accesses
since the fork are kept, so a mark that is missing is found whatever order comes by chance.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stepnet.compiler.values.records import dataclass
from stepnet.errors import DeviceError

Clock = dict[int, int]
"""The number of pieces of work that are ahead, by stream."""


class Access(NamedTuple):
    """An access of a block. writes: whether it changes the block."""

    block: int
    writes: bool


@dataclass(frozen=True)
class StreamWork:
    """Piece of work of a stream. run: does it, and returns the accesses to blocks of memory.

    clock: the pieces of work that must be done before it, and itself.
    """

    name: str
    stream: int
    clock: Clock
    run: Callable[[], Iterable[Access]]

    def is_behind(self, other: "StreamWork") -> bool:
        """Tells whether marks, or the order of one stream, put this work behind another."""
        return self.clock.get(other.stream, 0) >= other.clock[other.stream]


class EmulatedStreams:
    """The work of the streams of one thread from a fork to the join."""

    def __init__(self, seed: object) -> None:
        """Begins without work. seed: of the order in which pieces of work run."""
        self.random = random.Random(str(seed))
        self.queues = dict[int, deque[StreamWork]]()
        self.clocks = dict[int, Clock]()
        self.done = Clock()
        self.accesses = dict[int, list[tuple[StreamWork, bool]]]()

    def clock_of(self, stream: int) -> Clock:
        """Returns the clock of the next piece of a stream: the work ahead of it."""
        return self.clocks.setdefault(stream, {stream: 0})

    def give(self, name: str, stream: int, run: Callable[[], Iterable[Access]]) -> None:
        """Gives a piece of work to a stream. name: for messages."""
        clock = self.clock_of(stream)
        clock[stream] += 1
        self.queues.setdefault(stream, deque()).append(StreamWork(name, stream, dict(clock), run))

    def follow(self, stream: int, mark: Clock) -> None:
        """Makes the next piece of a stream wait for the work ahead of a mark, which is a clock."""
        clock = self.clock_of(stream)
        for other, count in mark.items():
            clock[other] = max(clock.get(other, 0), count)

    def run(self) -> None:
        """Runs all work that was given. Raises `DeviceError` for accesses that nothing orders."""
        while ready := [queue for queue in self.queues.values() if queue and self.is_ready(queue[0])]:
            work = self.random.choice(ready).popleft()
            for access in work.run():
                self.check(work, access)
            self.done[work.stream] = work.clock[work.stream]
        assert not any(self.queues.values()), "streams wait for each other"

    def is_ready(self, work: StreamWork) -> bool:
        """Tells whether all that is ahead of a piece of work is done."""
        return all(
            self.done.get(stream, 0) >= count - (stream == work.stream)
            for stream, count in work.clock.items()
        )

    def check(self, work: StreamWork, access: Access) -> None:
        """Raises `DeviceError` if a block that a piece of work has accessed is also accessed by work of
        another stream, and one of them writes.
        """
        earlier = self.accesses.setdefault(access.block, [])
        for other, writes in earlier:
            if (writes or access.writes) and not work.is_behind(other):
                raise DeviceError(
                    f"{work.name} of stream {work.stream} {'writes' if access.writes else 'reads'} an array "
                    f"that {other.name} of stream {other.stream} {'writes' if writes else 'reads'}, and no "
                    "mark puts one behind the other"
                )
        earlier.append((work, access.writes))
