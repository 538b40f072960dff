"""Reads and writes .npz files as arrays by name. Nothing is unpickled, and memory is limited.

1  Members are listed twice: by zips.py, which checks that they fit the file, and by Python's zipfile, which
   unpacks them. A zip for which the two lists differ is refused.
2  NumPy evaluates a member's header as Python. Here only headers in the form that NumPy writes are accepted.

Source: numpy/lib/format.py for a member, APPNOTE.TXT (PKWARE) for the zip around it.
"""

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from stepnet.errors import FileError
from stepnet.layout.files import zips
from stepnet.layout.files.paths import existing, new_file
from stepnet.layout.files.store import Store

Array = np.ndarray[Any, np.dtype[Any]]

MAGIC = b"\x93NUMPY"
HEADER = 1 << 16  # the most bytes of a member's header
FIELD = re.compile(r"'(descr|fortran_order|shape)':('[^']*'|\[[^\]]*\]|True|False|\([0-9L,]*\)),?")
DTYPE = re.compile(r"'([<>|=][biufc][0-9]{1,2})'")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, OverflowError),
    *(ValueError, RuntimeError, NotImplementedError, TypeError, MemoryError),
)
NUMBERS = "biufc"


def read(path: str | Path) -> dict[str, Array]:
    """Reads the arrays of a .npz file by name, in this machine's byte order.

    Raises `FileError`, with the path, for a file that is truncated or foreign, and for arrays of objects,
    which are pickles.

    >>> read("model.npz")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.npz: there is no such file
    """
    path = existing(path)
    arrays: dict[str, Array] = {}
    try:
        size = path.stat().st_size
        store = Store(path, size)
        with open(path, "rb") as stream:
            listed = zips.members(stream, size)  # `members` checks that they fit the file and share no bytes
            with zipfile.ZipFile(stream) as archive:
                infos = archive.infolist()
                ranges = sorted((info.header_offset, info.compress_size) for info in infos)
                if ranges != sorted(
                    (listed_member.byte_range.start, listed_member.byte_range.size)
                    for listed_member in listed.values()
                ):
                    raise FileError("its zip has two lists of members")
                for info in infos:
                    name = info.filename.removesuffix(".npy")
                    if name in arrays:
                        raise FileError(f"it has two arrays of the name {name[:100]!a}")
                    arrays[name] = member(archive, info, store)
    except FileError as error:
        named = str(error).startswith(f"{path}: ")
        raise FileError(str(error) if named else f"{path}: {error}") from None
    except BROKEN as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(f"{path}: this is not a complete .npz file ({reason})") from error
    return arrays


def member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, store: Store) -> Array:
    """Reads one array of an open .npz file, the member `info` of its zip, and counts its memory in `store`,
    the limit on memory. Raises `FileError` if the member is no array of numbers as NumPy writes it.
    """
    member_name = f"its member {info.filename[:100]!a}"
    if not info.filename.endswith(".npy"):
        raise FileError(f"{member_name} is not an array")
    if info.compress_type not in METHODS:
        raise FileError(f"{member_name} is compressed as NumPy never does")
    with archive.open(info) as stream:
        shape, fortran, descr = header(member_name, stream)
        number_type = DTYPE.fullmatch(descr)
        if number_type is None:
            raise FileError(f"{member_name} holds {descr[:100]}, and not numbers")
        dtype = np.dtype(number_type[1])
        size = math.prod(shape) * dtype.itemsize
        if size > info.file_size:
            raise FileError(f"{member_name} claims the shape {str(shape)[:100]}, which it cannot hold")
        store.take(size, f"its array {info.filename[:100]!a}")
        array = np.empty(shape[::-1] if fortran else shape, dtype)
        if read_into(stream, array) != size or stream.read(1):
            raise FileError(f"{member_name} has more or fewer bytes than its array")
    array = array.T if fortran else array
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def header(member_name: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, str]:
    """Reads the header of an .npy array: returns its shape, True for Fortran order, and its dtype as text.

    member_name: the array's name, for messages. Raises `FileError` unless it is as NumPy writes headers.
    """
    start = stream.read(len(MAGIC) + 2)
    if len(start) != len(MAGIC) + 2 or not start.startswith(MAGIC) or start[-2] not in (1, 2, 3):
        raise FileError(f"{member_name} is not an array of NumPy")
    wide = 2 if start[-2] == 1 else 4
    length = int.from_bytes(stream.read(wide), "little")
    text = stream.read(length) if length <= HEADER else b""
    compact = "".join(text.decode("latin-1").split())
    fields = dict(FIELD.findall(compact))
    if len(text) != length or FIELD.sub("", compact) != "{}" or len(fields) != 3:
        raise FileError(f"{member_name} has no header as NumPy writes one")
    sizes = fields["shape"].strip("()").split(",")
    return tuple(int(n.rstrip("L")) for n in sizes if n), fields["fortran_order"] == "True", fields["descr"]


def read_into(stream: IO[bytes], array: Array) -> int:
    """Fills an array with numbers from a stream; returns the number of bytes read, up to the stream's end."""
    view = memoryview(array.reshape(-1).view(np.uint8).data) if array.size else memoryview(b"")
    count_read = 0
    while count_read < len(view):
        count = cast("Any", stream).readinto(view[count_read : count_read + (1 << 20)])
        if not count:
            break
        count_read += count
    return count_read


def write(path: str | Path, arrays: Mapping[str, Array], force: bool = False) -> None:
    """Writes arrays by name as an uncompressed .npz file, which numpy.load reads.

    Raises `FileError`, with the path, for dtypes that NumPy cannot store, for a name that leads out of the
    folder where the file is unpacked, and if the file exists, unless `force`.
    """
    for name, array in arrays.items():
        if ".." in re.split(r"[/\\]", name):
            raise FileError(
                f"{path}: {name!r} would lead out of the folder in which the .npz file is unpacked"
            )
        is_numpys = issubclass(array.dtype.type, np.number | np.bool_)  # bfloat16 is not
        if array.dtype.kind not in NUMBERS or not is_numpys:
            raise FileError(f"{path}: {name!r} holds {array.dtype.name}, which .npz files do not have")
    with new_file(path, force) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                npy.write_array(stream, np.asarray(array), allow_pickle=False)
