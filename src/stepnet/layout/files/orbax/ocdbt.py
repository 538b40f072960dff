"""The keys and values in a folder of TensorStore's OCDBT: a B+tree, whose nodes lie in several files.

    manifest.ocdbt    the place of the root of the newest version
    d/NAME            nodes, and values that are too long for a node

A node, and the manifest, begin with a magic number, their length, a version and their compression, and end
with a checksum. A key is stored without the prefix that it shares with the key before it.

Source: tensorstore/kvstore/ocdbt/index.rst ("Storage format"), and format/data_file_id_codec.cc.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files import jsons
from stepnet.layout.files.checkpoint.sstable import varint
from stepnet.layout.files.checksums import crc32c
from stepnet.layout.files.orbax.packed import unpacked
from stepnet.layout.files.store import OBJECT, Store

MANIFEST = "manifest.ocdbt"
MAGIC_MANIFEST, MAGIC_NODE = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
HEAD = struct.Struct("<4sQ")
LARGEST = 1 << 26  # the most bytes of an unpacked node
HEIGHT = 32
NUMBER = OBJECT // 4  # approximate bytes of memory for a number in a list
MISSING = (1 << 64) - 1  # the offset of the root of an empty tree


@dataclass(frozen=True)
class FileReference:
    """A range of bytes in a file of an OCDBT folder; if it is a node, the paths in it begin with `base`."""

    base: str
    path: str
    start: int
    size: int


Value = bytes | FileReference


class Cursor:
    """Reader of the fields of an OCDBT node, one after the other."""

    def __init__(self, data: bytes, store: Store) -> None:
        """Starts at the first byte of an OCDBT node's content; store: the limit on memory."""
        self.data, self.at, self.store = memoryview(data), 0, store

    def number(self) -> int:
        """Reads the next number of an OCDBT node, a varint."""
        value, self.at = varint(self.data, self.at)
        return value

    def numbers(self, count: int) -> list[int]:
        """Reads the next `count` numbers of an OCDBT node; raises `FileError` if they are more than its
        remaining bytes, as each takes at least one.
        """
        if count > len(self.data) - self.at:
            raise FileError("a node in it lists more than it holds")
        self.store.room(NUMBER * count, "the numbers of a node")
        return [self.number() for _ in range(count)]

    def take(self, count: int) -> bytes:
        """Reads the next `count` bytes of an OCDBT node; raises `FileError` if fewer are left."""
        if count > len(self.data) - self.at:
            raise FileError("a node in it is cut off")
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def shared(self, count: int) -> tuple[list[int], list[int]]:
        """Reads the lengths of `count` texts (keys or paths) of an OCDBT node. Returns two lists: for each
        text the number of bytes that it shares with the text before, and of the bytes that are stored for it.
        """
        return [0, *self.numbers(count - 1)] if count else [], self.numbers(count)

    def texts(self, shared: list[int], rests: list[int]) -> list[bytes]:
        """Reads the next texts (keys or paths) of an OCDBT node, each stored without the prefix that it
        shares with the one before. shared, rests: for each text, the number of bytes shared, and of bytes
        stored. Raises `FileError` for lengths that cannot be.
        """
        texts: list[bytes] = []
        for front, back in zip(shared, rests, strict=True):
            before = texts[-1] if texts else b""
            if front > len(before) or front + back > 1 << 16:
                raise FileError("a node in it has a key or a path that cannot be")
            self.store.take(4 * OBJECT + 2 * (front + back), "its keys and paths")
            texts.append(before[:front] + self.take(back))
        return texts

    def files(self, base: str) -> list[tuple[str, str]]:
        """Reads an OCDBT node's table of the files that it refers to. Returns for each the prefix of the
        paths that a node in this file lists, and the path of the file. base: the prefix of both.
        """
        count = self.number()
        shared, rests = self.shared(count)
        bases = self.numbers(count)
        paths = [text.decode("utf-8", "backslashreplace") for text in self.texts(shared, rests)]
        return [(base + path[:length], base + path) for path, length in zip(paths, bases, strict=True)]

    def references(
        self, files: list[tuple[str, str]], count: int, sizes: list[int] | None = None
    ) -> list[FileReference]:
        """Reads `count` references of an OCDBT node to bytes in files: their file, start and size. files: the
        node's table of files. sizes: the sizes, where they are stored before; None to read them too. Raises
        `FileError` for a file that is not in the table.
        """
        which, starts = self.numbers(count), self.numbers(count)
        sizes = self.numbers(count) if sizes is None else sizes
        if any(index >= len(files) for index in which):
            raise FileError("a node in it refers to a file that it does not list")
        return [
            FileReference(*files[index], start, size)
            for index, start, size in zip(which, starts, sizes, strict=True)
        ]


class Tree:
    """Reader of the keys and values in a folder of TensorStore's OCDBT format."""

    def __init__(self, folder: Path, store: Store) -> None:
        """Opens a folder of TensorStore's OCDBT format; store: the limit on memory."""
        self.folder, self.store = folder, store
        self.seen: set[tuple[str, int]] = set()

    def items(self) -> Iterator[tuple[str, Value]]:
        """Yields each key of the OCDBT store with its value, or a reference to the file that holds it."""
        size = (self.folder / MANIFEST).stat().st_size
        root, height = newest(self.body(FileReference("", MANIFEST, 0, size), MAGIC_MANIFEST))
        if root is not None:
            yield from self.below(root, height, b"")

    def below(self, reference: FileReference, height: int, front: bytes) -> Iterator[tuple[str, Value]]:
        """Yields the keys and values of an OCDBT node and of the nodes below it; raises `FileError` for a
        damaged tree.

        reference: the file and bytes of the node. height: the number of levels of nodes below it; 0 for a
        leaf, which has the values. front: the prefix of the node's keys.
        """
        if (reference.path, reference.start) in self.seen or not 0 <= height <= HEIGHT:
            raise FileError("its tree leads to a node twice, or is too high")
        self.seen.add((reference.path, reference.start))
        node = self.body(reference, MAGIC_NODE)
        if node.take(1)[0] != height:
            raise FileError("its tree has a node at another height than it says")
        files = node.files(reference.base)
        count = node.number()
        shared, rests = node.shared(count)
        if height == 0:
            keys = node.texts(shared, rests)
            for key, value in zip(keys, values(node, files, count), strict=True):
                yield (front + key).decode("utf-8", "backslashreplace"), value
            return
        common = node.numbers(count)
        keys = node.texts(shared, rests)
        for key, length, child in zip(keys, common, node.references(files, count), strict=True):
            yield from self.below(child, height - 1, front + key[:length])

    def value(self, value: Value) -> bytes:
        """Returns the bytes of a value in an OCDBT store. value: the bytes themselves, or a reference to a
        file of the store; raises `FileError` if that is missing or cut off.
        """
        if isinstance(value, bytes):
            return value
        path = self.folder
        for name in value.path.split("/"):
            path = jsons.within(path, name)
        if not path.is_file():
            raise FileError(f"its file {value.path} is missing")
        size = path.stat().st_size
        if value.start + value.size > size:
            raise FileError(f"its file {value.path} is cut off")
        self.store.beside(value.path, size)
        self.store.take(value.size, f"a value in {value.path}")
        with open(path, "rb") as stream:
            stream.seek(value.start)
            return stream.read(value.size)

    def body(self, reference: FileReference, magic: bytes) -> Cursor:
        """Reads a node or the manifest of an OCDBT store from a file, and returns a cursor at its first
        field, after decompression. Raises `FileError` if it is damaged.

        reference: the file, and the range of bytes in it. magic: the four bytes with which they must begin.
        """
        data = self.value(reference)
        if len(data) < HEAD.size + 6 or HEAD.unpack_from(data) != (magic, len(data)):
            raise FileError(
                f"its file {reference.path} is not one of OCDBT, or cut off, at byte {reference.start}"
            )
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise FileError(f"its file {reference.path} is damaged: its checksum is wrong")
        version, at = varint(memoryview(data), HEAD.size)
        method, at = varint(memoryview(data), at)
        if version != 0 or method not in (0, 1):
            raise FileError(f"its file {reference.path} is of a version of OCDBT that is not read")
        inner = data[at:-4]
        if method:
            inner = unpacked(inner, "zstd", LARGEST)
            self.store.take(len(inner), f"a node in {reference.path}")
        return Cursor(inner, self.store)


def newest(manifest: Cursor) -> tuple[FileReference | None, int]:
    """Returns the root of the newest version in an OCDBT manifest, None if it has no keys, and the height of
    its tree: the levels of nodes below the root. Raises `FileError` for a manifest without a version, or of a
    kind that is not read.
    """
    manifest.take(16)  # an identity
    if manifest.number() != 0:
        raise FileError(
            "its manifest is of the kind that has versions in files of their own, which is not read"
        )
    manifest.numbers(2)
    manifest.take(1)
    if manifest.number():
        manifest.take(4)  # the compression level
    files = manifest.files("")
    count = manifest.number()
    manifest.numbers(count)
    heights = manifest.take(count)
    roots = manifest.references(files, count)
    if not roots:
        raise FileError("its manifest has no version")
    return (None if roots[-1].start == MISSING else roots[-1]), heights[-1]


def values(node: Cursor, files: list[tuple[str, str]], count: int) -> list[Value]:
    """Reads the `count` values of a leaf of an OCDBT tree, which is a node without nodes below it. A value is
    its bytes, or a reference to a file. files: the node's table of files.
    """
    sizes, kinds = node.numbers(count), node.numbers(count)
    outside = [size for size, kind in zip(sizes, kinds, strict=True) if kind]
    references = iter(node.references(files, len(outside), outside))
    return [next(references) if kind else node.take(size) for size, kind in zip(sizes, kinds, strict=True)]
