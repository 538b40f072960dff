"""The folder of the cache: opened, and checked to be private to the user.

All files are opened relative to the open folder. So the folder that was checked is the one that is used, even
if the path is replaced in the meantime.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

CAN_BE_CHECKED = hasattr(os, "geteuid") and os.open in os.supports_dir_fd and os.unlink in os.supports_dir_fd
OTHERS = 0o077
"""The permission bits of group and others."""


class NotUsableError(Exception):
    """Reason why the cache cannot be used; it never reaches a caller of stepnet."""


@contextmanager
def open_folder(path: Path, make: bool) -> Generator[int]:
    """Context with the file descriptor of the cache's folder. make: whether to make a missing folder.

    Raises `NotUsableError` if the folder is missing or not private.
    """
    if not CAN_BE_CHECKED:
        raise NotUsableError("on this system it cannot be checked that a folder is private")
    try:
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise NotUsableError(f"{path} is a symbolic link; name the folder itself") from None
        raise NotUsableError(f"{path}: {error.strerror}") from None
    try:
        if reason := not_private(os.fstat(descriptor)):
            raise NotUsableError(f"{path} {reason}")
        yield descriptor
    finally:
        os.close(descriptor)


def not_private(status: os.stat_result) -> str | None:
    """Returns the reason why a folder or file is not private to the user; None if it is."""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & OTHERS:
        return f"is open to others, with mode {stat.S_IMODE(status.st_mode):o}; chmod 700 makes it private"
    return None
