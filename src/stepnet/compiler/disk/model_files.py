"""Bytes of model files that are small enough to be stored once they are read."""

import os
from typing import Any, cast

from stepnet.compiler.disk import store
from stepnet.compiler.values.arguments import MOST_MEMORY

MOST_BYTES = 2**24
"""The largest file that is stored: its bytes may stay in memory with the model, and its arrays are on disk
twice.
"""


def small_contents(path: Any) -> bytes | None:
    """Reads the bytes of a file of at most `MOST_BYTES`; None for a larger one, if the cache is not used, and
    for what cannot be read, which parsing refuses with its error.
    """
    if not isinstance(path, str | os.PathLike) or MOST_MEMORY.get() is not None or not store.is_used():
        return None
    name = cast("str", path)
    if not os.path.isfile(name):  # to open a pipe would wait for who writes into it
        return None
    try:
        with open(name, "rb") as file:
            contents = file.read(MOST_BYTES + 1)
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return None
    return contents if len(contents) <= MOST_BYTES else None
