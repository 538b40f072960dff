"""Measurement of how fast a processor reads memory that no near cache holds, and of how long its cycles are.

The caches that a system reports may be shared with other machines, of which a virtual one has only a part. So
buffers of growing size are read again and again: the last cache holds as much as is read at its rate.
"""

import ctypes
from collections.abc import Mapping

import numpy as np

from stepnet.compiler.native.system import thread_clock
from stepnet.compiler.targets.cpu.machine.memory import aligned, pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.machine.stored_code import machine_code
from stepnet.compiler.values.records import dataclass

WORDS = ("buffer", "bytes", "sum")
"""The argument words of the function, 64 bits each. sum: a result that nobody reads."""
ABREAST = 8
"""The sums that are added to in turns, so that additions do not wait for each other."""
LEAST, MOST = 2**23, 2**28
"""The sizes of the smallest and the largest buffer, in bytes: beyond caches of the second level, and beyond
most of the third.
"""
HELD = 0.85
"""A buffer read at this fraction of the best rate lies in a cache, which is taken as twice as large."""
PIECE, TURNS = 2**21, 7
"""Buffers are read in pieces of so many bytes, so often."""
CHAIN, CHAINS = 2**18, 20
"""The multiply-adds of a chain, and how often it is computed: some 400 microseconds each, as a clock that is
faster for a moment says nothing of calls.
"""


@dataclass(frozen=True)
class FarReads:
    """Rates at which memory is read that no near cache holds, in bytes per second.

    cache: the bytes of the last cache that are there for this machine.
    near, far: the rates from this cache, and from memory.
    """

    cache: int
    near: float
    far: float

    @classmethod
    def of(cls, rates: Mapping[int, float], cache: int) -> "FarReads":
        """Finds the rates among those of buffers, by their size. cache: the bytes of the last cache as the
        system says, which are never exceeded.
        """
        near, far = max(rates.values()), min(rates.values())
        held = [size for size, rate in rates.items() if rate >= HELD * near]
        return cls(min(cache, 2 * max(held)), near, far)


def far_reads(processor: Processor, cache: int) -> FarReads:
    """Measures the rates of reading from the last cache and from memory.

    processor: the instruction set of the machine code. cache: the size of the cache that the system reports.
    """
    most = min(MOST, max(2 * LEAST, 4 * cache))
    buffer, rates = aligned(most), dict[int, float]()
    buffer[:] = 1  # memory that was never written is one page of zeros
    size = LEAST
    while size <= most:
        rates[size] = reading_rate(processor, pointer(buffer), size)
        size *= 2
    return FarReads.of(rates, cache)


def cycle_seconds(processor: Processor) -> float:
    """Measures the seconds of a cycle: a quarter of a multiply-add that waits for the one before (half of the
    two operations, where there is none). The least time of some chains counts.
    """
    function = machine_code("products.reads", processor).function("waits", ctypes.c_int64)
    words, now = np.array([0, CHAIN, 0], np.int64), thread_clock()
    least = float("inf")
    for _ in range(CHAINS):
        begun = now()
        function.call(pointer(words))
        least = min(least, now() - begun)
    return least / CHAIN / (4 if processor.has_fused else 8)


def reading_rate(processor: Processor, address: int, size: int) -> float:
    """Measures the bytes per second of reading the first `size` bytes of a buffer again and again. Pieces are
    timed one by one, and the median of each counts, so that what other processes do meanwhile does not.
    """
    function = machine_code("products.reads", processor).function("reads", ctypes.c_int64)
    words = np.array([0, PIECE, 0], np.int64)
    now, seconds = thread_clock(), np.zeros((TURNS, size // PIECE))
    for turn, number in np.ndindex(*seconds.shape):
        words[0] = address + number * PIECE
        begun = now()
        function.call(pointer(words))
        seconds[turn, number] = now() - begun
    return size / float(np.median(seconds, axis=0).sum())
