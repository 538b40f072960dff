"""A launch in emulation (see `emulator.py`): the fibers of some blocks, and the memory that these share."""

import ctypes
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from stepnet.compiler.targets.cpu.machine.memory import POOLED, Pool, pointer
from stepnet.compiler.targets.cuda.device import LANES, DeviceCode
from stepnet.compiler.targets.cuda.emulation.code import device_functions, emulated_kernel
from stepnet.compiler.targets.cuda.emulation.emulator import GUARD, POISON
from stepnet.compiler.targets.cuda.emulation.fibers import (
    DEADLOCK,
    DONE,
    FIELDS,
    SLOT,
    STATE,
    WAITS,
    record_of,
)
from stepnet.compiler.targets.cuda.emulation.functions import BUFFER
from stepnet.compiler.targets.cuda.emulation.views import Views
from stepnet.errors import DeviceError

ROUNDABLE = 0xFE
"""Every other byte of shared memory: also a NaN that rounding to tf32, an addition, does not make zero."""
STACKS = Pool(POOLED, worth_huge=2**62)
"""The pool of stacks, which are used again: of new ones each page takes time."""


class Launch:
    """Some blocks of a launch, made and ready to run: their fibers, and the memory that these share."""

    def __init__(
        self,
        code: DeviceCode,
        blocks: int,
        words: Sequence[int],
        first: int,
        running: int,
        arena: np.ndarray | None = None,
    ) -> None:
        """Makes the fibers of `running` blocks of a launch of `blocks`, beginning with block `first`.

        arena: main memory, if blocks have views of it.
        """
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
            "barriers": np.zeros(2 * (2 * running + warps) + running, np.int32),
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
        self.views = None if arena is None else Views(arena, running)
        if self.views is not None:
            self.arrays |= {"arena": self.views.arena, "views": self.views.bytes}
            self.fields["arena_bytes"] = self.views.arena.size

    def run(self, seed: int) -> None:
        """Runs all fibers to their end. Raises `DeviceError` if they wait for each other for ever, and for
        writes beyond the end of shared memory.
        """
        kernel = emulated_kernel(self.code, self.views is not None)
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
        if self.views is not None:
            self.views.publish()
        if state[FIELDS["misaligned"][0] // state.itemsize]:
            raise DeviceError(self.misaligned())
        beyond = self.shared[:, self.code.shared :]
        if not (beyond == POISON).all():
            block, byte = np.argwhere(beyond != POISON)[0]
            raise DeviceError(
                f"{self.code.name} wrote outside of the {self.code.shared} bytes of shared memory of block "
                f"{self.first + block}: at byte {self.code.shared + byte}"
            )

    def misaligned(self) -> str:
        """Describes that a thread accessed several bytes at an address that is not a multiple of them."""
        words = enumerate(map(int, self.arrays["words"]))
        odd = [str(place) for place, word in words if word % WIDEST and word > LEAST_ADDRESS]
        arrays = f"; argument {' and '.join(odd)} is not at a multiple of 16 bytes" if odd else ""
        return (
            f"{self.code.name} used an address that is not aligned to the 8 or 16 bytes it accesses{arrays}"
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


WIDEST, LEAST_ADDRESS = 16, 2**32
"""The bytes of the widest access, and a number that no address of an array is below."""
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
