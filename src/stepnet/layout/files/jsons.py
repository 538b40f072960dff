"""JSON objects from files. Memory is counted before parsing: an empty list is 2 bytes of text and 60 of
memory.
"""

import json
from pathlib import Path
from typing import Any, cast

from stepnet.errors import FileError
from stepnet.layout.files.paths import existing, reading
from stepnet.layout.files.store import Store

Object = dict[str, Any]
NAME = 255  # the most bytes of a file's name
LARGEST = 1 << 26  # the most bytes; an index of a million arrays has fewer
# Approximate bytes of memory for the value that a character begins: a dictionary, a list, a value, a key.
COSTS = {b"{": 240, b"[": 96, b",": 64, b":": 96}


def parsed(data: bytes, what: str, store: Store) -> Object:
    """Parses the JSON object in `data`; raises `FileError`, short and without the path, for anything else.

    what: what the text is, for messages. store: the limit on memory, which is counted before parsing.

    >>> parsed(b'{"class_name": "LSTM"}', "config.json", Store(None, 22))
    {'class_name': 'LSTM'}
    >>> parsed(b"[[[", "config.json", Store(None, 3))
    Traceback (most recent call last):
    stepnet.errors.FileError: its config.json is no JSON (Expecting value: line 1 column 4 (char 3))
    """
    store.take(4 * len(data) + sum(data.count(mark) * cost for mark, cost in COSTS.items()), f"its {what}")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"its {what} is no JSON ({str(error)[:200]})") from error
    if not isinstance(value, dict):
        raise FileError(f"its {what} is no JSON object")
    return cast(Object, value)


def read(path: Path) -> Object:
    """Reads the JSON object in a .json file; raises `FileError`, with the path, for anything else."""
    with reading(path):
        if existing(path).stat().st_size > LARGEST:
            raise FileError(f"{path}: it is larger than any index or description ({LARGEST} bytes)")
        data = path.read_bytes()
        return parsed(data, "text", Store(None, len(data)))


def within(folder: Path, name: Any) -> Path:
    """Returns the path of a file in the folder `folder` by its name `name`, which was read from an untrusted
    file. Raises `FileError`, without the path, for a name or a link that leads out of the folder.

    >>> within(Path("models"), "../secrets")
    Traceback (most recent call last):
    stepnet.errors.FileError: it names the file '../secrets', which is no name in its folder
    """
    plain = isinstance(name, str) and name.isprintable() and not set(name) & set("/\\")
    if not plain or name in ("", ".", "..") or len(name.encode()) > NAME:
        raise FileError(f"it names the file {str(name)[:100]!a}, which is no name in its folder")
    path = folder / name
    if path.is_symlink() and path.resolve().parent not in (folder.resolve(), blobs(folder)):
        raise FileError(f"it names the file {name!r}, which is a link out of its folder")
    return path


def blobs(folder: Path) -> Path | None:
    """Returns the folder of files of a Hugging Face cache if `folder` is a snapshot in one; else None."""
    snapshots = folder.resolve().parent
    return snapshots.parent / "blobs" if snapshots.name == "snapshots" else None
