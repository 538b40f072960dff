"""Memory for machine code: zeroed, page-aligned, and in huge pages if it is large.

Parameters are read sequentially at every step. With 4 KB pages, the processor has a TLB lookup at the end of
each page, and its prefetcher starts anew. With 2 MB pages it does not.

The first access to a page is a page fault, and with 4 KB pages faults may take longer than the work on their
contents. So large results are in huge pages too, and workspaces are reused from call to call (`Pool`).

The memory is private to the process: after a fork, parent and child each have their own.
"""

import ctypes
import errno
import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from math import prod
from typing import Any, cast

import numpy as np

Array = np.ndarray

PAGE = 4096
HUGE = 2 * 1024 * 1024
WORTH_HUGE = 128 * 1024
MOSTLY_FULL = 3 * 2**19
"""The size in bytes from which an array has huge pages of its own: it fills at least three quarters of them.
"""
LINE = 64
APART = 9 * LINE
POOLED = 256 * 2**20
Shape = tuple[tuple[int, ...], Any]
"""The shape of an array, and its dtype."""


def aligned(size: int) -> Array:
    """`size` zeroed bytes that begin at a page; the array keeps the memory."""
    if size < WORTH_HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = np.zeros(size + PAGE, np.uint8)
        start = -memory.ctypes.data % PAGE
        return memory[start : start + size]
    pages = mapped(-(-size // HUGE) * HUGE + HUGE)
    with suppress(OSError):  # a hint, which a system without huge pages does not take
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % HUGE
    return memory[start : start + size]


def mapped(size: int) -> mmap.mmap:
    """So many zeroed bytes of the system's pages; raises `MemoryError` where it has none, as NumPy does."""
    try:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"the system has no memory for {size} bytes more") from None


class Held:
    """The owner of memory that arrays share: it goes when the last of them does.

    An array cannot be the owner: a view of a view refers to the first array of all.
    """

    def __init__(self, memory: Array) -> None:
        self.memory, self.__array_interface__ = memory, memory.__array_interface__


class Together:
    """Arrays of these shapes and dtypes in one piece of memory, which is kept as long as one of them is.

    They are some cache lines apart: otherwise the same row of each would map to the same cache set.
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        ends = accumulate(-(-bytes_of(shape) // LINE) * LINE + APART for shape in shapes)
        *starts, self.bytes = [0, *ends]
        self.parts = [
            (sizes, np.dtype(dtype), start) for (sizes, dtype), start in zip(shapes, starts, strict=True)
        ]

    def arrays(self, memory: Array) -> list[Array]:
        """The arrays in memory of `bytes` at least."""
        return [np.ndarray(shape, dtype, memory, start) for shape, dtype, start in self.parts]

    def new(self) -> list[Array]:
        """The arrays, uninitialised. Large memory is freed with the last of them."""
        if self.bytes < MOSTLY_FULL:
            return self.arrays(np.empty(self.bytes, np.uint8))
        memory = POOL.take(self.bytes, zeroed=False)
        held = Held(memory)
        weakref.finalize(held, POOL.give_back, memory).atexit = False
        return self.arrays(np.asarray(held))


class Rows:
    """Allocates arrays of a variable number of rows of one shape and dtype."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.bytes = bytes_of((shape, dtype))

    def new(self, count: int) -> Array:
        """A new array of so many rows with any numbers: in huge pages where it is large."""
        shape = (count, *self.shape)
        if count * self.bytes < MOSTLY_FULL:
            return np.empty(shape, self.dtype)
        return Together([(shape, self.dtype)]).new()[0]


def bytes_of(shape: Shape) -> int:
    """The bytes of an array."""
    sizes, dtype = shape
    return prod(sizes) * np.dtype(dtype).itemsize


class Pool:
    """A pool of unused memory, by size.

    most: the largest number of bytes kept. If more are returned, the memory kept so far is freed.

    >>> pool = Pool(2**20)
    >>> first = pool.take(1000)
    >>> pool.give_back(first)
    >>> pool.take(1001) is first
    True
    """

    # Each change of a list or dictionary is atomic, so no lock is needed.

    def __init__(self, most: int) -> None:
        self.most = most
        self.free: dict[int, list[Array]] = {}

    def take(self, size: int, zeroed: bool = True) -> Array:
        """At least `size` bytes; zeros with `zeroed`, else uninitialised."""
        size = size_class(size)
        try:
            memory = self.free.get(size, []).pop()
        except IndexError:
            return aligned(size)
        if zeroed:
            memory[...] = 0
        return memory

    def give_back(self, *memory: Array) -> None:
        """Keeps memory that nobody uses any more."""
        for array in memory:
            if array.nbytes + sum(size * len(kept) for size, kept in tuple(self.free.items())) > self.most:
                self.free = {}
            if array.nbytes <= self.most:
                self.free.setdefault(array.nbytes, []).append(array)


def size_class(size: int) -> int:
    """A number of bytes rounded up, so that a little more or less is the same: by an eighth at most.

    >>> size_class(1000), size_class(2**20 + 1)
    (4096, 1179648)
    """
    step = max(PAGE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


POOL = Pool(POOLED)


FROM_BUFFER: Any = ctypes.c_char.from_buffer


def pointer(array: Array | None) -> int:
    """Where an array's numbers lie; 0 for none."""
    if array is None:
        return 0
    try:  # which takes an eighth of the time of what is below
        return ctypes.addressof(FROM_BUFFER(array))
    except (TypeError, ValueError):  # it may not be written to, or has no numbers
        return array.__array_interface__["data"][0]


def view(array: Array) -> memoryview:
    """An array of which single numbers are read and written in half the time."""
    return memoryview(cast("Any", array))
