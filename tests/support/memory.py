"""The most memory that Python and NumPy take within a block, for tests of readers of files."""

import tracemalloc
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def memory() -> Generator[Callable[[], int]]:
    """A function that gives the largest number of bytes held at once since the block began."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
