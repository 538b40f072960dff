"""Arrays by name out of and into .npz files, with nothing unpickled and no more taken than the file can hold.

Source: numpy/lib/format.py for a member, APPNOTE.TXT (PKWARE) for the zip around it.
"""

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from stepnet.errors import FileError
from stepnet.files import zips
from stepnet.files.paths import existing, new_file

Array = np.ndarray[Any, np.dtype[Any]]

SHRINKS = 1032  # times at most: what deflate can do
HEADER = 1 << 16  # bytes of a member's header
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
    *(ValueError, EOFError, OSError, RuntimeError, NotImplementedError, SyntaxError, TypeError, MemoryError),
)
NUMBERS = "?biufc"


def read(path: str | Path) -> dict[str, Array]:
    """The arrays of a .npz file by name, in this machine's byte order.

    Raises `FileError`, with the path, for what is truncated or foreign, and for arrays of objects, which are
    pickles.

    >>> read("model.npz")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.npz: there is no such file
    """
    path = existing(path)
    try:
        with open(path, "rb") as stream:
            zips.members(stream, path.stat().st_size)  # as many as it can hold, each of another name
            with zipfile.ZipFile(stream) as archive:
                return {
                    info.filename.removesuffix(".npy"): member(archive, info) for info in archive.infolist()
                }
    except FileError as error:
        raise FileError(f"{path}: {error}") from error.__cause__
    except BROKEN as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(f"{path}: this is no whole .npz file ({reason})") from error


def member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """One array of an open file."""
    if not info.filename.endswith(".npy"):
        raise FileError(f"its member {info.filename[:100]!a} is no array")
    if info.file_size > info.compress_size * SHRINKS + HEADER:
        raise FileError(
            f"its member {info.filename[:100]!a} claims {info.file_size} bytes, which it cannot hold"
        )
    with archive.open(info) as stream:
        shape, fortran, dtype = header(stream)
        if dtype.kind not in NUMBERS:
            raise FileError(f"its member {info.filename[:100]!a} holds {dtype}, and not numbers")
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size > info.file_size:
            raise FileError(
                f"its member {info.filename[:100]!a} claims the shape {shape}, which it cannot hold"
            )
        array = np.empty(shape[::-1] if fortran else shape, dtype)
        if read_into(stream, array) != size or stream.read(1):
            raise FileError(f"its member {info.filename[:100]!a} has not the size of its array")
    array = array.T if fortran else array
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, the order and the dtype of a member."""
    version = npy.read_magic(stream)
    known = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in known:
        raise FileError(f"a member is of version {version[0]}.{version[1]} of its format, which is not read")
    return cast("Any", known[version])(stream, max_header_size=HEADER)


def read_into(stream: IO[bytes], array: Array) -> int:
    """How many bytes there were for an array, after they were read."""
    view = memoryview(cast("Any", array.reshape(-1).view(np.uint8))) if array.size else memoryview(b"")
    done = 0
    while done < len(view):
        count = cast("Any", stream).readinto(view[done : done + (1 << 24)])
        if not count:
            break
        done += count
    return done


def write(path: str | Path, arrays: Mapping[str, Array], force: bool = False) -> None:
    """Writes arrays by name as an uncompressed .npz file, which numpy.load reads.

    Raises `FileError`, with the path, where the file is there already and `force` is not given.
    """
    with new_file(path, force) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, array in arrays.items():
            if array.dtype.kind not in NUMBERS:  # such as bfloat16, which NumPy's format has no name for
                raise FileError(f"{path}: {name!r} holds {array.dtype.name}, which .npz files do not have")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                npy.write_array(stream, np.asarray(array), allow_pickle=False)
