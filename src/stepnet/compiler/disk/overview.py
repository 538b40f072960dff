"""The contents of the cache, whether it can be used, and how it is cleared: for `stepnet cache`."""

import os
import re
from contextlib import suppress

from stepnet.compiler.disk import entry
from stepnet.compiler.disk.folder import NotUsableError, OpenFolder, open_folder
from stepnet.compiler.disk.settings import Settings
from stepnet.compiler.disk.sources import sources
from stepnet.compiler.disk.store import NAME, foreign, own_files, write
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError

TRIAL = 2**16
"""The bytes that are written to test whether the folder is writable."""


@dataclass(frozen=True)
class CacheEntry:
    """File of the cache, for lists of its contents.

    name: the name of its file.
    bytes: its size on disk.
    used: the time of its last use, in seconds since 1970.
    hits: the number of its reads.
    """

    name: str
    bytes: int
    used: float
    hits: int

    @property
    def kind(self) -> str:
        """The kind of value in this file of the cache, which is the ending of its name."""
        return self.name.rpartition(".")[2]


def why_not(chosen: Settings) -> str | None:
    """Returns why no values can be stored with the settings `chosen`, which it tries by writing a file and
    removing it; None if they can.
    """
    if chosen.reason is not None or chosen.folder is None:
        return chosen.reason
    try:
        sources("compiler/values")
        with open_folder(chosen.folder, make=True) as folder:
            name = f"{os.urandom(16).hex()}.trial"
            write(folder, name, bytes(TRIAL))
            folder.remove(name)
    except NotUsableError as error:
        return str(error)
    except OSError as error:
        return f"{chosen.folder} cannot be written to: {error.strerror}"
    return None


def entries(chosen: Settings) -> list[CacheEntry]:
    """Lists all entries of the cache on disk, the most recently used first; none if there is no private
    folder.
    chosen: the settings, with the folder of the cache.
    """
    listed = list[CacheEntry]()
    if chosen.folder is not None:
        with suppress(NotUsableError, OSError), open_folder(chosen.folder, make=False) as folder:
            for name, status in own_files(folder):
                if re.fullmatch(NAME, name):
                    listed.append(CacheEntry(name, status.st_size, status.st_mtime, hits_of(folder, name)))
    return sorted(listed, key=lambda cache_entry: -cache_entry.used)


def foreign_names(chosen: Settings) -> list[str]:
    """Lists links, folders and the like with the names of entries of the cache on disk. stepnet never removes
    these. chosen: the settings, with the folder of the cache.
    """
    if chosen.folder is not None:
        with suppress(NotUsableError, OSError), open_folder(chosen.folder, make=False) as folder:
            return foreign(folder)
    return []


def hits_of(folder: OpenFolder, name: str) -> int:
    """Returns the number of times that a cache entry in an open folder was read; 0 if it cannot be opened."""
    with suppress(OSError):
        descriptor = folder.open(name, os.O_RDONLY)
        try:
            return entry.hits(os.read(descriptor, entry.BEGIN))
        finally:
            os.close(descriptor)
    return 0


def clear(chosen: Settings) -> int:
    """Removes all entries of the cache on disk, but no links, folders and the like; returns the number of
    removed entries. Raises `FileError` if files cannot be removed. chosen: the settings, with the folder.
    """
    if chosen.folder is None:
        return 0
    try:
        with open_folder(chosen.folder, make=False) as folder:
            names = [name for name, _ in own_files(folder)]
            for name in names:
                folder.remove(name)
    except (NotUsableError, OSError) as error:
        if not os.path.exists(chosen.folder):
            return 0
        raise FileError(f"the cache cannot be cleared: {error}") from None
    return sum(re.fullmatch(NAME, name) is not None for name in names)
