"""The number of threads that a call may use."""

from stepnet.compiler.targets.limits import Limit, limit
from stepnet.compiler.values.arguments import checked_integer

_threads: list[int] = []


def set_threads(count: int | None) -> None:
    """Sets the number of threads that a call may use. Results do not depend on it.

    Args:
        count: An integer of at least 1. None restores the default: the number of processors that this process
            may use, by its CPU affinity and control groups, but no more than the environment variable
            STEPNET_NUM_THREADS or, if that is not set, OMP_NUM_THREADS. The first call reads the default.

    Raises:
        InputError: If count is neither None nor an integer of at least 1.

    >>> set_threads(1); threads()
    1
    >>> set_threads(None)
    """
    meaning = "the number of threads is a whole number from 1 on"
    _threads[:] = [] if count is None else [checked_integer(count, meaning, 1)]


def threads_set() -> int | None:
    """Returns the number of threads per call that the user has set by `set_threads`; None if none is."""
    return _threads[0] if _threads else None


def threads() -> int:
    """Returns the number of threads that a call may use: that of `set_threads`, or the default."""
    return _threads[0] if _threads else limit().count


def threads_limit() -> Limit:
    """Returns the number of threads that a call may use, and where it comes from, as text for the user."""
    return Limit(_threads[0], "stepnet.set_threads") if _threads else limit()
