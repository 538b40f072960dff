"""What is in the cache, whether it can be used, and how it is emptied: for people who ask."""

import os
from contextlib import suppress
from dataclasses import dataclass

from stepnet.disk import entry
from stepnet.disk.folder import NotUsableError, opened
from stepnet.disk.settings import Settings
from stepnet.disk.sources import sources
from stepnet.disk.store import NAME, foreign, found, remove, write
from stepnet.errors import FileError

TRIAL = 2**16
"""The bytes that are written to see whether anything can be."""


@dataclass(frozen=True)
class Kept:
    """One entry: its name, its bytes on disk, when it was last used (seconds since 1970), and how often."""

    name: str
    bytes: int
    used: float
    hits: int

    @property
    def kind(self) -> str:
        """What it holds."""
        return self.name.rpartition(".")[2]


def why_not(chosen: Settings) -> str | None:
    """The reason why nothing is stored with these settings; None where it is, which is tried."""
    if chosen.reason is not None or chosen.folder is None:
        return chosen.reason
    try:
        sources("values")
        with opened(chosen.folder, make=True) as folder:
            name = f"{os.urandom(16).hex()}.trial"
            write(folder, name, bytes(TRIAL))
            remove(folder, name)
    except NotUsableError as error:
        return str(error)
    except OSError as error:
        return f"{chosen.folder} cannot be written to: {error.strerror}"
    return None


def entries(chosen: Settings) -> list[Kept]:
    """All entries, those that were used last first; none where there is no folder that is private."""
    made = list[Kept]()
    if chosen.folder is not None:
        with suppress(NotUsableError, OSError), opened(chosen.folder, make=False) as folder:
            for name, status in found(folder):
                if NAME.fullmatch(name):
                    made.append(Kept(name, status.st_size, status.st_mtime, hits_of(folder, name)))
    return sorted(made, key=lambda each: -each.used)


def left(chosen: Settings) -> list[str]:
    """What has the name of an entry and is no file, which clearing and eviction leave where it is."""
    if chosen.folder is not None:
        with suppress(NotUsableError, OSError), opened(chosen.folder, make=False) as folder:
            return foreign(folder)
    return []


def hits_of(folder: int, name: str) -> int:
    """How often an entry was read; 0 where it cannot be read."""
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        try:
            return entry.hits(os.read(descriptor, entry.BEGIN))
        finally:
            os.close(descriptor)
    return 0


def clear(chosen: Settings) -> int:
    """Removes all entries, but not what is `left`, and gives how many there were; raises `FileError` where it
    may not.
    """
    if chosen.folder is None:
        return 0
    try:
        with opened(chosen.folder, make=False) as folder:
            names = [name for name, _ in found(folder)]
            for name in names:
                remove(folder, name)
    except (NotUsableError, OSError) as error:
        if not chosen.folder.exists():
            return 0
        raise FileError(f"the cache cannot be cleared: {error}") from None
    return sum(NAME.fullmatch(name) is not None for name in names)
