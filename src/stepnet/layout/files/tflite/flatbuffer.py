"""Reads FlatBuffers files as tables, with every offset checked, and writes them.

A table starts with the distance back to its list of fields (vtable), which has the offset of each field in
the table, 0 for a missing one. Vectors, texts and further tables lie ahead, at the distance that a field has;
so no table can contain itself. Source: FlatBuffers' internals, https://flatbuffers.dev/internals.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError

Array = np.ndarray
TABLES = 1 << 18  # the most in a list
LETTERS = 1000
ALIGNMENT = 16  # of lists of numbers, as a runtime may use them in place


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a FlatBuffers file, whose fields are read by number."""

    data: bytes
    path: str
    start: int

    def number(self, kind: str, offset: int) -> Any:
        """Reads the number at an offset in a FlatBuffers file; kind: its type for `struct`, such as 'i'."""
        if offset < 0 or offset + struct.calcsize("<" + kind) > len(self.data):
            raise self.broken(offset)
        return struct.unpack_from("<" + kind, self.data, offset)[0]

    def offset_of(self, field: int) -> int | None:
        """Returns the offset in the file of field number `field` of this FlatBuffers table, from the list of
        offsets to which the table points back; None if the field is missing.
        """
        fields = self.start - self.number("i", self.start)
        entry = 4 + 2 * field
        if entry + 2 > self.number("H", fields):
            return None
        offset = self.number("H", fields + entry)
        return self.start + offset if offset else None

    def get(self, field: int, kind: str, default: Any = 0) -> Any:
        """Returns the number in a table's field, or `default`. kind: its type for `struct`, such as 'i'."""
        offset = self.offset_of(field)
        return default if offset is None else self.number(kind, offset)

    def table(self, field: int) -> "Table | None":
        """Returns the table in field number `field` of this FlatBuffers table; None if it is missing."""
        offset = self.offset_of(field)
        return None if offset is None else self.at(offset)

    def at(self, offset: int) -> "Table":
        """Returns the table to which a FlatBuffers offset points. offset: its place in the file."""
        return Table(self.data, self.path, offset + self.number("I", offset))

    def vector(self, field: int, dtype: Any) -> Array:
        """Returns a field of a FlatBuffers table that is a list of numbers of `dtype`, as a view of the file;
        empty if it is missing. Raises `FileError` if it goes beyond the file.
        """
        offset, size = self.offset_of(field), np.dtype(dtype).itemsize
        if offset is None:
            return np.empty(0, dtype)
        start = offset + self.number("I", offset)
        count = self.number("I", start)
        if start + 4 + count * size > len(self.data):
            raise self.broken(start)
        return np.frombuffer(self.data, dtype, count, start + 4)

    def tables(self, field: int) -> "list[Table]":
        """Returns a field of a FlatBuffers table that is a list of tables; [] if it is missing. Raises
        `FileError` for too many.
        """
        offsets, start_offset = self.vector(field, "<u4"), self.offset_of(field)
        if start_offset is None:
            return []
        if len(offsets) > TABLES:
            raise FileError(f"{self.path}: a list of {len(offsets)} tables is more than {TABLES}")
        start = start_offset + self.number("I", start_offset) + 4
        return [Table(self.data, self.path, start + 4 * i + int(offset)) for i, offset in enumerate(offsets)]

    def text(self, field: int) -> str:
        """Returns the text in field `field` of a FlatBuffers table, up to `LETTERS` bytes; "" if missing."""
        return self.vector(field, "u1")[:LETTERS].tobytes().decode(errors="backslashreplace")

    def broken(self, offset: int) -> FileError:
        """Returns the error for a FlatBuffers file that points to `offset`, a place outside of itself."""
        return FileError(
            f"{self.path}: the file is cut off or broken: it points to {offset} of {len(self.data)} bytes"
        )


def root(data: bytes, path: str, letters: bytes, what: str) -> Table:
    """Returns the outermost table of a FlatBuffers file; raises `FileError` unless bytes 4 to 8 are
    `letters`, which name the kind of file, such as "TFL3". what: the ending of such files, for the message.
    """
    if data[4:8] != letters:
        raise FileError(f"{path}: this is not a complete {what} file (it does not say {letters.decode()})")
    return Table(data, path, 0).at(0)


@dataclass(frozen=True)
class Number:
    """A number to write as a field of a FlatBuffers table; kind: its type for `struct`."""

    kind: str
    value: Any


# A table to write, by field number: numbers, lists of numbers, texts, tables, and lists of tables.
Fields = Mapping[int, "Number | Array | str | Fields | Sequence[Fields]"]


def build(table: Fields, letters: bytes) -> bytearray:
    """Makes the bytes of a FlatBuffers file with this outermost table; letters: the four that name its kind.

    >>> root(bytes(build({1: Number("i", 5), 2: "five"}, b"TEST")), "x.test", b"TEST", ".test").get(1, "i")
    5
    """
    data = bytearray(struct.pack("<I4s", 0, letters))
    pending: list[tuple[int, Any]] = [(0, table)]
    while pending:  # a table lies before everything that it points to
        offset, fields = pending.pop()
        for at, value in write_table(data, offset, fields):
            if isinstance(value, dict):
                pending.append((at, cast(Fields, value)))
            elif isinstance(value, str):
                write_offset(data, at, 4)
                data += struct.pack("<I", len(value.encode())) + value.encode() + b"\0"
            elif isinstance(value, np.ndarray):
                pad(data, ALIGNMENT, 4)
                write_offset(data, at, 4)
                numbers = np.ascontiguousarray(cast(Array, value))
                data += struct.pack("<I", numbers.size)
                data += numbers.reshape(-1).view(np.uint8).data
            else:
                write_offset(data, at, 4)
                data += struct.pack(f"<{len(value) + 1}I", len(value), *[0] * len(value))
                first = len(data) - 4 * len(value)
                pending += [(first + 4 * index, element) for index, element in enumerate(value)]
    return data


def write_table(data: bytearray, offset: int, fields: Fields) -> list[tuple[int, Any]]:
    """Writes a FlatBuffers table with its numbers to `data`, and the offset to it at `offset`. Other fields
    are written later: returns, for each of them, (where to write the offset to it, its value). fields: all
    fields by number.
    """
    numbers = {f: value if isinstance(value, Number) else Number("I", 0) for f, value in fields.items()}
    sizes = {field: struct.calcsize("<" + number.kind) for field, number in numbers.items()}
    offsets: dict[int, int] = {}
    end = 4
    for field in sorted(fields, key=lambda field: -sizes[field]):  # the widest first: each is aligned
        offsets[field], end = end, end + sizes[field]
    entries = [offsets.get(field, 0) for field in range(max(fields, default=-1) + 1)]
    heading = struct.pack(f"<HH{len(entries)}H", 4 + 2 * len(entries), end, *entries)
    pad(data, 4, len(heading))
    data += heading
    write_offset(data, offset, 1)
    start = len(data)
    data += struct.pack("<i", len(heading)) + bytes(end - 4)
    for field, number in numbers.items():
        struct.pack_into("<" + number.kind, data, start + offsets[field], number.value)
    return [(start + offsets[f], value) for f, value in fields.items() if not isinstance(value, Number)]


def write_offset(data: bytearray, offset: int, alignment: int) -> None:
    """Writes a FlatBuffers offset at `offset`, to the data written next, which it aligns to `alignment`."""
    pad(data, alignment, 0)
    struct.pack_into("<I", data, offset, len(data) - offset)


def pad(data: bytearray, alignment: int, before: int) -> None:
    """Pads `data` with zeros, so that what follows `before` more bytes is at a multiple of `alignment`."""
    data += bytes(-(len(data) + before) % alignment)
