"""Memory for machine code: zeroed, beginning at a page, in huge pages where it is large.

Parameters are read from front to back at every step. In pages of 4 KB a processor loses its way at each
page's end: it looks the next one up and begins to prefetch anew. In pages of 2 MB it does not.

The memory is private to the process: after a fork, parent and child each have their own.
"""

import mmap

import numpy as np

PAGE = 4096
HUGE = 2 * 1024 * 1024
WORTH_HUGE = 128 * 1024


def aligned(size: int) -> np.ndarray:
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
