"""How many threads a call may use."""

import os
from functools import cache

from stepnet.values.arguments import whole

_threads: list[int] = []


def set_threads(count: int | None) -> None:
    """Sets how many threads a call may use. Results do not depend on it.

    Args:
        count: A whole number from 1 on; None for as many as this process may run on.

    Raises:
        InputError: For anything else.

    >>> set_threads(1); threads()
    1
    >>> set_threads(None)
    """
    meaning = "the number of threads is a whole number from 1 on"
    _threads[:] = [] if count is None else [whole(count, meaning, 1)]


def threads() -> int:
    """The number of threads that a call may use."""
    return _threads[0] if _threads else processors()


@cache
def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
