"""A process as on a Mac with an Intel processor, as far as Linux can be one: `become()`, before stepnet is
imported.

Machine code is generated in the format of macOS, kept in the cache on disk, and loaded by LLVM. Threads sleep
on semaphores of the names that macOS has, which here are those of Linux.
"""

import ctypes
import sys
from typing import Any

TRIPLE = "x86_64-apple-macosx"
KEPT: list[Any] = []


class SystemLibrary:
    """Stands for the C library of macOS."""

    def __init__(self, libc: Any) -> None:
        self.libc = libc

        def create(count: int) -> int:
            allocate = libc.malloc
            allocate.restype = ctypes.c_void_p
            where = allocate(64)
            libc.sem_init(ctypes.c_void_p(where), 0, count)
            return where

        made = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_long)(create)
        self.own = {
            "dispatch_semaphore_create": made,
            "dispatch_semaphore_wait": libc["sem_wait"],
            "dispatch_semaphore_signal": libc["sem_post"],
        }

    def __getitem__(self, name: str) -> Any:
        if name.startswith("sem_"):
            raise AttributeError(name)  # macOS has no semaphores of these names that work
        return self.own.get(name) or self.libc[name]


def become() -> None:
    """Makes this process as one on macOS, in which stepnet is imported."""
    import concurrent.futures  # noqa: F401 - what asks for the system when it is imported
    import subprocess  # noqa: F401
    import tempfile  # noqa: F401

    import llvmlite.binding as llvm
    import ml_dtypes  # noqa: F401
    import numpy.testing  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import rich.console  # noqa: F401
    from llvmlite.binding import ffi

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.Target.from_default_triple = lambda: llvm.Target.from_triple(TRIPLE)  # pyright: ignore
    libc, real, add_symbol = ctypes.CDLL(None), ctypes.CDLL, llvm.add_symbol
    binding = ffi.get_library_name()
    library = SystemLibrary(libc)
    ffi.get_library_name = lambda: binding
    ctypes.CDLL = lambda name, *rest, **named: library if name is None else real(name, *rest, **named)  # pyright: ignore
    sys.platform = "darwin"

    def add(name: str, address: int) -> None:
        """Adds a symbol under the name that code of macOS has for it: on macOS alone LLVM takes "_" away."""
        add_symbol(f"_{name}", address)

    llvm.add_symbol = add  # pyright: ignore
    for name in ("memcpy", "memset", "qsort"):
        add(name, ctypes.cast(libc[name], ctypes.c_void_p).value or 0)
    maths = real("libm.so.6")
    for name in ("ceil", "ceilf", "floor", "floorf", "fmod", "fmodf", "rint", "rintf"):
        add(name, ctypes.cast(maths[name], ctypes.c_void_p).value or 0)
