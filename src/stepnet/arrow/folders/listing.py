"""The files that paths, folders and globs name, and where the result of each belongs.

calls                    calls/day=1/a.parquet   ->  day=1/a.parquet
calls/day=*/*.parquet    calls/day=1/a.parquet   ->  day=1/a.parquet
calls/day=1/a.parquet                            ->  a.parquet
"""

import glob
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from stepnet.errors import FileError, InputError
from stepnet.values.arguments import file_path, shown

ENDINGS = (".parquet", ".arrow", ".feather", ".ipc")
"""The endings of files that are taken from folders and globs."""
KNOWN = f"Parquet or Arrow file ({', '.join(ENDINGS)})"


@dataclass(frozen=True)
class Listed:
    """A file to read. name: its path inside the input folder, or below the last folder before a pattern."""

    path: Path
    name: Path


@dataclass
class Listing:
    """Files in the order in which they are run.

    folders: the folders that were searched, with all folders inside them. passed_over: the number of files
    with another ending, or with a name that begins with a dot or an underscore.
    """

    files: list[Listed] = field(default_factory=list[Listed])
    folders: list[Path] = field(default_factory=list[Path])
    passed_over: int = 0


def listing(inputs: Any) -> Listing:
    """The files that paths, folders and globs name.

    Raises `FileError` for a path that does not exist, a folder or a glob without any file, a link that leads
    nowhere or back, and for a file that is named twice.
    """
    several: Any = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    if not isinstance(several, Iterable):
        raise InputError(f"inputs is a path, or several, not {shown(several)}")
    paths = [file_path(each, "inputs") for each in cast("Iterable[Any]", several)]
    if not paths:
        raise InputError("there are no inputs: give files, folders or globs")
    made = Listing()
    for path in paths:
        before = len(made.files)
        if os.path.lexists(path):
            of_path(path, made)
        elif glob.has_magic(str(path)):
            of_glob(path, made)
        else:
            raise FileError(f"{path}: there is no such file")
        if len(made.files) == before:
            raise FileError(f"{path}: there is no {KNOWN}")
    check_once(made.files)
    return made


def of_path(path: Path, made: Listing) -> None:
    """Adds a file, or all files of a folder."""
    if os.path.isdir(path):
        made.folders.append(path)
        in_folder(path, Path(), made)
    else:
        check_regular(path)
        made.files.append(Listed(path, Path(path.name)))


def of_glob(pattern: Path, made: Listing) -> None:
    """Adds the files that match, and those of folders that do."""
    fixed = next(place for place, part in enumerate(pattern.parts) if glob.has_magic(part))
    root, inside = Path(*pattern.parts[:fixed]), Listing()
    if "**" in pattern.parts:
        made.folders.append(root)
    try:
        matches = sorted(glob.glob(str(pattern), recursive=True))
    except RecursionError:
        raise FileError(
            f"{pattern}: the folders are nested too deeply for a pattern; give a folder in its place"
        ) from None
    for match in map(Path, matches):
        name = Path(os.path.normpath(match.relative_to(root)))
        if ".." in name.parts:
            raise FileError(
                f"{pattern}: this leads out of {root}, the folder before the pattern; leave the .. away"
            )
        if os.path.isdir(match):
            inside.folders.append(match)
            if "**" not in pattern.parts:  # which matches the files of the folder, too
                in_folder(match, name, inside)
        else:
            add(match, name, inside)
    made.files += sorted(inside.files, key=lambda each: each.name.parts)
    made.folders += inside.folders
    made.passed_over += inside.passed_over


def in_folder(folder: Path, name: Path, made: Listing) -> None:
    """Adds the files of a folder and of those inside it, which may be nested to any depth.

    Raises `FileError` for a folder that cannot be read, and for a link to a folder above it.
    """
    above = [identity(folder)]  # of the folders that are being listed, outermost first
    levels = [(folder, name, entries(folder))]
    while levels:
        folder, name, inside = levels[-1]
        entry = next(inside, None)
        if entry is None:
            levels.pop()
            above.pop()
            continue
        path, inner = folder / entry.name, name / entry.name
        # The first does not follow links, and is true for a path that is too long; the second is false for
        # a link to itself.
        if not (entry.is_dir(follow_symlinks=False) or os.path.isdir(path)):
            add(path, inner, made)
        elif not hidden(entry.name):
            here = identity(path)
            if here in above:
                raise FileError(f"{path}: this link leads back to a folder that it lies in; remove it")
            levels.append((path, inner, entries(path)))
            above.append(here)


def identity(folder: Path) -> tuple[int, int]:
    """What is the same for all paths of a folder, through links too."""
    with readable(folder):
        status = os.stat(folder)
    return status.st_dev, status.st_ino


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, by name."""
    with readable(folder), os.scandir(folder) as inside:
        return iter(sorted(inside, key=lambda entry: entry.name))


@contextmanager
def readable(folder: Path) -> Generator[None]:
    """Turns errors of the block into a `FileError` that says that the folder cannot be read."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{folder}: the folder cannot be read ({error.strerror})") from error


def add(path: Path, name: Path, made: Listing) -> None:
    """Adds a file, unless its name says that it holds no table."""
    if path.suffix.lower() not in ENDINGS or any(map(hidden, name.parts)):
        made.passed_over += 1
        return
    check_regular(path)
    made.files.append(Listed(path, name))


def hidden(name: str) -> bool:
    """Whether a name is passed over, as pyarrow and Spark do it.

    >>> [hidden(name) for name in ("_SUCCESS", ".part.crc", "_day=1", "a.parquet")]
    [True, True, False, False]
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def check_regular(path: Path) -> None:
    """Raises `FileError` for what is no file: a device, or a link that leads nowhere."""
    if not os.path.exists(path):
        raise FileError(f"{path}: this link leads nowhere")
    if not os.path.isfile(path):
        raise FileError(f"{path}: this is no file but a device")


def check_once(files: Iterable[Listed]) -> None:
    """Raises `FileError` for a file that is there twice, by links or by inputs that overlap."""
    known = dict[tuple[int, int], Path]()
    for each in files:
        status = os.stat(each.path)
        first = known.setdefault((status.st_dev, status.st_ino), each.path)
        if first is not each.path:
            raise FileError(f"{each.path}: this file is named twice, the first time as {first}")
