"""Packs what a framework wrote, and what it computed, into one small archive."""

import tarfile
from pathlib import Path

FOLDER = Path(__file__).parent


def pack(name: str, folder: Path) -> None:
    """Writes NAME.tar.xz beside this file, of what is in a folder."""
    with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
