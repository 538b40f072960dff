"""Paths of files to read, and new files that appear under their names only when they are complete."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from threading import get_native_id
from typing import Any

from stepnet.compiler.values.arguments import file_path
from stepnet.compiler.values.entry_points import imported
from stepnet.compiler.values.renaming import IN_USE, MAPPED, replace_file
from stepnet.errors import FileError, pip_command
from stepnet.layout.options import option

SAVED_PRETRAINED = (
    "; a model of transformers is loaded there, by from_pretrained, and stepnet.torch.accelerate(model) runs "
    "its layers"
)
"""The advice for a folder that `save_pretrained` of transformers wrote."""
NAME = 220  # the most bytes of a new file's name: the temporary name is longer, up to 255


def existing(path: str | Path) -> Path:
    """Returns the path of a file to read; raises `FileError` for a missing file, a folder or a device.

    >>> existing("model.bin")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.bin: there is no such file
    """
    # A Path may come from a name in another file, which is not checked: it is only reported as missing.
    path = path if isinstance(path, Path) else file_path(path)
    if not os.path.exists(path):  # Path.exists raises for some paths, such as too long ones
        raise FileError(f"{path}: there is no such file")
    if not os.path.isfile(path):
        kind = "folder" if path.is_dir() else "device"
        advice = SAVED_PRETRAINED if os.path.isfile(path / "config.json") else ""
        raise FileError(f"{path}: this is a {kind}, not a file{advice}")
    return path


@contextmanager
def new_file(path: str | Path, force: bool = False) -> Generator[Path]:
    """Yields a temporary path beside `path`, moved to `path` when the block ends, and removed if it raises.

    Raises `FileError` if `path` exists, unless `force`, and if it cannot be written. On Windows that is also
    while an array of a model that was loaded from `path` lives in any process.
    """
    path = free(path, force)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{get_native_id()}.partial")
    try:
        yield partial
        replace_file(partial, path)
    except OSError as error:
        in_use = getattr(error, "winerror", None) in (*IN_USE, MAPPED) and os.path.exists(path)
        cure = "; while a model that was loaded from it is in use, write to another name" if in_use else ""
        raise FileError(f"{path}: the file cannot be written ({error.strerror or error}){cure}") from error
    finally:
        if os.path.lexists(partial):
            with suppress(
                PermissionError
            ):  # another program has it open; the first error is the one to raise
                partial.unlink()


def free(path: str | Path, force: bool = False) -> Path:
    """Returns the path of a file that may be written.

    Raises `FileError` for a path in a missing folder, for a folder or a device, and for an existing file,
    unless `force`.

    >>> free("nowhere/model.bin")
    Traceback (most recent call last):
    stepnet.errors.FileError: nowhere/model.bin: the file cannot be written (there is no folder nowhere)
    """
    path = file_path(path)
    if len(os.fsencode(path.name)) > NAME:
        raise FileError(f"{path}: the name is longer than {NAME} bytes")
    if os.path.lexists(path) and not os.path.islink(path) and not os.path.isfile(path):
        raise FileError(f"{path}: this is a {'folder' if os.path.isdir(path) else 'device'}, not a file")
    if os.path.lexists(path) and not force:
        raise FileError(f"{path}: the file is there already; {option('force')} replaces it")
    if not os.path.isdir(path.parent):
        raise FileError(f"{path}: the file cannot be written (there is no folder {path.parent})")
    return path


def library(module: str, what: str, extra: str) -> Any:
    """Imports a Python library that a kind of file needs; raises `FileError`, with the command that installs
    it, if it is missing.

    module: the name of the library. what: the kind of file, for the message. extra: the extra of stepnet's
    package that installs the library.

    >>> library("no_such_library", "a .zzz file", "zzz")
    Traceback (most recent call last):
    stepnet.errors.FileError: a .zzz file needs no_such_library: pip install "stepnet[zzz]"
    """
    try:
        return imported(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise FileError(f"{what} needs {name}: {pip_command(f'stepnet[{extra}]')}") from error


@contextmanager
def reading(path: str | Path, prefix: str | None = None) -> Generator[None]:
    """Puts the path of a file that is read in front of `FileError`s from the `with` block that do not have it
    yet, and makes errors of the system to `FileError`s.

    prefix: the beginning of messages that have a path already; None for that of this file.
    """
    try:
        yield
    except FileError as error:
        has_path = str(error).startswith(prefix or f"{path}: ")
        raise FileError(str(error) if has_path else f"{path}: {error}") from None
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or error})") from error


@contextmanager
def opened(path: str | Path) -> Generator[tuple[BufferedReader, int]]:
    """Opens a file; yields the stream and its size. A `FileError` in the block gets the path in front."""
    path = existing(path)
    with reading(path), open(path, "rb") as stream:
        yield stream, os.fstat(stream.fileno()).st_size
