"""Renaming of files, which another program may delay on Windows."""

import os
import time
from typing import Any

IN_USE = (5, 32, 33)
"""The errors of Windows for a file that another program has open: access denied, shared, locked."""
MAPPED = 1224
"""The error of Windows for a file whose content is mapped into the memory of a process."""
WAITS = tuple(0.01 * 2**turn for turn in range(7))
"""The seconds between the attempts: 1.27 in all."""


def replace_file(old: str | os.PathLike[str], new: str | os.PathLike[str], **folders: Any) -> None:
    """Gives a file another name, in place of a file that has it. Raises `OSError` if that fails.

    On Windows a file cannot be renamed or replaced while another program has it open, as those that look for
    viruses or make an index do just after it was written. There several attempts are made within a second.

    folders: the open folders of the two names, as of `os.replace`.
    """
    for wait in WAITS:
        try:
            return os.replace(old, new, **folders)
        except OSError as error:
            if getattr(error, "winerror", None) not in IN_USE:
                raise
        time.sleep(wait)
    return os.replace(old, new, **folders)
