"""What machine code asks of the system: semaphores to sleep on, a clock, and a short rest.

A thread that wakes inside Python first waits for the interpreter's lock, which the thread that woke it holds
between its calls: up to five milliseconds. One that wakes inside machine code has its work at once.
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import ir

from stepnet.engines.llvm.code import I64, Code

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


def write_ticks(code: Code, address: ir.Value, scratch: ir.Value) -> ir.Value:
    """Code that reads the clock whose function is at an address; scratch: 16 bytes for its answer."""
    number = clock().number
    if number is None:
        code.call_at(address, ir.VoidType(), [scratch])
        return code.read(I64, scratch, 8)
    code.call_at(address, ir.VoidType(), [code.number(number), scratch])
    return code.add(
        code.mul(code.read(I64, scratch, 8), code.number(10**9)), code.read(I64, code.at(scratch, 8), 8)
    )


@cache
def rest_address() -> int:
    """The address of the system's function that lets a thread rest."""
    return address_of(system_library(), "Sleep" if sys.platform == "win32" else "usleep")


def write_rest(code: Code, address: ir.Value) -> None:
    """Code that rests by the function at an address."""
    code.call_at(address, ir.VoidType(), [code.number(0 if sys.platform == "win32" else REST)])


def write_yield(code: Code) -> None:
    """Code that lets other threads have the processor, if any wait for it."""
    name = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
    code.call_at(code.number(address_of(system_library(), name)), ir.IntType(32), [])


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
