"""The parts of an HDF5 file: its bytes, object headers, names in groups, texts, shapes, kinds of numbers.

Functions raise `FileError` with the short fact, and `struct.error` or `IndexError` if a part ends too early;
the public reader in hdf5.py adds the path. Numbers such as IV.A.2.i, there and here, are sections of the HDF5
File Format Specification, version 3.0.
"""

import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import field
from io import BufferedReader
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.store import OBJECT, Store
from stepnet.layout.files.zips import ByteRange

SIGNATURE = b"\x89HDF\r\n\x1a\n"
NOWHERE = (1 << 64) - 1  # the undefined address

# Kinds of messages in an object header (IV.A.2) that are read.
SHAPE, LINKS, KIND, LINK, ELSEWHERE, LAYOUT, FILTERS, ATTRIBUTE, MORE, GROUP, ATTRIBUTES = (
    *(0x01, 0x02, 0x03, 0x06, 0x07, 0x08, 0x0B, 0x0C, 0x10, 0x11, 0x15),
)
SHARED = 0x02  # a message's flag: its content is in another place

# Parts of floating-point numbers (IV.A.2.d): precision, exponent's and mantissa's places and sizes, bias.
FLOATS: dict[tuple[int, ...], np.dtype[Any]] = {
    (16, 10, 5, 0, 10, 15): np.dtype(np.float16),
    (16, 7, 8, 0, 7, 127): np.dtype(ml_dtypes.bfloat16),
    (32, 23, 8, 0, 23, 127): np.dtype(np.float32),
    (64, 52, 11, 0, 52, 1023): np.dtype(np.float64),
}
LONGEST = 4096  # the most bytes of a name


@dataclass
class FileBytes:
    """The bytes of an HDF5 file, each of which may be taken once, and the limit on memory.

    Parts of a sound file do not overlap. If more bytes are taken than it has, its addresses lead in circles.
    """

    stream: BufferedReader
    start: int
    size: int
    left: int
    store: Store
    texts: dict[int, dict[int, bytes]] = field(default_factory=dict[int, dict[int, bytes]])

    def take(self, at: int, length: int) -> bytes:
        """Reads `length` bytes of an HDF5 file from position `at` on. They count as read: if more bytes are
        read than the file has, it is damaged, and `FileError` is raised.
        """
        self.spend(at, length)
        return self.peek(at, length)

    def peek(self, at: int, length: int) -> bytes:
        """Reads `length` bytes of an HDF5 file from position `at` on, to look ahead. Unlike bytes of `take`,
        they do not count as read; the total count is limited by the size of the file.
        """
        self.check(at, length)
        self.stream.seek(self.start + at)
        return self.stream.read(length)

    def fill(self, array: np.ndarray, at: int) -> None:
        """Fills a contiguous array with bytes of an HDF5 file from position `at` on, which count as read."""
        self.spend(at, array.nbytes)
        self.stream.seek(self.start + at)
        self.stream.readinto(array.reshape(-1).view(np.uint8).data)

    def spend(self, at: int, length: int) -> None:
        """Counts `length` bytes at position `at` of an HDF5 file as read, each of which is needed once.
        Raises `FileError` if more bytes are read in all than the file has, because its addresses then overlap
        or lead in circles.
        """
        self.check(at, length)
        self.left -= length
        if self.left < 0:
            raise broken("parts of it overlap or lead in circles")

    def check(self, at: int, length: int) -> None:
        """Raises `FileError` if an HDF5 file has no `length` bytes from `at` on, as it is cut off."""
        if at + length > self.size:
            raise broken(f"a part of it lies at {at} to {at + length}, and it has {self.size} bytes")

    def tagged(self, at: int, length: int, tag: bytes) -> bytes:
        """Reads `length` bytes of an HDF5 file from position `at` on; raises `FileError` unless they begin
        with `tag`, the mark of a structure of the format.
        """
        data = self.take(at, length)
        if not data.startswith(tag):
            raise broken(f"there is no {tag.decode()} at {at}")
        return data


def broken(reason: str) -> FileError:
    """Returns the error for a file that breaks the rules of HDF5; reason: how, for the message."""
    return FileError(f"this is not a complete HDF5 file ({reason})")


def opened(
    stream: BufferedReader, byte_range: ByteRange | None = None, store: Store | None = None
) -> FileBytes:
    """Makes a reader of the bytes of an HDF5 file, or of the range `byte_range` of an open file. Nothing is
    read yet. store: the limit on memory; by default one for the number of bytes.
    """
    byte_range = byte_range or ByteRange(0, stream.seek(0, os.SEEK_END))
    return FileBytes(
        stream, byte_range.start, byte_range.size, byte_range.size, store or Store(None, byte_range.size)
    )


def root(file: FileBytes) -> int:
    """Returns the address of the object header of the outermost group, from the file's superblock (section
    II.A of the format); raises `FileError` for a file that is no HDF5, is cut off, or has addresses of
    another form.
    """
    start = file.peek(0, min(file.size, 100))
    if not start.startswith(SIGNATURE):
        raise FileError("this is not an HDF5 file: it does not begin as one")
    version = start[8]
    if version > 3:
        raise FileError(f"the file has version {version} of HDF5's superblock, and stepnet reads 0 to 3")
    offsets, lengths = struct.unpack_from("<BB", start, 13 if version < 2 else 9)
    if (offsets, lengths) != (8, 8):
        raise FileError(
            f"the file's addresses have {offsets} bytes and its lengths {lengths}, and stepnet reads 8"
        )
    base, _, end, last = struct.unpack_from("<QQQQ", start, {0: 24, 1: 28}.get(version, 12))
    if base:
        raise FileError("the file's addresses do not count from its beginning, which stepnet does not read")
    if end > file.size:
        raise broken(f"it has {file.size} bytes of {end}")
    return last if version >= 2 else struct.unpack_from("<Q", start, 64 + 4 * version)[0]


# Object headers


@dataclass(frozen=True, slots=True)
class HeaderMessage:
    """A message of an HDF5 object header: one property of an object, such as its shape or dtype."""

    kind: int
    flags: int
    body: bytes


def header(file: FileBytes, at: int) -> list[HeaderMessage]:
    """Reads the messages (records of an object's properties) of the HDF5 object header at address `at`, also
    those in further blocks; section IV.A.1 of the format. Raises `FileError` if there is no header.
    """
    if file.peek(at, 4) == b"OHDR":
        return modern_header(file, at)
    start = file.take(at, 16)
    if start[0] != 1:
        raise broken(f"there is no object header at {at}")
    blocks, messages = [(at + 16, struct.unpack_from("<I", start, 8)[0])], list[HeaderMessage]()
    while blocks:
        data, here = file.take(*blocks.pop(0)), 0
        while here + 8 <= len(data):
            kind, size, flags = struct.unpack_from("<HHB", data, here)
            file.store.take(OBJECT, "its headers")
            messages.append(HeaderMessage(kind, flags, data[here + 8 : here + 8 + size]))
            if kind == MORE:
                blocks.append(struct.unpack_from("<QQ", messages[-1].body))
            here += 8 + size
    return messages


def modern_header(file: FileBytes, at: int) -> list[HeaderMessage]:
    """Reads the messages (records of an object's properties) of the HDF5 object header of version 2 at
    address `at`, in further blocks too; section IV.A.1.b of the format.
    """
    flags = file.peek(at, 6)[5]
    before = 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
    width = 1 << (flags & 3)
    size = int.from_bytes(file.take(at, before + width)[before:], "little")
    blocks, messages = [(at + before + width, size)], list[HeaderMessage]()
    ordered = 2 * bool(flags & 0x04)
    while blocks:
        data, here = file.take(*blocks.pop(0)), 0
        while here + 4 + ordered <= len(data):
            kind, size, marks = struct.unpack_from("<BHB", data, here)
            file.store.take(OBJECT, "its headers")
            here += 4 + ordered
            messages.append(HeaderMessage(kind, marks, data[here : here + size]))
            if kind == MORE:
                offset, length = struct.unpack_from("<QQ", messages[-1].body)
                if length < 8:
                    raise broken(f"a header goes on at {offset} with {length} bytes")
                blocks.append((offset + 4, length - 8))  # without its tag and checksum
            here += size
    return messages


# Groups


def children(file: FileBytes, messages: list[HeaderMessage]) -> dict[str, int]:
    """Returns the objects in an HDF5 group: {name: address of the object}; {} for an object that is no group.
    Raises `FileError` for names that are not allowed, and for groups whose links are stored in a heap.
    messages: the messages of the object's header.
    """
    links: list[tuple[bytes, int]] = []
    for message in messages:
        if message.kind == GROUP:
            links.extend(entries(file, *struct.unpack_from("<QQ", message.body)))
        elif message.kind == LINK:
            links.append(link(message.body))
        elif message.kind == LINKS and large(message.body, 8):
            raise FileError('a group is written in the large form of libver="latest"; save it without that')
    names = {text(name): at for name, at in sorted(links)}
    if len(names) < len(links):
        raise broken("a group has one name twice")
    for name in names:
        if not name or "/" in name or len(name) > LONGEST:
            raise broken(f"a name is {name[:40]!r}")
    return names


def large(body: bytes, counter: int) -> bool:
    """Returns True if the attributes of an HDF5 object, or the links of a group, are stored in a heap, which
    is not read.

    body: the info message of the attributes or links (sections IV.A.2.v and IV.A.2.c of the format). counter:
    the bytes of the creation index in it, a field that may be missing.
    """
    return struct.unpack_from("<Q", body, 2 + (counter if body[1] & 1 else 0))[0] != NOWHERE


def entries(file: FileBytes, tree: int, heap: int) -> Iterator[tuple[bytes, int]]:
    """Yields (name, address) of each object in an HDF5 group (a folder) of the old form: a tree of tables at
    address `tree`, and a heap of names at `heap` (sections III.B and III.D of the format). Raises `FileError`
    for soft links, which are not followed.
    """
    length, _, at = struct.unpack_from("<QQQ", file.tagged(heap, 32, b"HEAP"), 8)
    names = file.take(at, length)
    for table in leaves(file, tree, 0, 8):
        count = struct.unpack_from("<H", file.tagged(table.child, 8, b"SNOD"), 6)[0]
        rows = file.take(table.child + 8, 40 * count)
        for name, offset, cached in struct.iter_unpack("<QQI20x", rows):
            if cached == 2:
                raise FileError("it has soft links, which stepnet does not follow")
            end = names.find(b"\0", name, name + LONGEST)
            if end < 0:
                raise broken(f"there is no name at {name} of a group's names")
            file.store.take(OBJECT + end - name, "its names")  # names may overlap
            yield names[name:end], offset


@dataclass(frozen=True, slots=True)
class LeafEntry:
    """An entry of a leaf of an HDF5 tree: its key, and the address of the object."""

    key: bytes
    child: int


def leaves(file: FileBytes, tree: int, kind: int, width: int) -> Iterator[LeafEntry]:
    """Yields the leaf entries of an HDF5 tree of version 1 (section III.A.1 of the format): of the tables of
    a group (kind 0), or of the blocks of an array (kind 1).

    tree: the root's address in the file. width: the bytes of a key.
    """
    nodes = [tree]
    while nodes:
        at = nodes.pop()
        tree_kind, level, count = struct.unpack_from("<BBH", file.tagged(at, 24, b"TREE"), 4)
        if tree_kind != kind:
            raise broken(f"the tree at {at} is of another kind")
        data = file.take(at + 24, count * (width + 8))
        for here in range(0, len(data), width + 8):
            child = struct.unpack_from("<Q", data, here + width)[0]
            file.store.take(OBJECT, "its trees")
            if level:
                nodes.append(child)
            else:
                yield LeafEntry(data[here : here + width], child)


def link(body: bytes) -> tuple[bytes, int]:
    """Parses an HDF5 link message, `body` (section IV.A.2.g of the format), which is an entry of a group (a
    folder): returns the name and the address of the object; raises `FileError` for soft links and for links
    to other files.
    """
    flags, here = body[1], 2
    kind = body[here] if flags & 0x08 else 0
    if kind:
        links = {1: "soft links", 64: "links to other files"}.get(kind, f"links of kind {kind}")
        raise FileError(f"it has {links}, which stepnet does not follow")
    here += bool(flags & 0x08) + 8 * bool(flags & 0x04) + bool(flags & 0x10)
    width = 1 << (flags & 3)
    length = int.from_bytes(body[here : here + width], "little")
    here += width
    return body[here : here + length], struct.unpack_from("<Q", body, here + length)[0]


def text(data: bytes) -> str:
    """Decodes a name or text, which is UTF-8 in everything that Keras writes."""
    return data.decode("utf-8", "replace")


# Shapes and kinds


def shape_of(body: bytes) -> tuple[int, ...] | None:
    """Parses an HDF5 dataspace message, `body` (section IV.A.2.b of the format): returns the shape of an
    array; None for a null dataspace, which has no elements. Raises `FileError` for unknown versions.
    """
    version, rank = body[0], body[1]
    if version not in (1, 2) or rank > 32:
        raise broken(f"a shape has version {version} and {rank} dimensions")
    if version == 2 and body[3] == 2:
        return None
    return struct.unpack_from(f"<{rank}Q", body, 8 if version == 1 else 4)


def count_of(shape: tuple[int, ...], width: int, limit: int) -> int:
    """Returns the number of elements of an array's shape; raises `FileError` if they need more than `limit`
    bytes, which the file has of them. width: the bytes of an element.

    >>> count_of((2, 3), 4, 24)
    6
    >>> count_of((1 << 62, 4), 4, 24)
    Traceback (most recent call last):
    stepnet.errors.FileError: this is not a complete HDF5 file (an array of shape 4611686018427387904, 4 ...
    """
    count = math.prod(shape)
    if count * width > limit or math.prod(max(1, n) for n in shape) >= 1 << 48:
        raise broken(f"an array of shape {', '.join(map(str, shape))} has {limit} bytes")
    return count


@dataclass(frozen=True)
class ElementKind:
    """The kind of the elements of an HDF5 array.

    size: the bytes of an element. dtype: of numbers, else None. text: for texts, the function that decodes
    one.
    """

    size: int
    dtype: np.dtype[Any] | None = None
    text: Callable[[FileBytes, bytes], str] | None = None


def kind_of(body: bytes) -> ElementKind:
    """Parses an HDF5 datatype message, `body` (section IV.A.2.d of the format): returns the kind of an
    array's elements, numbers or texts; of any other kind, which is not read, only the size.
    """
    group, bits, size = (
        body[0] & 0x0F,
        int.from_bytes(body[1:4], "little"),
        struct.unpack_from("<I", body, 4)[0],
    )
    order = ">" if bits & 1 else "<"
    if group == 0 and size in (1, 2, 4, 8) and struct.unpack_from("<HH", body, 8) == (0, 8 * size):
        return ElementKind(size, np.dtype(f"{order}{'i' if bits & 8 else 'u'}{size}"))
    if group == 1 and not bits & 0x40:
        offset, *parts = struct.unpack_from("<HHBBBBI", body, 8)
        dtype = FLOATS.get(tuple(parts))
        if dtype is not None and size == dtype.itemsize and offset == 0:
            return ElementKind(size, dtype.newbyteorder(order))
    if group == 8 and size == 1 and b"FALSE\0" in body and b"TRUE\0" in body:
        return ElementKind(1, np.dtype(np.bool_))  # as h5py writes it
    if group == 3 and size:
        return ElementKind(size, text=padded_text)
    if group == 9 and bits & 0x0F == 1 and size == 16:
        return ElementKind(size, text=heap_text)
    return ElementKind(size)


def padded_text(file: FileBytes, data: bytes) -> str:
    """Decodes an HDF5 text of fixed length, without its padding of zeros or spaces; `file` is not used."""
    return text(data.partition(b"\0")[0].rstrip(b" "))


def heap_text(file: FileBytes, data: bytes) -> str:
    """Reads a text of variable length, which lies in a heap of the file; data: the bytes of its length, the
    heap's address and its number there (section III.E of the format). Each text is read once. An empty text
    has no place in a heap.
    """
    length, at, number = struct.unpack("<IQI", data)
    if length == 0:
        return ""
    if at not in file.texts:
        file.texts[at] = heap(file, at)
    content = file.texts[at].pop(number, b"")  # each belongs to a single array, so it is read once
    if len(content) < length:
        raise broken(f"there is no text {number} of {length} bytes at {at}")
    return text(content[:length])


def heap(file: FileBytes, at: int) -> dict[int, bytes]:
    """Reads all texts in a global heap of an HDF5 file, at address `at`: {number of the text: its bytes}."""
    size = struct.unpack_from("<Q", file.tagged(at, 16, b"GCOL"), 8)[0]
    data, here, objects = file.take(at + 16, max(0, size - 16)), 0, dict[int, bytes]()
    while here + 16 <= len(data):
        number, length = struct.unpack_from("<H6xQ", data, here)
        if number == 0:  # the free space at the end
            break
        file.store.take(OBJECT, "its texts")
        objects[number] = data[here + 16 : here + 16 + length]
        here += 16 + length + -length % 8
    return objects
