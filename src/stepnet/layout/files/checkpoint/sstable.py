"""Reads sorted string tables, as LevelDB and TensorFlow write them.

    table:  block ... block, an index block with the places of the blocks, footer
    block:  entry ... entry, restarts, compression, checksum
    entry:  three lengths: of the prefix shared with the previous key, of the rest of the key, of the value;
            then the rest of the key and the value

Sources: leveldb/doc/table_format.md; tensorflow/core/lib/io/format.cc, block.cc, table_builder.cc (2.21);
snappy/format_description.txt.
"""

import struct
from collections.abc import Iterator

from stepnet.compiler.disk import weights
from stepnet.errors import FileError
from stepnet.layout.files import checksums
from stepnet.layout.files.store import OBJECT, Store

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
ENTRY = 2 * OBJECT + 184  # approximate bytes of a key and of the view of its value in a dictionary
STORED, SNAPPY = 0, 1


def is_table(end: bytes) -> bool:
    """Returns True if a file whose last bytes are `end` is a sorted string table."""
    return len(end) >= FOOTER and end[-8:] == MAGIC.to_bytes(8, "little")


def table(data: memoryview, store: Store) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the keys and values of a sorted string table, in the order of its keys.

    data: the whole file. store: the limit on memory, which keys and unpacked blocks count against. Raises
    `FileError`, short and without the path, for a damaged table. Every byte is read at most once.
    """
    if not is_table(bytes(data[-FOOTER:])):
        raise FileError("it does not end as a table of keys and values")
    footer = data[-FOOTER:]
    _, at = varint(footer, 0)  # the place and length of the metaindex block, which is empty
    _, at = varint(footer, at)
    unread, before = len(data), None
    for _, handle in entries(block(data, *handle_of(footer[at:]), store), store):
        start, size = handle_of(handle)
        unread -= size + 5
        if unread < 0:
            raise FileError("its blocks overlap")
        for key, value in entries(block(data, start, size, store), store):
            if before is not None and key <= before:
                raise FileError("its keys are out of order")
            yield key, value
            before = key


def handle_of(data: memoryview) -> tuple[int, int]:
    """Decodes a block handle of a sorted string table: the block's start and length in bytes."""
    start, at = varint(data, 0)
    return start, varint(data, at)[0]


def block(data: memoryview, start: int, size: int, store: Store) -> memoryview:
    """Returns the content of a block of a sorted string table, decompressed; raises `FileError` if the block
    is cut off, if its checksum is wrong, or if its compression is unknown.

    data: the whole file. start, size: the block's position and length in it, without the 5 bytes of
    compression and checksum. store: the limit on memory.
    """
    if start + size + 5 > len(data):
        raise FileError(f"it is cut off: {size} bytes at {start} are not in its {len(data)}")
    kind, checksum = struct.unpack_from("<BI", data, start + size)
    if not checksums.is_whole(data[start : start + size + 1], checksum):
        raise FileError(f"{size} bytes of it at {start} are damaged: their checksum is wrong")
    content = data[start : start + size]
    if kind not in (STORED, SNAPPY):
        raise FileError(f"a block is packed in way {kind}, which stepnet does not know")
    return content if kind == STORED else memoryview(unsnapped(content, store))


def entries(content: memoryview, store: Store) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the keys and values in the content of one block of a sorted string table, and counts their
    memory. Raises `FileError` if the block is damaged. A key is stored without the prefix that it shares with
    the previous key.
    """
    if len(content) < 4:
        raise FileError("a block of it is too short")
    restarts = struct.unpack_from("<I", content, len(content) - 4)[0]
    end, at, key = len(content) - 4 - 4 * restarts, 0, b""
    if end < 0:
        raise FileError("a block of it is too short")
    while at < end:
        shared, at = varint(content, at)
        fresh, at = varint(content, at)
        length, at = varint(content, at)
        if shared > len(key) or at + fresh + length > end:
            raise FileError("an entry of it goes beyond its block")
        store.take(ENTRY + shared + fresh, "its keys")
        key = key[:shared] + bytes(content[at : at + fresh])
        at += fresh + length
        yield key, content[at - length : at]


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decodes a varint (seven bits per byte, lowest first) at position `at`; returns the number and the
    position after it. Raises `FileError` if it does not end within ten bytes.
    """
    try:
        return weights.varint(data, at, len(data))
    except weights.DamagedError:
        raise FileError("a number in it does not end") from None


def unsnapped(data: memoryview, store: Store) -> bytes:
    """Decompresses a block of data that is compressed by Snappy; raises `FileError` if it is damaged. store:
    the limit on memory.

    >>> unsnapped(memoryview(b"\\x09\\x08abc\\x09\\x03\\x00"), Store(None, 8))
    b'abcabcabc'
    """
    size, at = varint(data, 0)
    store.take(2 * size, "what a block unpacks to")
    out = bytearray()
    while at < len(data) and len(out) <= size:
        tag = data[at]
        at += 1
        length, extra = (tag >> 2) + 1, tag & 3
        if extra == 0:  # a literal; a length of more than 60 is in the next 1 to 4 bytes
            wide = max(0, length - 60)
            if wide:
                length = int.from_bytes(data[at : at + wide], "little") + 1
            at += wide + length
            out += data[at - length : at]
            continue
        wide = (0, 1, 2, 4)[extra]  # a copy of earlier output
        back = int.from_bytes(data[at : at + wide], "little")
        at += wide
        if extra == 1:
            length, back = (tag >> 2 & 7) + 4, back | tag >> 5 << 8
        if not 0 < back <= len(out):
            raise FileError("a block of it is packed wrongly")
        piece = out[-back : len(out) - back + length]
        out += (piece * -(-length // back))[:length]  # repeated if it is shorter than `length`
    if len(out) != size:
        raise FileError("a block of it is packed wrongly")
    return bytes(out)
