"""Locks that keep two processes from writing the same result, or into the same folder.

    POSIX     a lock (flock) on the unfinished file itself, or on the open folder
    Windows   a file of its own beside the unfinished file, or beside the folder, that nobody else can make
              as long as it is there; the system removes it when the process closes it or ends

On Windows a file cannot be renamed or removed while it is open, and so not while it is locked itself.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepnet.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

HAS_FLOCK = fcntl is not None
UNTIL_CLOSED: int = getattr(os, "O_TEMPORARY", 0) | getattr(os, "O_NOINHERIT", 0)
"""The flags of Windows for a file that is removed when it is closed, and that no other program inherits."""
LOCK = ".lock"


class FileLock:
    """A lock, which is held until it is closed. number: the descriptor of the locked file."""

    def __init__(self, number: int) -> None:
        """Takes the descriptor of the locked file."""
        self.number: int | None = number

    def close(self) -> None:
        """Releases the lock, unless it has been released."""
        number, self.number = self.number, None
        if number is not None:
            os.close(number)


def locked_partial(path: Path) -> FileLock:
    """Creates and locks the unfinished file at a path; raises `FileError` if it is locked already."""
    if not HAS_FLOCK:
        return locked_beside(path.with_name(path.name + LOCK), path)
    return locked(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666), path)


@contextmanager
def locked_folder(folder: Path) -> Generator[None]:
    """Context that locks an existing folder. If the folder is empty at the end, it is removed. Raises
    `FileError` if another process has locked it.
    """
    if HAS_FLOCK:
        lock = locked(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), folder)
    else:
        whole = folder.resolve()
        lock = locked_beside(whole.parent / f".{whole.name}{LOCK}", folder)
    try:
        try:
            yield
        finally:
            with suppress(OSError):  # it has files, or was removed meanwhile
                folder.rmdir()
    finally:
        lock.close()


def locked(number: int, path: Path) -> FileLock:
    """Locks the open file of a path by `flock`. number: its descriptor, which is closed if that fails. Raises
    `FileError` if another process has locked it, or has just renamed it.
    """
    assert fcntl is not None
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = os.path.samestat(os.fstat(number), os.stat(path))
        except (BlockingIOError, FileNotFoundError):
            alone = False
        if not alone:
            raise in_use(path)
    except BaseException:
        os.close(number)
        raise
    return FileLock(number)


def locked_beside(lock: Path, path: Path) -> FileLock:
    """Makes the file `lock` that stands for a lock on Windows. The system removes the file when it is closed.
    Raises `FileError` if it is there, as another process writes to `path` then, and `OSError` if it cannot be
    made. A file that waits for its removal may be there for some programs and not permitted for others.
    """
    try:
        return FileLock(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | UNTIL_CLOSED))
    except (FileExistsError, PermissionError):
        if not os.path.lexists(lock):  # it may not be made here
            raise
        raise in_use(path, f"; if there is none, remove {lock}, which a power cut has left") from None


def in_use(path: Path, otherwise: str = "") -> FileError:
    """Makes the error for a path to which another process writes. otherwise: the action if none does."""
    return FileError(f"{path}: another process is writing here; wait for it, or stop it{otherwise}")
