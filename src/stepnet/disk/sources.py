"""A digest of the code that values were computed with: other code may compute others.

It is made of the facts by which Python itself decides whether compiled bytecode is that of a source file: the
size of each file and when it was changed. To read them all would take longer than to read what is stored.
"""

import os
from functools import cache
from pathlib import Path

from stepnet.net.digest import digest
from stepnet.values.version import __version__

PACKAGE = Path(__file__).resolve().parents[1]


def sources(*folders: str) -> str:
    """The digest of the modules in these folders of the package, and of its version."""
    return digest(__version__, *map(folder_digest, folders))


@cache
def folder_digest(folder: str) -> str:
    """The digest of the modules in one folder."""
    return digest(folder, tuple(sorted(facts_of(PACKAGE / folder))))


def facts_of(folder: Path) -> list[tuple[str, int, int]]:
    """The path, size and time of each module in a folder, at any depth."""
    facts = list[tuple[str, int, int]]()
    with os.scandir(folder) as files:
        for file in files:
            if file.name.endswith(".py"):
                status = file.stat()
                facts.append((os.path.relpath(file.path, PACKAGE), status.st_size, status.st_mtime_ns))
            elif file.is_dir() and file.name != "__pycache__":
                facts += facts_of(Path(file.path))
    return facts
