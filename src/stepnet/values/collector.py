"""Work that makes many objects which all stay, with Python's garbage collector paused.

The collector looks through every object of the process each time their number has grown by some part. While
a net is compiled it does so again and again, finds nothing, and takes a third of the time where PyTorch is
imported too.
"""

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

PAUSED = list[bool]()
"""Has an entry while the collector is paused here."""


@contextmanager
def paused_collector() -> Generator[None]:
    """Code inside runs without garbage collection; after it the collector is as it was.

    >>> with paused_collector():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    if not gc.isenabled():
        yield
        return
    try:
        PAUSED.append(True)
        gc.disable()
        yield
    finally:
        gc.enable()
        PAUSED.clear()


def resume() -> None:
    """Ends a pause in a forked child, where the thread that would end it is not."""
    if PAUSED:
        gc.enable()
        PAUSED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=resume)
