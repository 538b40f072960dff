"""Side streams: work of one thread that runs at the same time, from a fork of its stream to the join.

    main     fork ------------ uploads ------------ join
    side 0      |--- a -- mark ---- b ------------|
    side 1      |-------- after(mark) -- c -------|

A side stream begins behind all that the main stream was given before the fork, and the main stream goes on
behind all side streams. In between, only marks order one side stream behind another, and the main stream has
nothing but what all of them may read, such as arrays of the host. A fork and its join are events alone, so a
CUDA graph can capture them.

Memory is freed in the order of one stream. A block that was allocated in a context of a side stream and freed
in the same context was read and written by that stream alone, and is freed there; all others are freed behind
the join.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Protocol

from stepnet.compiler.values.records import dataclass


class StreamOrder(Protocol):
    """The streams of a device, and the order among them."""

    def side_stream(self, number: int) -> int:
        """Returns the handle of a side stream, by its number from 0 on; made at its first use."""
        ...

    def mark_of(self, stream: int) -> Any:
        """Returns a mark behind the work that a stream was given so far."""
        ...

    def follow(self, stream: int, mark: Any) -> None:
        """Makes a stream wait, before its next work, for the work ahead of a mark."""
        ...


@dataclass
class SideStream:
    """A side stream of a fork.

    handle: by which the device knows it. uploads: the number of the uploads to the main stream that it is
        behind; -1 before it has begun. own: the blocks that were allocated in its present context.
    """

    handle: int
    uploads: int = -1
    own: set[int] = field(default_factory=set[int])


class Fork:
    """The side streams of one thread, from a fork of its main stream on."""

    def __init__(self, order: StreamOrder, main: int) -> None:
        """Forks the stream `main` of a device."""
        self.order, self.main = order, main
        self.sides = dict[int, SideStream]()
        self.current: SideStream | None = None
        self.uploads = 0
        self.ahead: Any = order.mark_of(main)

    @contextmanager
    def on(self, number: int) -> Generator[None]:
        """Context in which the thread gives its work to a side stream, by a number from 0 on."""
        assert self.current is None, "side streams have no side streams"
        if number not in self.sides:
            self.sides[number] = SideStream(self.order.side_stream(number))
        self.current = self.sides[number]
        try:
            yield
        finally:
            self.current.own.clear()
            self.current = None

    @contextmanager
    def on_main(self) -> Generator[None]:
        """Context for main-stream work that side streams may read: their next work is behind it."""
        current, self.current = self.current, None
        try:
            yield
        finally:
            self.current = current
            self.uploads, self.ahead = self.uploads + 1, None

    def stream(self) -> int | None:
        """Returns the side stream that work is given to now, behind all uploads; None for the main stream."""
        side = self.current
        if side is None:
            return None
        if side.uploads != self.uploads:
            if self.ahead is None:
                self.ahead = self.order.mark_of(self.main)
            self.order.follow(side.handle, self.ahead)
            side.uploads = self.uploads
        return side.handle

    def mark(self) -> Any:
        """Returns a mark behind the work that the present side stream was given so far."""
        stream = self.stream()
        assert stream is not None, "marks are those of side streams"
        return self.order.mark_of(stream)

    def after(self, mark: Any) -> None:
        """Makes the present side stream wait for the work ahead of a mark of another one."""
        stream = self.stream()
        assert stream is not None, "marks are waited for by side streams"
        self.order.follow(stream, mark)

    def allocated(self, address: int) -> None:
        """Notes a block that was allocated now."""
        if self.current is not None:
            self.current.own.add(address)

    def takes_back(self, address: int) -> bool:
        """Tells whether a block can be freed on the present side stream, as no other stream has used it; if
        so, the block is no longer noted.
        """
        side = self.current
        if side is None or address not in side.own:
            return False
        side.own.remove(address)
        return True

    def join(self) -> None:
        """Makes the main stream wait for all side streams."""
        for side in self.sides.values():
            if side.uploads >= 0:
                self.order.follow(self.main, self.order.mark_of(side.handle))
