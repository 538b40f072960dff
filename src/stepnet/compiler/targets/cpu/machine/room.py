"""A check, before LLVM is called, that there is enough address space.

    without   an allocation of LLVM fails, and LLVM aborts the process
    with      MemoryError, and the process continues

LLVM and the C++ library abort if an allocation fails, and the C library aborts if there is no memory for the
thread-local data of a new thread. This happens in a process with a limit (ulimit -v, RLIMIT_AS). So as much
memory as LLVM may need is mapped and unmapped first. This takes 11 microseconds per module; compiling one
takes a hundred milliseconds.

Measured on recurrences of 200 to 250 KB of text: LLVM maps 7 to 29 bytes per byte of text, the most for the
first text. The C library maps 128 MB in a new thread, and keeps half.
"""

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module

import llvmlite

from stepnet.compiler.native.pages import mapped
from stepnet.compiler.values.packages import LLVMLITE
from stepnet.errors import LibraryError

LIBRARY_BYTES = 256 * 2**20
"""The memory for loading the LLVM library: it maps 180 MB, and allocates more when it is initialised."""
BASE_BYTES = 48 * 2**20
"""The memory to compile any text: for LLVM, for Python meanwhile, and for the C library's chunks."""
TEXT_FACTOR = 64
"""The additional memory in bytes for each byte of a text."""
THREAD_BYTES = 192 * 2**20
"""The memory for another thread: its stack, the C library's heap for it, and a text."""

LOCK = threading.Lock()
RESERVED = [0]
"""The bytes that all threads have reserved and may not have allocated yet."""


@contextmanager
def reserve(size: int) -> Generator[None]:
    """Context that checks and reserves `size` bytes of memory, as LLVM ends the process if it finds none.
    Raises `MemoryError` if the system has no memory for them in addition to what other threads have reserved.
    """
    with LOCK:
        try:
            mapped(size + RESERVED[0]).close()
        except MemoryError:
            raise MemoryError(
                f"compiling takes {(size + RESERVED[0]) >> 20} MB more memory, and the system gives this "
                "process less: raise its limit (ulimit -v) or free memory; or call the model once in a "
                "process without the limit, after which the code is read from disk (see stepnet cache)"
            ) from None
        RESERVED[0] += size
    try:
        yield
    finally:
        with LOCK:
            RESERVED[0] -= size


def load_llvm() -> None:
    """Loads the LLVM library if it is not loaded yet, before code is generated. Raises `LibraryError` if
    llvmlite is too old (also if another package has loaded it) or broken, and `MemoryError` if there is no
    memory.
    """
    check_llvmlite()
    if "llvmlite.binding" not in sys.modules:
        with reserve(LIBRARY_BYTES):
            try:
                import_module("llvmlite.binding")
            except (ImportError, OSError) as error:
                version = llvmlite.__version__
                raise LibraryError(
                    f"llvmlite {version} cannot be loaded ({error}); install it again: pip install "
                    f"--force-reinstall llvmlite=={version}"
                ) from error


def check_llvmlite() -> None:
    """Raises `LibraryError`, with the command that upgrades it, if the installed llvmlite is too old."""
    version = llvmlite.__version__
    if LLVMLITE.older(version):
        raise LibraryError(f"{LLVMLITE.too_old(version)}: {LLVMLITE.command}")
