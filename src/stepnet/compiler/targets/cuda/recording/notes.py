"""Notes of the work that one call gives to a device, while it does so.

    launch stage   x, W -> a               x, W    arguments: what the call is given
    clear          b                       a, b    values, which the call allocates
    launch loop    a, b, positions -> y    y       a value that is a result
    mark 0         behind the stage        so that a side stream may follow

Memory of arguments and values lies elsewhere in later calls. All else that kernels read, such as positions,
is the same in all calls of one form.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, replace
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from stepnet.compiler.targets.base import OwnedMemory
from stepnet.compiler.targets.cuda.device import (
    KNOWN,
    Address,
    Allocation,
    Array,
    Device,
    DeviceArray,
    DeviceCode,
    DeviceWork,
)
from stepnet.compiler.targets.cuda.streams import StreamOrder
from stepnet.compiler.values.records import dataclass

MOST_WORK, MOST_VALUES, WORK_BYTES = 8192, 1024, 2048
"""The most pieces of work that are noted, and the most memory of a call, whose places in an arena are found
together; the bytes of the host that a piece of work takes."""
READS_BACK = "the host reads what the GPU computed, as for tables that are read at an index"
WRITES = "the host writes numbers to memory of the call"
LIMITS = f"{MOST_WORK} pieces of work and {MOST_VALUES} values"
TOO_LONG = f"it has more than {LIMITS}"


@dataclass(eq=False)
class CallMemory:
    """Memory that lies elsewhere in later calls: of an argument, or of a value that a call computes.

    notes: the notes of the call. number: among all memory of the call. room: the memory in this call.
    count: the bytes of a value; -1 for an argument. is_of_model: False, see `Allocation`.
    """

    notes: "CallNotes"
    number: int
    room: OwnedMemory
    count: int = -1
    is_of_model: bool = False

    @property
    def address(self) -> int:
        """The address in this call."""
        return self.room.address


class ResultPlace(NamedTuple):
    """Where a result of a call lies: the number of its memory, and how many bytes behind its beginning."""

    number: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass
class CallNotes:
    """Notes of the work that one call gives to a device, while it is done.

    device: the device. memory: all memory of the call that lies elsewhere in others: the bytes of each value,
        -1 for an argument. work: the pieces of work. constants: the objects that keep all other memory
        allocated, by identity. refused: why later calls cannot give this work; "" if they can. streams: the
        numbers of side streams, from 1 on, by the device's handles. marks: the number of marks so far.
    """

    device: Device
    memory: list[int] = field(default_factory=list[int])
    work: list[DeviceWork] = field(default_factory=list[DeviceWork])
    constants: dict[int, Any] = field(default_factory=dict[int, Any])
    refused: str = ""
    streams: dict[int, int] = field(default_factory=dict[int, int])
    marks: int = 0

    @contextmanager
    def noting(self) -> Generator[None]:
        """Context in which the work of this thread, and the memory of the values it computes, is noted."""
        tokens = NOTES.set(self), KNOWN.set(self.known)
        try:
            yield
        finally:
            NOTES.reset(tokens[0])
            KNOWN.reset(tokens[1])

    def known(self, room: OwnedMemory, count: int = -1) -> CallMemory:
        """Returns memory as one that lies elsewhere in later calls. count: its bytes; -1 for an argument."""
        self.memory.append(count)
        return CallMemory(self, len(self.memory) - 1, room, count)

    def argument(self, array: DeviceArray) -> DeviceArray:
        """Returns an array that the call is given, with memory that is noted as an argument."""
        return replace(array, owner=self.known(array))

    def result(self, array: DeviceArray) -> tuple[DeviceArray, ResultPlace | None]:
        """Returns a result as the caller gets it, and its place. Returns None, with a reason in `refused`, if
        its memory does not belong to a value of this call.
        """
        owner = array.owner
        if not isinstance(owner, CallMemory) or owner.notes is not self or owner.count < 0:
            self.refused = self.refused or "a result is no value of the call"
            return array, None
        place = ResultPlace(owner.number, array.address - owner.address, array.shape, array.dtype)
        return replace(array, owner=owner.room), place

    # ---- what a device tells

    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        """Notes a launch of a kernel on some blocks."""
        if blocks:
            self.add("launch", words, blocks, code)

    def clear(self, address: int, count: int) -> None:
        """Notes that bytes are set to zero."""
        if count:
            self.add("clear", (address,), count)

    def copy(self, target: int, source: int, count: int) -> None:
        """Notes that bytes are copied within the device."""
        if count:
            self.add("copy", (target, source), count)

    def write(self, address: int, array: Array) -> None:
        """Refuses notes of a call that the host gives numbers, but in memory that later calls have."""
        if self.placed(address)[0] >= 0:
            self.refused = self.refused or WRITES

    def read(self, address: int, array: Array) -> None:
        """Marks the call as not recordable: its work depends on values that the host reads back."""
        self.refused = self.refused or READS_BACK

    def add(self, kind: Any, words: Sequence[int], count: int, code: DeviceCode | None = None) -> None:
        """Notes a piece of work of the present stream."""
        fork = self.device.fork
        side = None if fork is None else fork.stream()
        self.add_to(0 if side is None else self.streams[side], kind, words, count, code)

    def add_to(
        self, stream: int, kind: Any, words: Sequence[int], count: int, code: DeviceCode | None = None
    ) -> None:
        """Notes a piece of work of a stream, by its number."""
        if len(self.work) >= MOST_WORK or len(self.memory) > MOST_VALUES:
            self.refused = self.refused or TOO_LONG
        if not self.refused:
            bases, offsets = zip(*map(self.placed, words), strict=True) if words else ((), ())
            self.work.append(DeviceWork(kind, bases, offsets, count, code, stream))

    def placed(self, word: int) -> tuple[int, int]:
        """Returns the number of the memory that an address lies in, and its offset there in bytes; -1 and the
        word itself for an address that is the same in later calls.
        """
        if not isinstance(word, Address):
            return -1, int(word)
        owner = word.owner
        if isinstance(owner, CallMemory) and owner.notes is self:
            return owner.number, word - owner.address
        self.constants[id(owner)] = owner
        return -1, int(word)

    @property
    def bytes(self) -> int:
        """The bytes of the device that the constants hold, those of the model's parameters aside."""
        kept = [owner for owner in self.constants.values() if isinstance(owner, Allocation | CallMemory)]
        return sum(owner.count for owner in kept if not owner.is_of_model)


NOTES = ContextVar[CallNotes | None]("NOTES", default=None)
"""The notes of the work of this thread; None for a call that is not noted."""


class NotedMark(NamedTuple):
    """A mark (event) of a device, and its number among the marks of the call."""

    mark: Any
    number: int


@dataclass(frozen=True)
class NotedOrder:
    """The streams of a device during a call that is noted, as `StreamOrder`."""

    order: StreamOrder
    notes: CallNotes

    def side_stream(self, number: int) -> int:
        """Returns the handle of a side stream, by its number from 0 on."""
        handle = self.order.side_stream(number)
        self.notes.streams[handle] = 1 + number
        return handle

    def mark_of(self, stream: int) -> NotedMark:
        """Returns a mark behind the work that a stream was given so far."""
        number, self.notes.marks = self.notes.marks, self.notes.marks + 1
        self.notes.add_to(self.notes.streams.get(stream, 0), "mark", (), number)
        return NotedMark(self.order.mark_of(stream), number)

    def follow(self, stream: int, mark: NotedMark) -> None:
        """Makes a stream wait, before its next work, for the work ahead of a mark."""
        self.notes.add_to(self.notes.streams.get(stream, 0), "follow", (), mark.number)
        self.order.follow(stream, mark.mark)


def noted_order(order: StreamOrder) -> StreamOrder:
    """Returns the streams of a device so that the order among them is noted where `NOTES` asks for that."""
    notes = NOTES.get()
    return order if notes is None else NotedOrder(order, notes)


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Work = Callable[Concatenate[Any, Parameters], Result]


def noted(method: Work[Parameters, Result]) -> Work[Parameters, Result]:
    """Makes a method of a device also note its work where `NOTES` asks for that."""
    name = method.__name__

    @wraps(method)
    def with_notes(self: Any, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        """Does the work, and notes it, unless it failed."""
        result = method(self, *arguments, **named)
        if (notes := NOTES.get()) is not None:
            getattr(notes, name)(*arguments, **named)
        return result

    return with_notes
