"""Reads arrays and attributes from an HDF5 file, without the HDF5 library.

1  The HDF5 library is not used, because damaged files end its process or stop it. Of 20,000 files of h5py,
   cut or with up to 16 changed bytes, HDF5 2.0 ended it by a segmentation fault at 3, and did not return
   within 10 seconds at 16. The forms that Keras and h5py write are read; some forms that only libver="latest"
   writes are refused by name.
2  Nothing outside the file is read: links to other files, soft links, external storage and virtual arrays are
   refused.
3  Every byte of the file is read at most once. Memory is allocated only for the stored bytes, times 1032 for
   deflate, its largest expansion. All memory is counted (store.py).
4  Arrays of anything but numbers (texts, references, records, bytes) are left out, and so are attributes that
   are neither texts nor numbers.
"""

import math
import struct
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.compiler.values.dtypes import native
from stepnet.errors import FileError
from stepnet.layout.files.keras import hdf5_parts as parts
from stepnet.layout.files.keras.hdf5_parts import ElementKind, FileBytes, HeaderMessage, broken
from stepnet.layout.files.paths import existing, reading
from stepnet.layout.files.store import OBJECT, Store
from stepnet.layout.files.zips import ByteRange

Array = np.ndarray
Attribute = str | tuple[str, ...] | Array
Attributes = dict[str, Attribute]
Content = tuple[dict[str, Array], dict[str, Attributes]]

OBJECTS = 1024  # approximate bytes of memory per group or array besides its numbers and its path
EXPANSION = 1032  # the largest expansion of deflate (zlib's technical details)
GZIP, SHUFFLE, CHECKSUM = 1, 2, 3  # the filters that are read, by their numbers (IV.A.2.l)
DEEPEST, LONGEST = 100, 4096


def read(path: str | Path) -> Content:
    """Reads the arrays of an HDF5 file by full path, and the attributes of each group or array by its path.

    Paths do not begin with /: the outermost group is "". Arrays own their memory and have native byte order;
    float16 and bfloat16 become float32, exactly. An attribute is a text, a tuple of texts or an array.

    Raises `FileError`, with the path, for a file that is truncated or foreign, or refers to other files.

    >>> read("weights.h5")
    Traceback (most recent call last):
    stepnet.errors.FileError: weights.h5: there is no such file
    """
    with named(path), open(existing(path), "rb") as stream:
        return content(stream)


@contextmanager
def named(path: str | Path) -> Generator[None]:
    """Puts the path of the HDF5 file in front of errors that are raised in the block; turns other errors of
    reading and parsing into a `FileError`.
    """
    with reading(path):
        try:
            yield
        except (struct.error, IndexError) as error:
            raise FileError(broken("a part of it ends too soon")) from error


def content(
    stream: BufferedReader, byte_range: ByteRange | None = None, store: Store | None = None
) -> Content:
    """Reads arrays and attributes by path from an open HDF5 file, or from the range `byte_range` of it, such
    as a zip's member. Errors have no path. store: the limit on memory; by default for the file's size.
    """
    file = parts.opened(stream, byte_range, store)
    arrays: dict[str, Array] = {}
    attributes: dict[str, Attributes] = {}
    pending, seen = [("", parts.root(file))], set[int]()
    while pending:
        path, address = pending.pop()
        if address in seen:
            raise FileError(f"{path!r} is the same object as another, which stepnet does not read")
        if path.count("/") > DEEPEST or len(path) > LONGEST:
            raise FileError(
                f"its groups are nested more than {DEEPEST} deep or have paths over {LONGEST} long"
            )
        seen.add(address)
        file.store.take(OBJECTS + 2 * len(path), "its groups and arrays")
        messages = parts.header(file, address)
        with within(path):
            own_attributes = attributes_of(file, messages)
            array = array_of(file, messages, own_attributes)
        if own_attributes:
            attributes[path] = own_attributes
        if array is not None:
            arrays[path] = array
        below = [
            (f"{path}/{name}".lstrip("/"), child) for name, child in parts.children(file, messages).items()
        ]
        file.store.take(sum(len(child_path) for child_path, _ in below), "the paths of its arrays")
        pending.extend(reversed(below))
    return arrays, attributes


@contextmanager
def within(path: str) -> Generator[None]:
    """Context that puts the path of an HDF5 object in front of the message of each `FileError`."""
    try:
        yield
    except FileError as error:
        raise FileError(f"{path!r}: {error}" if path else str(error)) from None


def attributes_of(file: FileBytes, messages: list[HeaderMessage]) -> Attributes:
    """Returns the attributes of an HDF5 object that are texts or numbers, by name; raises `FileError` if they
    are stored in a heap, the form for many attributes. messages: the messages of the object's header.
    """
    by_name: Attributes = {}
    for message in messages:
        if message.kind == parts.ATTRIBUTES and parts.large(message.body, 2):
            raise FileError(
                'its attributes are written in the large form of libver="latest"; save it without that'
            )
        if message.kind == parts.ATTRIBUTE and not message.flags & parts.SHARED:
            name, value = attribute(file, message.body)
            if value is not None:
                by_name[name] = value
    return by_name


def attribute(file: FileBytes, body: bytes) -> tuple[str, Attribute | None]:
    """Parses an HDF5 attribute message (section IV.A.2.m of the format): returns the name, and the value: a
    text, a tuple of texts or an array; None for other kinds. body: the message.
    """
    version, flags, *sizes = struct.unpack_from("<BBHHH", body)
    if version not in (1, 2, 3):
        raise broken(f"an attribute has version {version}")
    here, pieces = 9 if version == 3 else 8, list[bytes]()
    for size in sizes:
        pieces.append(body[here : here + size])
        here += size + (-size % 8 if version == 1 else 0)
    name, data = parts.text(pieces[0].partition(b"\0")[0]), body[here:]
    if version > 1 and flags:  # its kind or shape is a shared message
        return name, None
    kind, shape = parts.kind_of(pieces[1]), parts.shape_of(pieces[2])
    if shape is None or (kind.dtype is None and kind.text is None):
        return name, None
    count = parts.count_of(shape, kind.size, len(data))
    if kind.text is None:
        return name, native(np.frombuffer(data, kind.dtype, count).reshape(shape))
    file.store.take(count * OBJECT, "the texts of its attributes")
    texts = tuple(kind.text(file, data[at : at + kind.size]) for at in range(0, count * kind.size, kind.size))
    return name, texts if shape else texts[0]


def array_of(file: FileBytes, messages: list[HeaderMessage], attributes: Attributes) -> Array | None:
    """Reads the array of an HDF5 object; None for a group, and for an array of anything but numbers. Raises
    `FileError` for numbers that are not in this file, or that NumPy lacks.

    messages: of the object's header. attributes: the object's, where Keras marks bfloat16.
    """
    by_kind = {message.kind: message for message in messages}
    if parts.LAYOUT not in by_kind or parts.KIND not in by_kind or parts.SHAPE not in by_kind:
        return None
    if parts.ELSEWHERE in by_kind:
        raise FileError("its numbers lie in another file, which stepnet does not read")
    if by_kind[parts.KIND].flags & parts.SHARED:
        raise FileError("its kind of numbers is named in another place, which stepnet does not read")
    kind, shape = parts.kind_of(by_kind[parts.KIND].body), parts.shape_of(by_kind[parts.SHAPE].body)
    if kind.size == 2 and kind.dtype is None and attributes.get("dtype") == "bfloat16":
        kind = ElementKind(2, np.dtype(ml_dtypes.bfloat16))  # Keras marks it so, as HDF5 had no such kind
    if kind.dtype is None and by_kind[parts.KIND].body[0] & 0x0F in (0, 1):
        raise FileError(f"it holds numbers of {kind.size} bytes that NumPy lacks; save it as float32")
    if kind.dtype is None or shape is None:
        return None
    filters = filters_of(by_kind[parts.FILTERS].body) if parts.FILTERS in by_kind else []
    return native(stored_array(file, by_kind[parts.LAYOUT].body, shape, kind.dtype, filters))


def stored_array(
    file: FileBytes, body: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], filters: list[int]
) -> Array:
    """Reads the numbers of an array in an HDF5 file, as its layout message (section IV.A.2.i of the format)
    states: from the message itself, from one contiguous range, or from blocks.

    body: the layout message. shape, dtype: of the array. filters: the numbers of the filters that pack the
    blocks. Raises `FileError` for other forms, and for an array of other files.
    """
    version, layout_class = body[0], body[1]
    if version not in (3, 4) or layout_class > 3 or (version, layout_class) == (4, 2):
        raise FileError(
            f'it is laid out in form {layout_class} of version {version}; save it without libver="latest"'
        )
    if layout_class == 3:
        raise FileError("it is virtual, made of arrays of other files, which stepnet does not read")
    if layout_class == 2:
        return chunked_array(file, body, shape, dtype, filters)
    if layout_class == 0:
        data = body[4 : 4 + struct.unpack_from("<H", body, 2)[0]]
        return np.frombuffer(data, dtype, parts.count_of(shape, dtype.itemsize, len(data))).reshape(shape)
    at, size = struct.unpack_from("<QQ", body, 2)
    parts.count_of(shape, dtype.itemsize, 0 if at == parts.NOWHERE else min(size, file.left))
    file.store.take(math.prod(shape) * dtype.itemsize, "its numbers")
    array = np.empty(shape, dtype)
    if array.size:
        file.fill(array, at)
    return array


def chunked_array(
    file: FileBytes, body: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], filters: list[int]
) -> Array:
    """Reads an array that an HDF5 file stores in blocks of equal shape, each packed separately; raises
    `FileError` if a block is missing or damaged.

    body: the layout message, which states where the blocks are. shape, dtype: of the array. filters: the
    numbers of the filters that pack a block, such as gzip.
    """
    rank, tree = struct.unpack_from("<BQ", body, 2)
    if rank != len(shape) + 1 or rank < 2:
        raise broken(f"its blocks have {rank - 1} dimensions of {len(shape)}")
    *block, width = struct.unpack_from(f"<{rank}I", body, 11)
    if width != dtype.itemsize or 0 in block:
        raise broken(f"its blocks are {block} of {width} bytes")
    blocks: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for leaf in parts.leaves(file, tree, 1, 8 + 8 * rank) if tree != parts.NOWHERE else ():
        size, mask, *corner = struct.unpack(f"<II{rank}Q", leaf.key)
        file.store.take(2 * OBJECT + 8 * rank, "the blocks of its numbers")
        blocks[tuple(corner[:-1])] = (leaf.child, size, mask)
    factor = EXPANSION if GZIP in filters else 1
    parts.count_of(shape, width, factor * min(file.left, sum(size for _, size, _ in blocks.values())))
    if len(blocks) != math.prod(-(-n // step) for n, step in zip(shape, block, strict=True)):
        raise broken(f"it has {len(blocks)} blocks of {block}")
    file.store.take(math.prod(shape) * width, "its numbers")
    copies = 4 * math.prod(block) * width  # copies of a block while it is unpacked
    file.store.take(copies, "a block of its numbers")
    array = np.empty(shape, dtype)
    for corner, (at, size, mask) in blocks.items():
        if any(start >= n or start % step for start, n, step in zip(corner, shape, block, strict=True)):
            raise broken(f"a block of it lies at {corner}")
        count = parts.count_of(tuple(block), width, factor * size)
        used = [number for index, number in enumerate(filters) if not mask >> index & 1]
        data = unpacked(file.take(at, size), used, count * width, width)
        inside = array[tuple(slice(start, start + step) for start, step in zip(corner, block, strict=True))]
        inside[...] = np.frombuffer(data, dtype).reshape(block)[tuple(map(slice, inside.shape))]
    file.store.give_back(copies)
    return array


def filters_of(body: bytes) -> list[int]:
    """Parses an HDF5 filter pipeline message, `body` (section IV.A.2.l of the format): returns the numbers of
    the filters that pack an array, such as gzip, in the order of their use; raises `FileError` for filters
    that are not read.
    """
    version, count = body[0], body[1]
    position, numbers = 8 if version == 1 else 2, list[int]()
    for _ in range(count):
        number = struct.unpack_from("<H", body, position)[0]
        start = 8 if version == 1 or number >= 256 else 6  # the length of a name is there, or not
        length = struct.unpack_from("<H", body, position + 2)[0] if start == 8 else 0
        values = struct.unpack_from("<H", body, position + start - 2)[0]
        position += start + length + -length % 8 * (version == 1) + 4 * values
        position += 4 * (values % 2) * (version == 1)
        numbers.append(number)
    unknown = set(numbers) - {GZIP, SHUFFLE, CHECKSUM}
    if unknown or numbers.count(GZIP) > 1:
        raise FileError(f"it is packed by filter {max(unknown, default=GZIP)}; save it with gzip or unpacked")
    return numbers


def unpacked(data: bytes, filters: list[int], size: int, width: int) -> bytes:
    """Undoes the filters (compression and the like) of a block of an HDF5 array; raises `FileError` unless it
    then has `size` bytes.

    filters: their numbers, in the order in which they were applied. width: the bytes of an element.
    """
    for number in reversed(filters):
        if number == CHECKSUM:  # not verified: deflate has a checksum of its own
            data = data[:-4]
        elif number == GZIP:
            data = inflated(data, size + 4)
        else:
            end = len(data) // width * width
            data = np.frombuffer(data[:end], np.uint8).reshape(width, -1).T.tobytes() + data[end:]
    if len(data) != size:
        raise broken(f"a block of it has {len(data)} bytes of {size}")
    return data


def inflated(data: bytes, limit: int) -> bytes:
    """Decompresses an HDF5 block of deflate data, up to `limit` bytes; raises `FileError` if damaged."""
    try:
        return zlib.decompressobj().decompress(data, limit)
    except zlib.error as error:
        raise broken(f"a block of it: {error}") from error
