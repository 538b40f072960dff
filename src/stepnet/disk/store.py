"""Entries on disk by kind and key: read, written, and evicted where they become too many.

A call never fails because of the cache. What cannot be read is computed again, and what cannot be written is
not kept. `COUNTS` says what happened in this process, and `stepnet cache` why the folder cannot be used.

Several processes may use a folder at once. A file is written under a name of its own and then renamed, so
others see all of it or nothing. Nobody waits: two that compute the same write the same.
"""

import errno
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from stepnet.disk import entry
from stepnet.disk.folder import NotUsableError, not_private, opened
from stepnet.disk.settings import Settings, settings

NAME = re.compile(r"[0-9a-f]{32}\.[a-z]+")
UNFINISHED = re.compile(r"[0-9a-f]{32}\.[a-z]+\.new-[0-9a-f]{16}")
STALE = 3600.0
"""Seconds after which an unfinished file is what a process that was killed has left."""
ROOM = 0.9
"""How full the cache is after an eviction."""

COUNTS = Counter[str]()
"""What happened in this process: hits, misses, rejected (of the misses), stored, failed (to be stored)."""


def is_used() -> bool:
    """Whether there is a folder for the cache, by the settings."""
    chosen = settings()
    return chosen.reason is None and chosen.folder is not None


def get(kind: str, key: str) -> bytes | None:
    """The payload that was stored under a key of 32 hexadecimal digits; None where there is none."""
    chosen = settings()
    if chosen.reason is not None or chosen.folder is None:
        return None
    payload = None
    with suppress(NotUsableError, OSError), opened(chosen.folder, make=False) as folder:
        payload = read(folder, f"{key}.{kind}", chosen)
    COUNTS["misses" if payload is None else "hits"] += 1
    return payload


def read(folder: int, name: str, chosen: Settings) -> bytes | None:
    """The payload of a file, which counts the read; None where it is missing, or not as it was written."""
    try:
        descriptor = open_entry(folder, name)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if not_private(status) or status.st_size > chosen.most:
            COUNTS["rejected"] += 1
            return None
        data = whole(descriptor, status.st_size)
        payload = entry.read(name, data)
        if payload is None:
            COUNTS["rejected"] += 1
            return None
        with suppress(OSError):  # the folder may be for reading only
            os.pwrite(descriptor, entry.HITS.pack(min(entry.hits(data) + 1, 2**63)), entry.HITS_AT)
        return payload
    finally:
        os.close(descriptor)


def open_entry(folder: int, name: str) -> int:
    """A file to read and, where that is allowed, to write; never what a link points to."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, os.O_RDWR | flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        return os.open(name, os.O_RDONLY | flags, dir_fd=folder)


def whole(descriptor: int, size: int) -> bytes:
    """So many bytes of a file, or all that it has."""
    pieces = list[bytes]()
    while size > 0 and (piece := os.read(descriptor, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def put(kind: str, key: str, payload: bytes) -> None:
    """Stores a payload under a key, where that is possible."""
    chosen = settings()
    if chosen.reason is not None or chosen.folder is None:
        return
    data = entry.written(f"{key}.{kind}", payload)
    if len(data) > chosen.most:
        COUNTS["failed"] += 1
        return
    try:
        with opened(chosen.folder, make=True) as folder:
            write(folder, f"{key}.{kind}", data)
            evict(folder, chosen.most)
    except (NotUsableError, OSError):
        COUNTS["failed"] += 1
    else:
        COUNTS["stored"] += 1


def write(folder: int, name: str, data: bytes) -> None:
    """Writes a file, all of it or nothing; raises `OSError`."""
    unfinished = f"{name}.new-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unfinished, flags, 0o600, dir_fd=folder)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=folder)
        raise


def evict(folder: int, most: int) -> None:
    """Removes what was not used for the longest time where there is more than `most` bytes, until there is
    room; and what killed processes have left.
    """
    files = sorted(found(folder), key=lambda each: each[1].st_mtime)
    total = sum(status.st_size for _, status in files)
    goal = most * ROOM if total > most else total
    now = time.time()
    for name, status in files:
        stale = UNFINISHED.fullmatch(name) is not None and now - status.st_mtime > STALE
        if stale or total > goal:
            remove(folder, name)
            total -= status.st_size


def found(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """The names of the cache's own files, unfinished ones too, and what the system knows of them."""
    return ((name, status) for name, status in named(folder) if stat.S_ISREG(status.st_mode))


def foreign(folder: int) -> list[str]:
    """What has the name of an entry and is no file: a folder, a link, a pipe. Nobody but a user makes these,
    so they are left where they are.
    """
    return sorted(name for name, status in named(folder) if not stat.S_ISREG(status.st_mode))


def named(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """What has a name of the cache's own, and what the system knows of it."""
    for name in os.listdir(folder):
        if NAME.fullmatch(name) or UNFINISHED.fullmatch(name):
            with suppress(FileNotFoundError):  # another process may have evicted it
                yield name, os.stat(name, dir_fd=folder, follow_symlinks=False)


def remove(folder: int, name: str) -> None:
    """Removes a file, which another process may have done."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
