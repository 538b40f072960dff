"""Entries on disk, by kind and key: reads, writes and evictions.

A call never fails because of the cache. An entry that cannot be read is computed again, and an entry that
cannot be written is not stored. `COUNTS` counts both in this process, and `stepnet cache` says why the folder
cannot be used.

Several processes may use a folder at the same time. A file is written under a unique name and then renamed,
so others see the complete file or nothing. There are no locks: processes that compute the same entry write
the same bytes.

To list a folder of thousands of entries takes longer than to write one. So a process lists it at its first
write, and again when it has written its share of the room that was left then. The size limit may be exceeded
by that share for each process that writes at the same time, until one of them lists the folder.
"""

import errno
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stepnet.compiler.disk import entry
from stepnet.compiler.disk.entry import NotDataError
from stepnet.compiler.disk.folder import NotUsableError, OpenFolder, open_folder
from stepnet.compiler.disk.settings import Settings, settings

if TYPE_CHECKING:
    from stepnet.compiler.disk.data import Serializer

NAME = r"[0-9a-f]{32}\.[a-z]+"
UNFINISHED = r"[0-9a-f]{32}\.[a-z]+\.new-[0-9a-f]{16}"
STALE = 3600.0
"""The age in seconds from which an unfinished file is a leftover of a killed process."""
ROOM = 0.9
"""The fraction of the size limit that is in use after an eviction."""
SHARE = 1 / 16
"""The fraction of the room in a folder that a process fills before it lists the folder again."""

SHARES = dict[tuple[int, int, int], int]()
"""The bytes that this process may write before it lists a folder again, by the folder and its limit."""

COUNTS = Counter[str]()
"""Counts of this process: hits, misses, rejected (misses because of invalid entries), stored,
failed writes.
"""


def is_used() -> bool:
    """Tells whether the settings turn the cache on disk on."""
    chosen = settings()
    return chosen.reason is None and chosen.folder is not None


def get(kind: str, key: str, is_needed: bool = True) -> bytes | None:
    """Reads the payload (bytes) that the disk cache has under a key of 32 hexadecimal digits; None if it has
    no valid one or is turned off.

    kind: the ending of the file's name, such as "schedule". A hit or a miss is counted.
    is_needed: whether it is a miss that there is none; False for what nobody has to store.
    """
    chosen = settings()
    if chosen.reason is not None or chosen.folder is None:
        return None
    payload = None
    with suppress(NotUsableError, OSError), open_folder(chosen.folder, make=False) as folder:
        payload = read(folder, f"{key}.{kind}", chosen)
    if is_needed or payload is not None:
        COUNTS["misses" if payload is None else "hits"] += 1
    return payload


def read(folder: OpenFolder, name: str, chosen: Settings) -> bytes | None:
    """Reads the payload of a cache file in an open folder, and counts the read in the file; None if the file
    is missing or invalid.

    chosen: the settings, with the largest size of a file.
    """
    try:
        descriptor = open_entry(folder, name)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if not folder.accepts(status) or status.st_size > chosen.most:
            COUNTS["rejected"] += 1
            return None
        data = read_all(descriptor, status.st_size)
        payload = entry.read(name, data)
        if payload is None:
            COUNTS["rejected"] += 1
            return None
        with suppress(OSError):  # the folder may be read-only
            os.lseek(descriptor, entry.HITS_AT, os.SEEK_SET)
            os.write(descriptor, entry.HITS.pack(min(entry.hits(data) + 1, 2**63)))
        return payload
    finally:
        os.close(descriptor)


def open_entry(folder: OpenFolder, name: str) -> int:
    """Opens a cache file in an open folder for reading and, if permitted, for writing; returns its
    descriptor. Links are not followed, as other users could have made them.
    """
    try:
        return folder.open(name, os.O_RDWR)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        return folder.open(name, os.O_RDONLY)


def read_all(descriptor: int, size: int) -> bytes:
    """Reads the first `size` bytes of an open file (a descriptor), or all if there are fewer."""
    pieces = list[bytes]()
    while size > 0 and (piece := os.read(descriptor, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def value(kind: str, key: str, form: "Serializer", given: Sequence[Any] = (), is_needed: bool = True) -> Any:
    """Reads a value that the disk cache has under a key; None if it has none. A payload that is no value,
    which something else has put there, counts as rejected.

    kind, key, is_needed: as for `get`. form, given: restore the value from its payload.
    """
    payload = get(kind, key, is_needed)
    try:
        return None if payload is None else form.unpacked(payload, given)
    except NotDataError:
        COUNTS["rejected"] += 1
        return None


def put(kind: str, key: str, payload: bytes) -> None:
    """Stores a payload in the disk cache, if possible, and evicts old entries if the cache is full. Failures
    are only counted.

    kind: the ending of its file's name, such as "schedule". key: 32 hexadecimal digits.
    """
    chosen = settings()
    if chosen.reason is not None or chosen.folder is None:
        return
    data = entry.file_contents(f"{key}.{kind}", payload)
    if len(data) > chosen.most:
        COUNTS["failed"] += 1
        return
    try:
        with open_folder(chosen.folder, make=True) as folder:
            write(folder, f"{key}.{kind}", data)
            make_room(folder, len(data), chosen.most)
    except (NotUsableError, OSError):
        COUNTS["failed"] += 1
    else:
        COUNTS["stored"] += 1


def write(folder: OpenFolder, name: str, data: bytes) -> None:
    """Writes a file to an open folder of the cache: under another name first, then renamed, so that readers
    see all of it or nothing. Raises `OSError`.
    """
    unfinished = f"{name}.new-{os.urandom(8).hex()}"
    descriptor = folder.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(descriptor, remaining) :]
        finally:
            os.close(descriptor)
        folder.rename(unfinished, name)
    except BaseException:
        with suppress(OSError):
            folder.remove(unfinished)
        raise


def make_room(folder: OpenFolder, written: int, max_bytes: int) -> None:
    """Counts the bytes that this process writes to a folder, and evicts old entries when it has used its
    share of the free room. So the folder is not listed at each write.

    written: the bytes of the new entry. max_bytes: the size limit of the folder.
    """
    status = folder.own_status()
    key = status.st_dev, status.st_ino, max_bytes
    SHARES[key] = SHARES.get(key, 0) - written
    if SHARES[key] < 0:
        SHARES[key] = int((max_bytes - evict(folder, max_bytes)) * SHARE)


def evict(folder: OpenFolder, max_bytes: int) -> int:
    """Removes unfinished files of killed processes from a folder. If it has more than `max_bytes` bytes, also
    removes the least recently used entries until the fraction `ROOM` of these is in use.

    Returns the bytes that are left.
    """
    files = sorted(own_files(folder), key=lambda name_and_status: name_and_status[1].st_mtime)
    total = sum(status.st_size for _, status in files)
    goal = max_bytes * ROOM if total > max_bytes else total
    now = time.time()
    for name, status in files:
        stale = re.fullmatch(UNFINISHED, name) is not None and now - status.st_mtime > STALE
        if stale or total > goal:
            with suppress(PermissionError):  # Windows does not remove what another process reads
                folder.remove(name)
                total -= status.st_size
    return total


def own_files(folder: OpenFolder) -> Iterator[tuple[str, os.stat_result]]:
    """Yields name and status of each cache file, also unfinished, in an open folder."""
    return ((name, status) for name, status in named_as_entries(folder) if stat.S_ISREG(status.st_mode))


def foreign(folder: OpenFolder) -> list[str]:
    """Lists names in an open folder that look like cache files but are no regular files, such as links."""
    return sorted(name for name, status in named_as_entries(folder) if not stat.S_ISREG(status.st_mode))


def named_as_entries(folder: OpenFolder) -> Iterator[tuple[str, os.stat_result]]:
    """Yields name and status of everything in an open folder that is named as a cache file."""
    for name in folder.names():
        if re.fullmatch(NAME, name) or re.fullmatch(UNFINISHED, name):
            with suppress(FileNotFoundError):  # another process may have evicted it
                yield name, folder.status(name)
