"""Lists the files that paths, folders and globs name, with the path of each result inside the output.

calls                    calls/day=1/a.parquet   ->  day=1/a.parquet
calls/day=*/*.parquet    calls/day=1/a.parquet   ->  day=1/a.parquet
calls/day=1/a.parquet                            ->  a.parquet
"""

import glob
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from stepnet.compiler.values.arguments import local_path, short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, InputError

ENDINGS = (".parquet", ".arrow", ".feather", ".ipc")
"""The endings of files that are taken from folders and globs."""
THERE = (
    "inputs are files of this machine: mount the store, or give stepnet.arrow.predict a pyarrow.dataset, "
    "which reads it"
)
KNOWN = f"Parquet or Arrow file ({', '.join(ENDINGS)})"


@dataclass(frozen=True)
class InputFile:
    """A file to read. name: its path inside the input folder, or below the last folder before a glob pattern,
    which becomes the path of its result in the output.
    """

    path: Path
    name: Path


@dataclass
class Listing:
    """Files in the order in which they are run.

    folders: the folders that were searched, with all folders inside them. passed_over: the number of files
    left out because of their ending, or of a dot or underscore at the start of their name. passed_names: the
    names of the files left out because of their ending.
    """

    files: list[InputFile] = field(default_factory=list[InputFile])
    folders: list[Path] = field(default_factory=list[Path])
    passed_over: int = 0
    passed_names: list[str] = field(default_factory=list[str])


def listing(inputs: Any) -> Listing:
    """Lists the Parquet and Arrow files that paths, folders and globs name. Raises `FileError` for a path
    that does not exist, a folder or glob without any file, a broken or circular link, and a file that is
    named twice.
    """
    several: Any = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    if not isinstance(several, Iterable):
        raise InputError(f"inputs is a path, or several, not {short_repr(several)}")
    paths = [local_path(each, "inputs", THERE) for each in cast("Iterable[Any]", several)]
    if not paths:
        raise InputError("there are no inputs: give files, folders or globs")
    found = Listing()
    for path in paths:
        before = len(found.files)
        if os.path.lexists(path):
            add_path(path, found)
        elif glob.has_magic(str(path)):
            add_glob(path, found)
        else:
            raise FileError(f"{path}: there is no such file")
        if len(found.files) == before:
            raise FileError(f"{path}: there is no {KNOWN}")
    check_once(found.files)
    return found


def add_path(path: Path, found: Listing) -> None:
    """Adds what a path names to the listing `found`: a file, whatever its ending, or all table files of a
    folder. Raises `FileError` for a broken link or a device.
    """
    if os.path.isdir(path):
        found.folders.append(path)
        add_folder(path, Path(), found)
    else:
        check_regular(path)
        found.files.append(InputFile(path, Path(path.name)))


def add_glob(pattern: Path, found: Listing) -> None:
    """Adds the table files that a glob matches, and the table files in matched folders, to the listing
    `found`, sorted by their names: paths below the last folder before the pattern. Raises `FileError` for a
    match outside it.
    """
    fixed = next(index for index, part in enumerate(pattern.parts) if glob.has_magic(part))
    root, inside = Path(*pattern.parts[:fixed]), Listing()
    if "**" in pattern.parts:
        found.folders.append(root)
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
                f"{pattern}: this leads out of {root}, the folder before the pattern; remove the .."
            )
        if os.path.isdir(match):
            inside.folders.append(match)
            if "**" not in pattern.parts:  # ** also matches the files of the folder itself
                add_folder(match, name, inside)
        else:
            add_file(match, name, inside)
    found.files += sorted(inside.files, key=lambda file: file.name.parts)
    found.folders += inside.folders
    found.passed_over += inside.passed_over
    found.passed_names += inside.passed_names


def add_folder(folder: Path, name: Path, found: Listing) -> None:
    """Adds the files of a folder and its subfolders, nested to any depth, to the listing `found`. Raises
    `FileError` for a folder that cannot be read, and for a link to a folder above it.

    name: the folder's path in the listing.
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
        # DirEntry.is_dir also works for a path that is too long; os.path.isdir follows links, and is False
        # for a link to itself.
        if not (entry.is_dir(follow_symlinks=False) or os.path.isdir(path)):
            add_file(path, inner, found)
        elif not hidden(entry.name):
            here = identity(path)
            if here in above:
                raise FileError(f"{path}: this link leads back to a folder that it lies in; remove it")
            levels.append((path, inner, entries(path)))
            above.append(here)


def identity(folder: Path) -> tuple[int, int]:
    """Returns (device, inode) of a folder, which are the same for all paths to it, to find circular links."""
    with readable(folder):
        status = os.stat(folder)
    return status.st_dev, status.st_ino


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Returns an iterator of a folder's entries, sorted by name; `FileError` if it cannot be read."""
    with readable(folder), os.scandir(folder) as inside:
        return iter(sorted(inside, key=lambda entry: entry.name))


@contextmanager
def readable(folder: Path) -> Generator[None]:
    """Converts OS errors of its `with` block to a `FileError` that says that the folder cannot be read."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{folder}: the folder cannot be read ({error.strerror})") from error


def add_file(path: Path, name: Path, found: Listing) -> None:
    """Adds a file to the listing `found`, or counts it as passed over if its ending is not one of `ENDINGS`
    or a part of `name`, its path in the listing, is hidden.
    """
    if path.suffix.lower() not in ENDINGS or any(map(hidden, name.parts)):
        found.passed_over += 1
        found.passed_names += [] if any(map(hidden, name.parts)) else [name.as_posix()]
        return
    check_regular(path)
    found.files.append(InputFile(path, name))


def hidden(name: str) -> bool:
    """Tells if a file name is to be ignored, by the convention of pyarrow and Spark.

    >>> [hidden(name) for name in ("_SUCCESS", ".part.crc", "_day=1", "a.parquet")]
    [True, True, False, False]
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def check_regular(path: Path) -> None:
    """Raises `FileError` if an input path, which is no folder, is a broken link or a device."""
    if not os.path.exists(path):
        raise FileError(f"{path}: this link leads nowhere")
    if not os.path.isfile(path):
        raise FileError(f"{path}: this is a device, not a file")


def check_once(files: Iterable[InputFile]) -> None:
    """Raises `FileError` for a file that is listed twice, by links or by inputs that overlap."""
    known = dict[tuple[int, int], Path]()
    for file in files:
        status = os.stat(file.path)
        first = known.setdefault((status.st_dev, status.st_ino), file.path)
        if first is not file.path:
            raise FileError(f"{file.path}: this file is named twice, the first time as {first}")
