"""An emulated device: the threads of a kernel as fibers of one thread of the system (`fibers.py`).

Fibers take turns in a random order and at random speeds, and one that waits gives way. So barriers, counters
and the collective product are emulated exactly. Memory is poisoned with NaN, writes beyond the ends of arrays
are noticed, and so are threads that wait for each other. What the emulation cannot find is a missing order of
memory: every write is visible at once.
"""

import ctypes
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from stepnet.compiler.targets.cpu.machine.memory import POOLED, Pool, pointer
from stepnet.compiler.targets.cuda.device import CPU, LANES, Array, DeviceCode, DeviceFacts
from stepnet.compiler.targets.cuda.emulated_code import device_functions, emulated_kernel
from stepnet.compiler.targets.cuda.emulated_functions import BUFFER
from stepnet.compiler.targets.cuda.fibers import (
    DEADLOCK,
    DONE,
    FIELDS,
    SLOT,
    STATE,
    WAITS,
    record_of,
)
from stepnet.errors import DeviceError

ALIGNMENT, GUARD = 256, 256
"""The bytes to which arrays are aligned, and those before and after each that no kernel may write to."""
POISON = 0xFF
"""The byte that memory is filled with: NaN as float32 and as float64, -1 as an integer."""
ROUNDABLE = 0xFE
"""Every other byte of shared memory: also a NaN that rounding to tf32, an addition, does not make zero."""
AT_ONCE = 2048
"""The threads of blocks that do not work together, of which so many run at once."""
STACKS = Pool(POOLED, worth_huge=2**62)
"""The pool of stacks, which are used again: of new ones each page takes time."""
H100 = DeviceFacts("NVIDIA H100, emulated", (9, 0), 132, 232448, 65536, 16)


class EmulatedDevice:
    """A device in emulation, whose memory is that of this process.

    seed: of the order of threads; with 0 all warps are equally fast.
    """

    def __init__(self, seed: int = 0, facts: DeviceFacts = H100) -> None:
        """Makes a device without memory in use. facts: its properties, by default those of an H100."""
        self.seed, self.facts = seed, facts
        self.memory = dict[int, Guarded]()
        self.freed = set[int]()

    @property
    def place(self) -> tuple[int, int]:
        """The type of its memory as DLPack has it, that of the process, and its number."""
        return CPU, 0

    def allocate(self, count: int) -> int:
        """Allocates memory, which is poisoned: NaN as float32 and float64."""
        made = Guarded(count)
        self.memory[made.address] = made
        self.freed.discard(made.address)
        return made.address

    def free(self, address: int) -> None:
        """Frees memory. Raises `DeviceError` if a kernel wrote before or after it."""
        self.freed.add(address)
        self.memory.pop(address).check("a kernel")

    def write(self, address: int, array: Array) -> None:
        """Copies an array into the memory."""
        ctypes.memmove(address, pointer(array), array.nbytes)

    def read(self, address: int, array: Array) -> None:
        """Fills an array from the memory."""
        ctypes.memmove(pointer(array), address, array.nbytes)

    def copy(self, target: int, source: int, count: int) -> None:
        """Copies bytes within the memory."""
        ctypes.memmove(target, source, count)

    def clear(self, address: int, count: int) -> None:
        """Sets bytes to zero."""
        ctypes.memset(address, 0, count)

    def launch(self, code: DeviceCode, blocks: int, words: Sequence[int]) -> None:
        """Runs a kernel to its end. Raises `DeviceError` if threads wait for each other for ever, for writes
        before or after one of the arrays that its words are the addresses of, and for arrays that were freed.
        """
        if blocks and not self.freed.isdisjoint(words):
            freed = [place for place, word in enumerate(words) if word in self.freed]
            raise DeviceError(f"{code.name}: the array of argument {freed[0]} has been freed")
        several = max(1, AT_ONCE // code.threads) if code.exchange == "none" else blocks
        firsts = list(range(0, blocks, several))
        random.Random(self.seed).shuffle(firsts)
        for first in firsts:
            Launch(code, blocks, words, first, min(several, blocks - first)).run(self.seed)
        for word in words:
            if (memory := self.memory.get(word)) is not None:
                memory.check(code.name)

    def wait(self) -> None:
        """Returns: a launch has done all its work."""

    def on_stream(self, handle: int) -> AbstractContextManager[None]:
        """Context in which work is given to a stream: a launch is done when it returns, on all streams."""
        return nullcontext()


class Guarded:
    """Memory with bytes before and after it that no kernel may change.

    address: of the first byte, a multiple of 256. count: the bytes.
    """

    def __init__(self, count: int) -> None:
        """Allocates `count` bytes, all of them poisoned."""
        self.count, self.buffer = count, np.full(count + 2 * GUARD + ALIGNMENT, POISON, np.uint8)
        begin = pointer(self.buffer)
        self.address = -(-(begin + GUARD) // ALIGNMENT) * ALIGNMENT
        offset = self.address - begin
        self.guards = {
            -GUARD: self.buffer[offset - GUARD : offset],
            count: self.buffer[offset + count : offset + count + GUARD],
        }

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


class Launch:
    """Some blocks of a launch, made and ready to run: their fibers, and the memory that these share."""

    def __init__(self, code: DeviceCode, blocks: int, words: Sequence[int], first: int, running: int) -> None:
        """Takes the blocks of the launch, the first of those that run, and how many run."""
        assert len(words) == code.words, f"{code.name}: {len(words)} words of {code.words}"
        self.code, self.first = code, first
        self.count = running * code.threads
        warps = self.count // LANES
        apart = -(-code.shared // GUARD) * GUARD + GUARD
        self.shared = np.full((running, apart), POISON, np.uint8)
        self.shared[:, : code.shared : 2] = ROUNDABLE
        self.arrays = {
            "words": np.array(words, np.int64),
            "shared": self.shared,
            "barriers": np.zeros(2 * (2 * running + warps), np.int32),
            "meetings": np.full(2 * BUFFER * warps, POISON, np.uint8),
            "order": np.zeros(self.count, np.int32),
        }
        self.fields = {
            "threads": code.threads,
            "blocks": blocks,
            "group": code.group,
            "first": first,
            "running": running,
            "count": self.count,
            "apart": apart,
        }

    def run(self, seed: int) -> None:
        """Runs all fibers to their end. Raises `DeviceError` if they wait for each other for ever, and for
        writes beyond the end of shared memory.
        """
        kernel = emulated_kernel(self.code)
        stacks = STACKS.take((self.count + 1) * SLOT, zeroed=False)
        begin = -(-pointer(stacks) // SLOT) * SLOT
        given = {
            **self.fields,
            **{name: pointer(array) for name, array in self.arrays.items()},
            "start": kernel.addresses["run"],
            "stacks": begin,
            "random": random.Random(f"{seed} {self.first}").getrandbits(63) | 1,
            "unequal": int(seed != 0),
        }
        run_all = device_functions().function("run_all", ctypes.c_int32).call
        state = np.array([given.get(name, 0) for name, _ in STATE], np.int64)
        result = run_all(pointer(state))
        if result == DEADLOCK:
            raise DeviceError(self.deadlock(begin))
        STACKS.give_back(stacks)
        beyond = self.shared[:, self.code.shared :]
        if not (beyond == POISON).all():
            block, byte = np.argwhere(beyond != POISON)[0]
            raise DeviceError(
                f"{self.code.name} wrote outside of the {self.code.shared} bytes of shared memory of block "
                f"{self.first + block}: at byte {self.code.shared + byte}"
            )

    def deadlock(self, begin: int) -> str:
        """Describes which threads wait, and where. begin: the address of the first slot of the stacks."""
        offset = {name: FIELDS[f"fiber {name}"][0] for name in ("waits_for", "thread", "block")}
        waiting = Counter[tuple[int, int]]()
        threads = dict[tuple[int, int], list[int]]()
        for fiber in range(self.count):
            record = record_of(begin + fiber * SLOT)
            why, thread, block = (
                ctypes.c_int32.from_address(record + place).value for place in offset.values()
            )
            if why != DONE:
                waiting[block, why] += 1
                threads.setdefault((block, why), []).append(thread)
        listed = [
            f"{short(numbers)} of block {block} {WAITS.get(why, 'nowhere')}"
            for (block, why), numbers in sorted(threads.items())
        ]
        more = [f"and {len(listed) - SHOWN} more groups"] if len(listed) > SHOWN else []
        return (
            f"{self.code.name}: deadlock: {waiting.total()} of {self.count} threads wait for each other: "
            + "; ".join([*listed[:SHOWN], *more])
        )


SHOWN = 4
"""The most groups of threads that a message lists."""


def short(numbers: Sequence[int]) -> str:
    """Describes which threads a list of numbers names, by the first and the last of them.

    >>> short([3]), short([0, 1, 2, 3]), short([0, 2, 5])
    ('thread 3', 'threads 0 to 3', '3 threads from 0 to 5')
    """
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"thread {first}"
    if len(numbers) == last - first + 1:
        return f"threads {first} to {last}"
    return f"{len(numbers)} threads from {first} to {last}"
