"""How many threads a call may use."""

from stepnet.engines.limits import Limit, limit
from stepnet.values.arguments import whole

_threads: list[int] = []


def set_threads(count: int | None) -> None:
    """Sets how many threads a call may use. Results do not depend on it.

    Args:
        count: A whole number from 1 on. None for the default: as many as there are processors that this
            process may use, by its affinity and its control groups, and no more than the environment variable
            STEPNET_NUM_THREADS or, where it is not set, OMP_NUM_THREADS. These are read by the first call.

    Raises:
        InputError: For anything else.

    >>> set_threads(1); threads()
    1
    >>> set_threads(None)
    """
    meaning = "the number of threads is a whole number from 1 on"
    _threads[:] = [] if count is None else [whole(count, meaning, 1)]


def threads_set() -> int | None:
    """The number that `set_threads` was called with; None where it was not."""
    return _threads[0] if _threads else None


def threads() -> int:
    """The number of threads that a call may use."""
    return _threads[0] if _threads else limit().count


def threads_limit() -> Limit:
    """The number of threads that a call may use, and where it comes from."""
    return Limit(_threads[0], "stepnet.set_threads") if _threads else limit()
