"""Model folders that frameworks wrote, as one small archive each, with what the framework computed."""

import tarfile
from pathlib import Path

FOLDER = Path(__file__).parent


def pack(name: str, folder: Path) -> None:
    """Writes NAME.tar.xz beside this file, of what is in a folder."""
    with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)


def unpack(name: str, folder: Path) -> Path:
    """The folder, with what NAME.tar.xz holds."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder
