"""A file to read that is there, and a file to write that has its name only when it is whole."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import Any

from stepnet.errors import FileError
from stepnet.layout.options import option

NAME = 220  # bytes of a new file's name, which leaves some of 255 for the temporary one


def existing(path: str | Path) -> Path:
    """The path of a file that is there; raises `FileError` for a missing one, a folder or a device.

    >>> existing("model.bin")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.bin: there is no such file
    """
    path = Path(path)
    if not os.path.exists(path):  # Path.exists raises for some paths, such as too long ones
        raise FileError(f"{path}: there is no such file")
    if not os.path.isfile(path):
        raise FileError(f"{path}: this is no file but a {'folder' if path.is_dir() else 'device'}")
    return path


@contextmanager
def new_file(path: str | Path, force: bool = False) -> Generator[Path]:
    """A temporary path beside `path`, moved to it when the block ends well, and removed when it does not.

    Raises `FileError` where `path` is there already and `force` is not given, or where it cannot be written.
    """
    path = free(path, force)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise FileError(f"{path}: the file cannot be written ({error.strerror or error})") from error
    finally:
        if os.path.lexists(partial):
            partial.unlink()


def free(path: str | Path, force: bool = False) -> Path:
    """The path of a file that may be written; raises `FileError` for one in no folder, for a folder, and for
    one that is there already, unless `force` is given.

    >>> free("nowhere/model.bin")
    Traceback (most recent call last):
    stepnet.errors.FileError: nowhere/model.bin: the file cannot be written (there is no folder nowhere)
    """
    path = Path(path)
    if len(os.fsencode(path.name)) > NAME:
        raise FileError(f"{path}: the name is longer than {NAME} bytes")
    if os.path.isdir(path) and not os.path.islink(path):
        raise FileError(f"{path}: this is no file but a folder")
    if os.path.lexists(path) and not force:
        raise FileError(f"{path}: the file is there already; {option('force')} replaces it")
    if not os.path.isdir(path.parent):
        raise FileError(f"{path}: the file cannot be written (there is no folder {path.parent})")
    return path


def library(module: str, what: str, extra: str) -> Any:
    """A module that one kind of file needs; raises `FileError`, with how to install it, where it is missing.

    >>> library("no_such_library", "a .zzz file", "zzz")
    Traceback (most recent call last):
    stepnet.errors.FileError: a .zzz file needs no_such_library: pip install "stepnet[zzz]"
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise FileError(f'{what} needs {name}: pip install "stepnet[{extra}]"') from error


@contextmanager
def opened(path: str | Path) -> Generator[tuple[BufferedReader, int]]:
    """An existing file that is open for reading, and its size; inside it errors get the path before them."""
    path = existing(path)
    try:
        with open(path, "rb") as stream:
            yield stream, os.fstat(stream.fileno()).st_size
    except FileError as error:
        raise FileError(f"{path}: {error}") from error
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or error})") from error
