"""JSON out of a file, whose values are counted before they are made: a list takes 2 bytes of text, and 60."""

import json
from typing import Any

from stepnet.errors import FileError
from stepnet.files.store import Store

# Bytes of memory for what a character begins, about: a dictionary, a list, a value, a key with its value.
COSTS = {b"{": 240, b"[": 96, b",": 64, b":": 96}


def parsed(data: bytes, store: Store, what: str) -> Any:
    """The value that JSON is; raises `FileError`, short and without the path, for what is none.

    >>> parsed(b'{"class_name": "LSTM"}', Store(None, 22), "its config.json")
    {'class_name': 'LSTM'}
    >>> parsed(b"[[[", Store(None, 3), "its config.json")
    Traceback (most recent call last):
    stepnet.errors.FileError: its config.json is no JSON (Expecting value: line 1 column 4 (char 3))
    """
    store.take(4 * len(data) + sum(data.count(mark) * cost for mark, cost in COSTS.items()), what)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{what} is no JSON ({str(error)[:200]})") from error
