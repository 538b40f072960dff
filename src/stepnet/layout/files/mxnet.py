"""Reads and writes the .params files of MXNet as arrays by name, without MXNet.

Source: src/ndarray/ndarray.cc of MXNet 1.9 (NDArray::Save, Load and LegacyLoad), the kinds of numbers of
3rdparty/mshadow/mshadow/base.h, and its list of arrays:

    uint64 0x112, uint64 0, uint64 count, the arrays, uint64 count, each name: uint64 length, its bytes
    array V2: uint32 0xF993FAC9, int32 storage (0: dense), shape, int32 device type, int32 device,
              int32 dtype, data;  shape: uint32 axes, each int64
    array V3: as V2; a shape of -1 axes, or with an axis of -1, is unknown
    array V1: uint32 0xF993FAC8, shape as in V2;  the oldest: the shape alone, its sizes in 32 bits
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files.paths import existing, new_file, reading
from stepnet.layout.files.store import OBJECT, Store

Array = np.ndarray[Any, np.dtype[Any]]

LIST, FIRST, SECOND, THIRD = 0x112, 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DENSE, CPU = 0, 1
NAMES = ("<f4", "<f8", "<f2", "<u1", "<i4", "<i1", "<i8", "?", "<i2", "<u2", "<u4", "<u8")
DTYPES = {
    **{code: np.dtype(name) for code, name in enumerate(NAMES)},
    12: np.dtype(ml_dtypes.bfloat16),
}
MOST_AXES = 32
PARTS = 3  # Python objects per array: the array, its name and its entry in a dictionary
MOST_NUMBERS = 1 << 56  # the most that NumPy allows, where empty axes count as 1
PREFIXES = ("arg:", "aux:")  # of the names of a symbol's arguments and states; removed


class ByteReader:
    """A cursor over the bytes of a .params file."""

    def __init__(self, data: Array, store: Store) -> None:
        """Starts at the first byte of a .params file, `data`; store: the limit on memory."""
        self.data, self.store = data, store
        self.position = 0

    def numbers(self, struct_format: str) -> tuple[Any, ...]:
        """Reads the next little-endian numbers of an MXNet file; struct_format: their types for `struct`."""
        return struct.unpack(f"<{struct_format}", self.take(struct.calcsize(f"<{struct_format}")).tobytes())

    def take(self, count: int) -> Array:
        """Reads the next `count` bytes of an MXNet file as a view; `FileError` if fewer are left."""
        if count < 0 or count > len(self.data) - self.position:
            raise FileError(f"the file ends within {count} bytes at byte {self.position}")
        self.position += count
        return self.data[self.position - count : self.position]


def read(path: str | Path) -> dict[str, Array]:
    """Reads the arrays of a .params file by name, as views of its bytes; drops the prefixes `arg:` and
    `aux:`.

    Raises `FileError`, with the path, for a file that is truncated or foreign, for sparse arrays, and for
    arrays without names.

    >>> read("model.params")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.params: there is no such file
    """
    path = existing(path)
    with reading(path):
        size = path.stat().st_size
        store = Store(None, size)
        store.take(size, "its bytes")
        return arrays_of(ByteReader(np.fromfile(path, np.uint8), store))


def arrays_of(source: ByteReader) -> dict[str, Array]:
    """Reads the list of arrays that a .params file consists of, and returns the arrays by name, without those
    that have no numbers. Raises `FileError` for a list without names, and for two of the same name. source: a
    reader at the start of the file.
    """
    kind, _, count = source.numbers("QQQ") if len(source.data) >= 24 else (0, 0, 0)
    if kind != LIST:
        raise FileError("this is not a .params file of MXNet: it does not begin as a list of arrays does")
    if count > len(source.data) // 8:
        raise FileError(f"it claims {count} arrays, which it cannot hold")
    arrays = [array_of(source) for _ in range(count)]
    (named,) = source.numbers("Q")
    if count and not named:
        raise FileError("its arrays have no names, without which no layer can be recognised")
    if named != count:
        raise FileError(f"it has {count} arrays and {named} names")
    names: list[str] = []
    for _ in range(count):
        (length,) = source.numbers("Q")
        names.append(source.take(length).tobytes().decode("utf-8", "backslashreplace"))
    by_name: dict[str, Array] = {}
    for name, array in zip(names, arrays, strict=True):
        short = name[4:] if name.startswith(PREFIXES) else name
        if short in by_name:
            raise FileError(f"it has two arrays of the name {short[:100]!a}")
        if array is not None:
            by_name[short] = array
    return by_name


def array_of(source: ByteReader) -> Array | None:
    """Reads the next array of a .params file, in any of MXNet's formats; None for an array that was saved
    without numbers. Raises `FileError` for sparse arrays and unknown dtypes. source: a reader at the array,
    which is left behind it.
    """
    (magic,) = source.numbers("I")
    if magic in (SECOND, THIRD):
        (storage,) = source.numbers("i")
        if storage != DENSE:
            raise FileError(f"an array in it is sparse (storage type {storage}), which is not read")
        (axes,) = source.numbers("i")
        shape = sizes(source, axes, "q", unknown=magic == THIRD)
    elif magic == FIRST:
        shape = sizes(source, source.numbers("i")[0], "q")
    else:
        shape = sizes(source, magic, "I")
    if shape is None or (not shape and magic != THIRD):
        return None
    source.numbers("ii")  # the device that the array was on
    (code,) = source.numbers("i")
    if code not in DTYPES:
        raise FileError(f"an array in it has the dtype {code}, which is not read")
    dtype = DTYPES[code]
    numbers = source.take(math.prod(shape) * dtype.itemsize)
    source.store.take(PARTS * OBJECT, "its arrays")
    if numbers.ctypes.data % dtype.itemsize:  # not aligned; NumPy's own arrays always are
        source.store.take(numbers.nbytes, "its arrays")
        numbers = numbers.copy()
    array = numbers.view(dtype)
    return array.reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def sizes(source: ByteReader, axes: int, struct_format: str, unknown: bool = False) -> tuple[int, ...] | None:
    """Reads the shape of an array with `axes` axes from a .params file of MXNet; None for an unknown shape.

    struct_format: the type of each length, as for `struct`. unknown: True if the file's format allows unknown
    shapes, marked by -1. Raises `FileError` for a shape that the file cannot hold.
    """
    if unknown and axes == -1:
        return None
    if not 0 <= axes <= MOST_AXES:
        raise FileError(f"an array in it claims {axes} axes")
    shape = source.numbers(f"{axes}{struct_format}") if axes else ()
    if unknown and -1 in shape:
        return None
    wide = math.prod(max(1, size) for size in shape) > MOST_NUMBERS
    if min(shape, default=0) < 0 or wide or math.prod(shape) > len(source.data):
        raise FileError(f"an array in it claims the shape {shape}, which the file cannot hold")
    return shape


def write(path: str | Path, arrays: Mapping[str, Array], force: bool = False) -> None:
    """Writes arrays by name to a .params file in the format V2 of MXNet 1, which `mxnet.nd.load` reads.

    Raises `FileError`, with the path, for dtypes that MXNet lacks, and if the file exists, unless `force`.
    """
    codes = {dtype.newbyteorder("="): code for code, dtype in DTYPES.items()}
    for name, array in arrays.items():
        if array.dtype.newbyteorder("=") not in codes:
            raise FileError(f"{path}: {name!r} holds {array.dtype.name}, which MXNet does not have")
        if not array.ndim:
            raise FileError(f"{path}: {name!r} has no axes, which an array of MXNet 1 has")
    with new_file(path, force) as partial, open(partial, "wb") as stream:
        stream.write(struct.pack("<QQQ", LIST, 0, len(arrays)))
        for array in arrays.values():
            code = codes[array.dtype.newbyteorder("=")]
            stream.write(struct.pack("<Iii", SECOND, DENSE, array.ndim))
            stream.write(struct.pack(f"<{array.ndim}q", *array.shape))
            stream.write(struct.pack("<iii", CPU, 0, code))
            np.ascontiguousarray(array, DTYPES[code]).tofile(stream)
        stream.write(struct.pack("<Q", len(arrays)))
        for name in arrays:
            encoded = name.encode()
            stream.write(struct.pack("<Q", len(encoded)) + encoded)
