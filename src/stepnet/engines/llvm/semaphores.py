"""The system's semaphores: what a thread sleeps on in machine code, without Python's lock to come back to.

A thread that wakes inside Python first waits for the interpreter's lock, which the thread that woke it holds
between its calls: up to five milliseconds. One that wakes inside machine code has its work at once.
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

BYTES = 64
"""How many bytes of a caller's memory a semaphore may lie in."""


@dataclass(frozen=True)
class Semaphores:
    """How this system makes a semaphore, and the addresses of its functions `wait` and `post`.

    make: gives the handle of a new one, which may lie at the address that it is told. The functions are
    called as wait(handle, -1) and post(handle, 1, 0), also where they take less than that.
    """

    make: Callable[[int], int]
    wait: int
    post: int


def address_of(library: Any, name: str) -> int:
    """The address of a library's function."""
    address = ctypes.cast(library[name], ctypes.c_void_p).value
    assert address is not None
    return address


@cache
def semaphores() -> Semaphores:
    """Those of the system at hand."""
    if sys.platform == "win32":
        library = ctypes.CDLL("kernel32")
        create = library["CreateSemaphoreW"]
        create.restype, create.argtypes = (
            ctypes.c_void_p,
            [ctypes.c_void_p] + [ctypes.c_long] * 2 + [ctypes.c_void_p],
        )

        def make(_: int) -> int:
            return int(create(None, 0, 2**31 - 1, None))

        return Semaphores(
            make, address_of(library, "WaitForSingleObject"), address_of(library, "ReleaseSemaphore")
        )
    library = ctypes.CDLL(None)
    if sys.platform == "darwin":
        create = library["dispatch_semaphore_create"]
        create.restype, create.argtypes = ctypes.c_void_p, [ctypes.c_long]

        def make(_: int) -> int:
            return int(create(0))

        names = ("dispatch_semaphore_wait", "dispatch_semaphore_signal")
    else:
        create = library["sem_init"]
        create.restype, create.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]

        def make(address: int) -> int:
            if create(address, 0, 0):
                raise OSError("the system has no more semaphores")
            return address

        names = ("sem_wait", "sem_post")
    return Semaphores(make, *(address_of(library, name) for name in names))
