"""Memory for machine code: zeroed, beginning at a page, in huge pages where it is large.

Parameters are read from front to back at every step. In pages of 4 KB a processor loses its way at each
page's end: it looks the next one up and begins to prefetch anew. In pages of 2 MB it does not.

The memory is private to the process: after a fork, parent and child each have their own.
"""

import ctypes
import mmap
from typing import Any, cast

import numpy as np

Array = np.ndarray

PAGE = 4096
HUGE = 2 * 1024 * 1024
WORTH_HUGE = 128 * 1024


def aligned(size: int) -> Array:
    """`size` zeroed bytes that begin at a page; the array keeps the memory."""
    if size < WORTH_HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = np.zeros(size + PAGE, np.uint8)
        start = -memory.ctypes.data % PAGE
        return memory[start : start + size]
    pages = mmap.mmap(-1, -(-size // HUGE) * HUGE + HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % HUGE
    return memory[start : start + size]


def pointer(array: Array | None) -> int:
    """Where an array's numbers lie; 0 for none."""
    if array is None:
        return 0
    try:  # which takes an eighth of the time of what is below
        return ctypes.addressof(ctypes.c_char.from_buffer(cast("Any", array)))
    except (TypeError, ValueError):  # it may not be written to, or has no numbers
        return array.__array_interface__["data"][0]


def view(array: Array) -> memoryview:
    """An array of which single numbers are read and written in half the time."""
    return memoryview(cast("Any", array))
