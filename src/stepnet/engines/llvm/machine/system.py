"""The system functions that machine code calls: semaphores, a clock, and a short sleep.

Machine code that is kept on disk is loaded by other processes, where these functions lie elsewhere. So it
calls them by name (`symbols`), or at addresses that a call's words hold.

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
REST = 50
"""Microseconds that a thread rests for, where the system can rest for so short a time."""


@dataclass(frozen=True)
class Semaphores:
    """How this system makes a semaphore, and the addresses of its functions `wait` and `post`.

    make: gives the handle of a new one, which may lie at the address that it is given. The functions are
    called as wait(handle, -1) and post(handle, 1, 0), also where they take less than that.
    """

    make: Callable[[int], int]
    wait: int
    post: int


@dataclass(frozen=True)
class Clock:
    """A clock that only goes forward: the address of the system's function, and its ticks per second.

    number: which of the system's clocks it is, the function's first argument; None where it has none. The
    function writes its answer at a pointer: seconds and nanoseconds if there is a number, else ticks.
    """

    address: int
    number: int | None
    per_second: int


def address_of(library: Any, name: str) -> int:
    """The address of a library's function."""
    address = ctypes.cast(library[name], ctypes.c_void_p).value
    assert address is not None
    return address


def system_library() -> Any:
    """The library that has the system's functions."""
    return ctypes.CDLL("kernel32" if sys.platform == "win32" else None)


@cache
def clock() -> Clock:
    """The clock of the system at hand."""
    library = system_library()
    if sys.platform == "win32":
        frequency = ctypes.c_int64()
        library["QueryPerformanceFrequency"](ctypes.byref(frequency))
        return Clock(address_of(library, "QueryPerformanceCounter"), None, frequency.value)
    monotonic = 6 if sys.platform == "darwin" else 1
    return Clock(address_of(library, "clock_gettime"), monotonic, 10**9)


@cache
def rest_address() -> int:
    """The address of the system's function that lets a thread rest."""
    return address_of(system_library(), "Sleep" if sys.platform == "win32" else "usleep")


@cache
def semaphores() -> Semaphores:
    """The semaphores of the system at hand."""
    library = system_library()
    if sys.platform == "win32":
        create = library["CreateSemaphoreW"]
        create.restype, create.argtypes = (
            ctypes.c_void_p,
            [ctypes.c_void_p] + [ctypes.c_long] * 2 + [ctypes.c_void_p],
        )

        def make(_: int) -> int:
            return int(create(None, 0, 2**31 - 1, None))

        names = ("WaitForSingleObject", "ReleaseSemaphore")
    elif sys.platform == "darwin":
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


@cache
def symbols() -> dict[str, int]:
    """The functions that machine code calls by name, and their addresses in this process."""
    windows = sys.platform == "win32"
    names = {"system_yield": "SwitchToThread" if windows else "sched_yield"}
    named = {name: address_of(system_library(), each) for name, each in names.items()}
    own = {"system_wait": semaphores().wait, "system_post": semaphores().post}
    return named | own | {"system_clock": clock().address}
