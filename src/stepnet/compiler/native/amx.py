"""The permission to use Intel's AMX, which Linux gives to a process that asks for it.

Its tile registers are 8 KB, which the system saves for each thread only in processes that asked. A process
without the permission is ended at the first instruction. Threads and forked processes share it.
"""

import ctypes
import sys
from functools import cache

SYSCALL, REQUEST, TILES = 158, 0x1023, 18
"""On x86-64: the number of the system call arch_prctl, of ARCH_REQ_XCOMP_PERM, and of the state of tiles."""


@cache
def has_permission() -> bool:
    """Asks the system, once per process, for the use of tile registers; tells whether it is given. It is
    refused by old systems, in some sandboxes, and if a thread has too small a stack for signals.
    """
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).syscall(SYSCALL, REQUEST, TILES) == 0
