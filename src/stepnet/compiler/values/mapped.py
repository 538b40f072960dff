"""Arrays in mapped files, which are read from disk when they are used, and shared by all processes."""

from mmap import mmap
from typing import Any

import numpy as np


class MappedFile(mmap):
    """A file that is mapped read-only, and that nobody changes meanwhile: its arrays are constant."""


def is_mapped(array: np.ndarray) -> bool:
    """Tells whether an array lies in a `MappedFile`, so that nothing in this process can change it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview) and isinstance(base.obj, MappedFile)
