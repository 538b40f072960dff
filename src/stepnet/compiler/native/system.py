"""The system functions that machine code calls: semaphores, a clock, and a short sleep.

Machine code stored on disk is loaded by other processes, in which these functions have other addresses. So it
calls them by name (`symbols`), or through addresses in the words of a call.

Threads sleep inside machine code, not in Python: a thread that wakes in Python must first acquire the
interpreter's lock, which the thread that woke it may hold for up to five milliseconds.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from stepnet.compiler.values.records import dataclass

BYTES = 64
"""The bytes that a caller provides for a semaphore."""
FINE = 1e-6
"""The resolution in seconds from which a clock of processor time is used: that of Linux has nanoseconds."""
REST = 50
"""The duration of a short sleep in microseconds; Windows, which cannot sleep so briefly, sleeps for 0."""


C_LIBRARY = {
    "ucrtbase": ("ceil", "ceilf", "floor", "floorf", "fmod", "fmodf", "rint", "rintf", "qsort"),
    "ntdll": ("__chkstk", "memcpy", "memset"),
}
"""The functions that generated code calls, most where the processor has no instruction, by the library of
Windows that has them. `__chkstk` makes room for a function's variables if they take more than a page. On
other systems they are found among the libraries that the process has loaded.
"""


@dataclass(frozen=True)
class Semaphores:
    """Semaphores of the system.

    make: creates a semaphore and returns its handle. Its argument is the address of `BYTES` bytes, in which
        the semaphore may be created.
    wait, post: the addresses of the functions. They are called as wait(handle, -1) and post(handle, 1, 0) on
        every system; where they have fewer parameters, the other arguments are ignored.
    """

    make: Callable[[int], int]
    wait: int
    post: int


@dataclass(frozen=True)
class Clock:
    """Monotonic clock of the system.

    address: the address of the function that reads it.
    number: the identifier of the clock, the function's first argument; None if it has no such argument.
    per_second: the ticks per second.

    The function writes to the address in its last argument: seconds and nanoseconds if the clock has a
    number, else ticks.
    """

    address: int
    number: int | None
    per_second: int


def address_of(library: Any, name: str) -> int:
    """Returns the address of the function `name` of a library that ctypes has loaded."""
    address = ctypes.cast(library[name], ctypes.c_void_p).value
    assert address is not None
    return address


def system_library() -> Any:
    """Returns, through ctypes, the library of system functions: kernel32 on Windows, else the C library."""
    return ctypes.CDLL("kernel32" if sys.platform == "win32" else None)


@cache
def clock() -> Clock:
    """Returns the monotonic clock of this system: how machine code reads it."""
    library = system_library()
    if sys.platform == "win32":
        frequency = ctypes.c_int64()
        library["QueryPerformanceFrequency"](ctypes.byref(frequency))
        return Clock(address_of(library, "QueryPerformanceCounter"), None, frequency.value)
    monotonic = 6 if sys.platform == "darwin" else 1
    return Clock(address_of(library, "clock_gettime"), monotonic, 10**9)


def thread_clock() -> Callable[[], float]:
    """Returns the clock of the processor time of the thread that reads it, in seconds, which stands still
    while other processes run; the clock of all time where the system counts the former in milliseconds.
    """
    is_fine = time.get_clock_info("thread_time").resolution < FINE
    return time.thread_time if is_fine else time.perf_counter


OF_PYTHON = (
    *("PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_Clear"),
    *("PyLong_AsVoidPtr", "PyLong_FromLongLong", "PyList_Append", "Py_IncRef", "Py_DecRef"),
)
"""The functions of Python's interface in C that machine code calls."""


@cache
def rest_address() -> int:
    """Returns the address of the system's function for a short sleep, which waiting threads call."""
    return address_of(system_library(), "Sleep" if sys.platform == "win32" else "usleep")


@cache
def semaphores() -> Semaphores:
    """Returns the functions of this system's semaphores, on which idle threads sleep in machine code. A new
    semaphore has the count 0, so the first wait sleeps until a post.
    """
    library = system_library()
    if sys.platform == "win32":
        create = library["CreateSemaphoreW"]
        create.restype, create.argtypes = (
            ctypes.c_void_p,
            [ctypes.c_void_p] + [ctypes.c_long] * 2 + [ctypes.c_void_p],
        )

        def make(_: int) -> int:
            """Creates a semaphore of Windows; returns its handle. Raises `OSError` if that fails."""
            handle = create(None, 0, 2**31 - 1, None)
            if not handle:
                raise OSError("the system cannot create a semaphore")
            return handle

        names = ("WaitForSingleObject", "ReleaseSemaphore")
    elif sys.platform == "darwin":
        create = library["dispatch_semaphore_create"]
        create.restype, create.argtypes = ctypes.c_void_p, [ctypes.c_long]

        def make(_: int) -> int:
            """Creates a semaphore of macOS; returns its handle. Raises `OSError` if that fails."""
            handle = create(0)
            if not handle:
                raise OSError("the system cannot create a semaphore")
            return handle

        names = ("dispatch_semaphore_wait", "dispatch_semaphore_signal")
    else:
        create = library["sem_init"]
        create.restype, create.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]

        def make(address: int) -> int:
            """Creates a POSIX semaphore in memory at an address; returns the address, or raises `OSError`."""
            if create(address, 0, 0):
                raise OSError("the system cannot create a semaphore")
            return address

        names = ("sem_wait", "sem_post")
    return Semaphores(make, *(address_of(library, name) for name in names))


@cache
def symbols() -> dict[str, int]:
    """Returns the addresses of functions of the system and of Python that machine code calls by name."""
    system_yield = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
    others = dict[str, int]()
    if sys.platform == "win32":
        for library, names in C_LIBRARY.items():
            others.update((name, address_of(ctypes.CDLL(library), name)) for name in names)
    return {
        **others,
        **{name: address_of(ctypes.pythonapi, name) for name in OF_PYTHON},
        "system_yield": address_of(system_library(), system_yield),
        "system_wait": semaphores().wait,
        "system_post": semaphores().post,
        "system_clock": clock().address,
    }
