"""Pages of memory from the system: zeroed, of this process alone, in huge pages if they are many, and made
executable where they hold code.
"""

import ctypes
import errno
import mmap
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray

PAGE = 4096
HUGE = 2 * 1024 * 1024
WORTH_HUGE = 128 * 1024
"""The size in bytes from which `aligned` asks for huge pages."""
PRIVATE: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)
"""The arguments that ask the system for memory of this process alone. On Windows there are none: memory
without a file and without a name is private.
"""
NO_MEMORY = (8, 14, 1455)
"""The errors of Windows for memory that it does not have: ERROR_NOT_ENOUGH_MEMORY, ERROR_OUTOFMEMORY and
ERROR_COMMITMENT_LIMIT.
"""


def aligned(size: int, worth_huge: int = WORTH_HUGE) -> Array:
    """Allocates an array of `size` zero bytes, aligned to a page, and in huge pages if it is large. The array
    owns the memory.

    worth_huge: the size in bytes from which huge pages are asked for.
    """
    if size < worth_huge or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = np.zeros(size + PAGE, np.uint8)
        start = -memory.ctypes.data % PAGE
        return memory[start : start + size]
    pages = mapped(-(-size // HUGE) * HUGE + HUGE)
    with suppress(OSError):  # only a hint: systems without huge pages refuse it
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % HUGE
    return memory[start : start + size]


def mapped(size: int) -> mmap.mmap:
    """Requests `size` zero bytes in new pages from the system; raises `MemoryError` if there are none."""
    try:
        return mmap.mmap(-1, size, **PRIVATE)
    except OSError as error:
        if error.errno != errno.ENOMEM and getattr(error, "winerror", None) not in NO_MEMORY:
            raise
        raise MemoryError(f"the system cannot allocate {size} more bytes") from None


@cache
def libc() -> Any:
    """Returns, through ctypes, the C library and all libraries that this process has loaded globally."""
    return ctypes.CDLL(None, use_errno=True)


def protect(base: int, size: int) -> None:
    """Makes memory executable and read-only, before its code is called; raises `OSError` if the system does
    not allow it. base, size: the address of its first page, and its number of bytes.
    """
    call = libc()["mprotect"]
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if call(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "the system does not allow generated code to be made executable")


def library_address(name: str) -> int:
    """Returns the address of a function of the C library, which generated code calls by its name."""
    address = ctypes.cast(libc()[name], ctypes.c_void_p).value
    assert address is not None
    return address


BUFFER: Any = ctypes.c_char.from_buffer
ADDRESS: Any = ctypes.addressof


def pointer(array: Array | None) -> int:
    """Returns the address of an array's first element, as machine code takes it; 0 for None."""
    if array is None:
        return 0
    try:  # takes an eighth of the time of the general way below
        return ADDRESS(BUFFER(array))
    except (TypeError, ValueError):  # it is read-only, or empty
        return array.__array_interface__["data"][0]
