"""The version of the package, read by the build, and the Python that it runs on.

Threads share dictionaries and lists of calls that are ready, and take a call out of them by operations that
Python's lock makes atomic. Free-threaded Python has no such lock unless it is asked for one, and stepnet was
never tested there, so it is refused.
"""

import sys
from collections.abc import Callable

from stepnet.errors import LibraryError

__version__ = "0.1.0"


def has_lock() -> bool:
    """Tells whether this Python runs one thread at a time, as all but free-threaded Python do."""
    is_enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is None or is_enabled()


def check_lock(is_there: bool) -> None:
    """Raises `LibraryError`, with the way to turn Python's lock on, if Python runs without it. is_there:
    whether it has the lock.
    """
    if not is_there:
        raise LibraryError(
            "stepnet does not run on free-threaded Python without its lock: start Python with -X gil=1 or "
            "PYTHON_GIL=1, or use a Python that is not free-threaded"
        )
