"""An emulated device: the threads of a kernel as fibers of one thread of the system (`fibers.py`).

Fibers take turns in a random order and at random speeds, and one that waits gives way. So barriers, counters
and the collective product are emulated exactly. Memory is poisoned with NaN, writes beyond the ends of arrays
are noticed, and so are threads that wait for each other. A missing order of memory is not found, as every
write is visible at once, but by a device whose blocks have views of its memory (`views.py`). Side streams are
those of `emulation/streams.py`.
"""

import ctypes
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np

from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cuda.device import (
    CPU,
    Array,
    DeviceCode,
    DeviceFacts,
    DeviceWork,
    NotResidentError,
    RepeatedWork,
)
from stepnet.compiler.targets.cuda.emulation.streams import Access, Clock, EmulatedStreams
from stepnet.compiler.targets.cuda.recording.notes import noted, noted_order
from stepnet.compiler.targets.cuda.streams import Fork
from stepnet.compiler.targets.cuda.written import made
from stepnet.errors import DeviceError

ALIGNMENT, GUARD = 256, 256
"""The bytes to which arrays are aligned, and those before and after each that no kernel may write to."""
SURROUNDING = 2 * GUARD + ALIGNMENT
"""The bytes that an array takes besides its own."""
POISON = 0xFF
"""The byte that memory is filled with: NaN as float32 and as float64, -1 as an integer."""
AT_ONCE = 2048
"""The number of threads that run at once, in blocks that do not work together."""
MAIN = 0
"""The number of the stream that all work goes to but for that of side streams."""
H100 = DeviceFacts("NVIDIA H100, emulated", (9, 0), 132, 232448, 65536, 16)


class EmulatedFork(threading.local):
    """The fork of each thread, and the work given to its streams. count: the number of forks so far."""

    fork: Fork | None = None
    streams: EmulatedStreams | None = None
    count = 0


class EmulatedDevice:
    """A device in emulation, whose memory is that of this process.

    seed: of the order of threads, and of the work of several streams; with 0 all warps are equally fast.
    arena: the bytes of its memory, of which each block then has a view (`views.py`); 0 for memory without
        bound, of which all blocks see at once what one writes.
    """

    def __init__(self, seed: int = 0, facts: DeviceFacts = H100, arena: int = 0) -> None:
        """Makes a device without memory in use. facts: its properties, by default those of an H100."""
        self.seed, self.facts = seed, facts
        self.arena = np.full(arena // 8 * 8, POISON, np.uint8) if arena else None
        self.arena_used = 0
        self.is_capturing = False
        self.memory = dict[int, Guarded]()
        self.freed, self.freed_later = set[int](), list[int]()
        self.own = EmulatedFork()

    @property
    def place(self) -> tuple[int, int]:
        """The type of its memory as DLPack has it, that of the process, and its number."""
        return CPU, 0

    # ---- streams

    def on_stream(self, handle: int) -> AbstractContextManager[None]:
        """Context in which work is given to a stream: a launch is done when it returns, on all streams."""
        return nullcontext()

    @property
    def fork(self) -> Fork | None:
        """The fork that this thread is in; None if all its work goes to one stream."""
        return self.own.fork

    @contextmanager
    def forked(self) -> Generator[Fork]:
        """Context in which this thread may give work to side streams, which runs at its end. Raises
        `DeviceError` if two of them access an array in no order, and one of them writes.
        """
        assert self.own.fork is None, "a fork has no forks"
        self.own.count += 1
        self.own.streams = EmulatedStreams((self.seed, self.own.count))
        self.own.fork = Fork(noted_order(self), MAIN)
        try:
            yield self.own.fork
            self.own.fork.join()
            self.own.streams.run()
        finally:
            self.own.fork = self.own.streams = None
            later, self.freed_later = self.freed_later, []
            for address in later:
                self.free(address)

    def side_stream(self, number: int) -> int:
        """Returns the handle of a side stream, by its number from 0 on."""
        return MAIN + 1 + number

    def mark_of(self, stream: int) -> Clock:
        """Returns a mark behind the work that a stream was given so far: how much it is, by stream."""
        return {} if self.own.streams is None else dict(self.own.streams.clock_of(stream))

    def follow(self, stream: int, mark: Clock) -> None:
        """Makes a stream wait, before its next work, for the work ahead of a mark."""
        if self.own.streams is not None:
            self.own.streams.follow(stream, mark)

    def give(self, name: str, places: Iterable[int], run: Callable[[], Iterable[Access]]) -> None:
        """Gives work to the present stream: it is done at once, or in a fork when the streams run.

        name: for messages. places: addresses of the memory that it accesses, and other numbers.
        run: does the work, and returns the accesses of blocks.
        """
        if self.own.fork is None or self.own.streams is None:
            run()
            return
        blocks = {block for place in places if (block := self.block_of(place)) is not None}

        def checked() -> Iterable[Access]:
            """Does the work. Raises `DeviceError` if its memory has been freed meanwhile."""
            if not blocks <= self.memory.keys():
                raise DeviceError(f"{name} accesses an array that another stream has freed, in no order")
            return run()

        side = self.own.fork.stream()
        self.own.streams.give(name, MAIN if side is None else side, checked)

    def block_of(self, word: int) -> int | None:
        """Returns the address of the block that an address lies in; None for other numbers."""
        begins = sorted(self.memory)
        place = bisect_right(begins, word) - 1
        if place < 0 or word >= begins[place] + max(1, self.memory[begins[place]].count):
            return None
        return begins[place]

    # ---- memory

    def allocate(self, count: int) -> int:
        """Allocates memory, which is poisoned: NaN as float32 and float64."""
        made = Guarded(count, self.room(count + SURROUNDING))
        self.memory[made.address] = made
        self.freed.discard(made.address)
        if self.own.fork is not None and self.own.streams is not None:
            self.own.fork.allocated(made.address)
            self.own.streams.accesses.pop(made.address, None)
        return made.address

    def room(self, count: int) -> Array:
        """Returns new bytes, of the arena if there is one. Raises `MemoryError` if it has no more."""
        if self.arena is None:
            return np.full(count, POISON, np.uint8)
        self.arena_used += count
        if self.arena_used > self.arena.size:
            raise MemoryError(f"an emulated arena of {self.arena.size} bytes is full")
        return self.arena[self.arena_used - count : self.arena_used]

    def free(self, address: int) -> None:
        """Frees memory. Raises `DeviceError` if a kernel wrote before or after it."""
        if self.own.fork is None:
            self.release(address)
        elif not self.own.fork.takes_back(address):
            self.freed_later.append(address)
        else:
            self.give("the end", (address,), lambda: self.release(address))

    def release(self, address: int) -> list[Access]:
        """Frees memory now; returns that as an access, which no other may meet."""
        self.freed.add(address)
        self.memory.pop(address).check("a kernel")
        return [Access(address, writes=True)]

    @noted
    def write(self, address: int, array: Array) -> None:
        """Copies an array into the memory."""
        given = array if self.own.fork is None else array.copy()
        self.give_copy("a copy of the host", address, pointer(given), given)

    @noted
    def read(self, address: int, array: Array) -> None:
        """Fills an array from the memory."""
        self.give_copy("a copy to the host", pointer(array), address, array)
        self.wait()

    @noted
    def copy(self, target: int, source: int, count: int) -> None:
        """Copies bytes within the memory."""
        self.give_copy("a copy", target, source, count)

    @noted
    def clear(self, address: int, count: int) -> None:
        """Sets bytes to zero."""
        zeros = np.zeros(count, np.uint8)
        self.give_copy("a copy of zeros", address, pointer(zeros), zeros)

    def give_copy(self, name: str, target: int, source: int, count: "int | Array") -> None:
        """Gives the stream a copy from one address to another. count: the bytes, or the array of the host
        that one of the addresses belongs to.
        """
        target, source = int(target), int(source)  # integers that keep nothing allocated
        copied = partial(move, target, source, count)  # which keeps the array
        if self.own.streams is None:
            copied()
            return

        def run() -> list[Access]:
            """Copies the bytes; returns the accesses of memory of the device."""
            copied()
            blocks = (self.block_of(source), False), (self.block_of(target), True)
            return [Access(block, writes) for block, writes in blocks if block is not None]

        self.give(name, (target, source), run)

    def wait(self) -> None:
        """Waits for all work: that of a fork is done, all other is when it is given."""
        if self.own.streams is not None:
            self.own.streams.run()

    # ---- kernels

    @noted
    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        """Runs a kernel to its end. Raises `DeviceError` if threads wait for each other for ever, for writes
        before or after one of the arrays that its words are the addresses of, and for arrays that were freed.
        """
        if self.own.streams is None:
            self.run(code, blocks, words)
        else:
            given = [*map(int, words)]  # integers that keep nothing allocated
            self.give(code.name, given, lambda: self.watched(code, blocks, given))

    def watched(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> list[Access]:
        """Runs a kernel to its end; returns its accesses to blocks of memory: it writes the blocks that it
        changes, and reads all other blocks whose addresses are among its words.
        """
        places = {block for word in words if (block := self.block_of(word)) is not None}
        before = {place: self.memory[place].contents() for place in places}
        self.run(code, blocks, words)
        return [Access(place, self.memory[place].contents() != before[place]) for place in places]

    def run(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        """Runs a kernel to its end, see `launch`."""
        if blocks and not self.freed.isdisjoint(words):
            freed = [place for place, word in enumerate(words) if word in self.freed and not self.has(word)]
            if freed:
                raise DeviceError(f"{code.name}: the array of argument {freed[0]} has been freed")
        self.refuse(code, blocks)
        several = max(1, AT_ONCE // code.threads) if code.exchange == "none" else blocks
        firsts = list(range(0, blocks, several))
        random.Random(self.seed).shuffle(firsts)
        for first in firsts:
            running = min(several, blocks - first)
            made("emulation.launch.Launch", code, blocks, words, first, running, self.arena).run(self.seed)
        self.check(words, code.name)

    def refuse(self, code: DeviceCode, blocks: int) -> None:
        """Raises `DeviceError` for a kernel that a GPU with the properties of the device does not launch."""
        facts = self.facts
        if code.shared > facts.shared:
            raise DeviceError(f"{code.name} needs {code.shared} bytes of shared memory, of {facts.shared}")
        if code.exchange == "cluster" and code.group > min(facts.cluster, facts.multiprocessors):
            raise NotResidentError(f"{code.name} needs clusters of {code.group}", facts.multiprocessors - 1)
        at_once = facts.multiprocessors * code.resident
        if code.exchange == "grid" and blocks > at_once:
            raise NotResidentError(f"{code.name} needs {blocks} blocks at once", at_once)

    def check(self, addresses: Sequence[int], kernel: str) -> None:
        """Raises `DeviceError` if a kernel wrote beyond the ends of an array; the error has its name.

        addresses: the kernel's arguments. Numbers, and addresses at which no array begins, are passed over.
        """
        for address in addresses:
            if (memory := self.memory.get(address)) is not None:
                memory.check(kernel)

    def has(self, address: int) -> bool:
        """Tells whether an address lies within memory that is in use."""
        return any(each.address <= address < each.address + each.count for each in self.memory.values())

    def repeated(self, calls: Sequence[DeviceWork], kept: object) -> RepeatedWork:
        """Prepares work that a run executes piece by piece. Pieces of several streams run in a random order
        that the marks (events) allow. kept: objects to keep alive with it.
        """

        def run(memory: Sequence[int]) -> None:
            """Does all the work. memory: the address of each memory. Raises `DeviceError` for side streams
            that the main stream does not wait for.
            """
            self.own.count += 1
            streams, marks = EmulatedStreams((self.seed, self.own.count)), dict[int, Clock]()
            for work in calls:
                if work.kind == "mark":
                    marks[work.count] = dict(streams.clock_of(work.stream))
                elif work.kind == "follow":
                    streams.follow(work.stream, marks[work.count])
                else:
                    streams.give(work.kind, work.stream, partial(self.do, work, work.words(memory)))
            streams.run()
            if any(streams.clock_of(MAIN).get(stream, 0) < count for stream, count in streams.done.items()):
                raise DeviceError("the main stream does not wait for all work of side streams")
            self.check(memory, "a kernel")

        return run

    def do(self, work: DeviceWork, words: Sequence[int]) -> list[Access]:
        """Does a piece of work that is given again; returns no accesses, as several values share a block."""
        if work.code is not None:
            self.launch(work.code, work.count, words)
        elif work.kind == "clear":
            self.clear(words[0], work.count)
        else:
            self.copy(words[0], words[1], work.count)
        return []


def move(target: int, source: int, count: "int | Array") -> None:
    """Copies bytes from one address to another; see `EmulatedDevice.give_copy`."""
    ctypes.memmove(target, source, count if isinstance(count, int) else count.nbytes)


class Guarded:
    """Memory between bytes that no kernel may change.

    address: of the first byte, a multiple of 256. count: the bytes.
    """

    def __init__(self, count: int, buffer: Array) -> None:
        """Takes `count` of the bytes of a buffer, which are `SURROUNDING` more, all of them poisoned."""
        self.count, self.buffer = count, buffer
        begin = pointer(self.buffer)
        self.address = -(-(begin + GUARD) // ALIGNMENT) * ALIGNMENT
        offset = self.address - begin
        self.guards = {
            -GUARD: self.buffer[offset - GUARD : offset],
            count: self.buffer[offset + count : offset + count + GUARD],
        }

    def contents(self) -> bytes:
        """Returns a copy of the bytes."""
        return ctypes.string_at(self.address, self.count)

    def check(self, kernel: str) -> None:
        """Raises `DeviceError`, with the name of a kernel, if bytes around the memory were changed."""
        for begin, guard in self.guards.items():
            if guard.tobytes() != UNTOUCHED:
                first = begin + int(np.flatnonzero(guard != POISON)[0])
                guard[...] = POISON  # so that it is said once
                raise DeviceError(
                    f"{kernel} wrote outside of an array of {self.count} bytes: at its byte {first}"
                )


UNTOUCHED = bytes([POISON]) * GUARD
