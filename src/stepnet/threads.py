"""How many threads a call may use."""

import os
from functools import cache

from stepnet.errors import InputError
from stepnet.types import is_integer

_threads: list[int] = []


def set_threads(count: int | None) -> None:
    """Sets how many threads a call may use; None for as many as this process may run on.

    >>> set_threads(1); threads()
    1
    >>> set_threads(None)
    """
    if count is not None and (isinstance(count, bool) or not is_integer(count) or count < 1):
        raise InputError(f"the number of threads is a whole number from 1 on, not {count!r}")
    _threads[:] = [] if count is None else [int(count)]


def threads() -> int:
    """How many threads a call may use."""
    return _threads[0] if _threads else processors()


@cache
def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
