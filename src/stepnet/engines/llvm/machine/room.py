"""A check, before LLVM is called, that there is enough address space.

    before   LLVM is called, gets no memory, and ends the process
    after    MemoryError, and the process goes on

LLVM and the C++ library abort if an allocation fails, and the C library aborts if a new thread has no room
for its thread-local data. This happens in a process with a limit (ulimit -v, RLIMIT_AS). So the same amount
is mapped and unmapped first: this takes 11 microseconds per module, which takes a hundred milliseconds to
compile.

Measured on recurrences of 200 to 250 KB of text: LLVM maps 7 to 29 bytes for each of a text's, the most for
the first. The C library maps 128 MB in a new thread, and keeps half.
"""

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module

from stepnet.engines.llvm.machine.memory import mapped

LIBRARY = 256 * 2**20
"""What loading LLVM's library maps: 180 MB, and what it sets up."""
ALONE = 48 * 2**20
"""What LLVM needs for any text, what Python needs beside it, and the pieces in which the C library asks."""
FOR_BYTE = 64
"""And for each byte of a text."""
THREAD = 192 * 2**20
"""What a thread more needs: its stack, the C library's memory for it, and a text."""

LOCK = threading.Lock()
PROMISED = [0]
"""What others have been promised, who may have used none of it."""


@contextmanager
def room(size: int) -> Generator[None]:
    """In the block so many bytes may be allocated; raises `MemoryError` where the system has no room for them
    and what others were promised.
    """
    with LOCK:
        try:
            mapped(size + PROMISED[0]).close()
        except MemoryError:
            raise MemoryError(
                f"to compile takes {(size + PROMISED[0]) >> 20} MB of memory more, and the system gives this "
                "process less: raise its limit (ulimit -v) or free memory; or call the model once in a "
                "process without the limit, and the code is read from disk (see stepnet cache)"
            ) from None
        PROMISED[0] += size
    try:
        yield
    finally:
        with LOCK:
            PROMISED[0] -= size


def load_llvm() -> None:
    """Loads LLVM's library where it is not loaded yet; raises `MemoryError` where there is no room for it."""
    if "llvmlite.binding" not in sys.modules:
        with room(LIBRARY):
            import_module("llvmlite.binding")
