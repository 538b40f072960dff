"""The folder of the cache: opened, and checked to be private to the user.

POSIX     owner and mode of the open folder; files are opened relative to it, so the folder that was
          checked is the one that is used, even if the path is replaced in the meantime
Windows   owner and access list of the folder, and of the folder that it lies in, whose access would
          permit to replace it; files are opened by their paths
"""

import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

from stepnet.compiler.values.records import dataclass

if sys.platform == "win32":
    from stepnet.compiler.disk.access import why_open
else:

    def why_open(path: str) -> str | None:
        """Returns why a folder is not private on a system whose folders have no modes that tell it."""
        return "on this system it cannot be checked that a folder is private"


HAS_MODES = hasattr(os, "geteuid") and os.open in os.supports_dir_fd and os.unlink in os.supports_dir_fd
"""True if a folder's owner and mode say who may open it, as on all systems but Windows."""
OTHERS = 0o077
"""The permission bits of group and others."""
GUARDED = ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY", "O_NOINHERIT")
"""The flags with which every file is opened, of those that the system has: links are not followed, no other
program inherits the file, a pipe in its place is not waited for, and bytes are those of the file.
"""


class NotUsableError(Exception):
    """Reason why the cache cannot be used; it never reaches a caller of stepnet."""


@dataclass(frozen=True)
class OpenFolder:
    """The cache's folder while it is used, with the operations on the files in it.

    path: its path. descriptor: of the open folder, to which names are relative; None on Windows, where files
    are opened by their paths.
    """

    path: str
    descriptor: int | None

    def at(self, name: str) -> str:
        """Returns the argument by which a file is opened: the name if the folder is open, else a path."""
        return name if self.descriptor is not None else os.path.join(self.path, name)

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Opens a file of the folder with the flags in `GUARDED`, and returns its descriptor.

        flags: of `os.open`, such as `os.O_RDONLY`. mode: the mode of a new file. Raises `OSError`.
        """
        for flag in GUARDED:
            flags |= getattr(os, flag, 0)
        return os.open(self.at(name), flags, mode, dir_fd=self.descriptor)

    def names(self) -> list[str]:
        """Lists the names in the folder."""
        return os.listdir(self.path if self.descriptor is None else self.descriptor)

    def status(self, name: str) -> os.stat_result:
        """Returns the status of the entry of a name in the folder; for a link, that of the link itself."""
        return os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def own_status(self) -> os.stat_result:
        """Returns the status of the folder itself."""
        return os.stat(self.path if self.descriptor is None else self.descriptor)

    def rename(self, old: str, new: str) -> None:
        """Gives a file of the folder another name, in place of a file that has it."""
        os.replace(self.at(old), self.at(new), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Removes a file from the folder, if another process has not removed it already."""
        with suppress(FileNotFoundError):
            os.unlink(self.at(name), dir_fd=self.descriptor)

    def accepts(self, status: os.stat_result) -> bool:
        """Tells whether a file of the folder is private to the user. status: the status of the open file. On
        Windows it is, as files have the access list of their folder.
        """
        return self.descriptor is None or not_private(status) is None


@contextmanager
def open_folder(path: str, make: bool) -> Generator[OpenFolder]:
    """Context with the open folder of the cache. make: whether to make a missing folder.

    Raises `NotUsableError` if the folder is missing or not private.
    """
    try:
        if make:
            os.makedirs(path, 0o700, exist_ok=True)
        descriptor = opened(path) if HAS_MODES else None
    except OSError as error:
        if os.path.islink(path):
            raise NotUsableError(f"{path} is a symbolic link; name the folder itself") from None
        raise NotUsableError(f"{path}: {error.strerror}") from None
    if descriptor is None:
        if reason := why_open(path):
            raise NotUsableError(reason)
        yield OpenFolder(path, None)
        return
    try:
        if reason := not_private(os.fstat(descriptor)):
            raise NotUsableError(f"{path} {reason}")
        yield OpenFolder(path, descriptor)
    finally:
        os.close(descriptor)


def opened(path: str) -> int:
    """Opens a folder that is no link, on a POSIX system; returns its descriptor, or raises `OSError`."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def not_private(status: os.stat_result) -> str | None:
    """Returns the reason why a folder or file is not private to the user; None if it is."""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & OTHERS:
        return f"is open to others, with mode {stat.S_IMODE(status.st_mode):o}; chmod 700 makes it private"
    return None
