"""The places of uncompressed members in a zip file, as in the files of PyTorch.

1  The number of members is limited. Python's zipfile makes an object of every member that a file lists.
2  Members may not share bytes, and all must lie within the file. A compressed or encrypted member is refused
   when it is read.
3  Nothing is extracted to disk, so names of members cannot lead to other files.

Source: APPNOTE.TXT 6.3.10 (PKWARE), sections 4.3.7 to 4.3.16 and 4.5.3.
"""

import struct
import zlib
from collections.abc import Iterator
from io import BufferedIOBase

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.store import OBJECT, Store

Array = np.ndarray

MEMBERS = 1 << 20
MEMBER = 8 * OBJECT  # approximate bytes of memory per member besides its content
END = struct.Struct(
    "<4s4H2IH"
)  # the end record: disks, members, the length and place of their list, a comment's length
END_PLACE = struct.Struct("<4sIQI")  # the locator of the 64-bit end record
LONG_END = struct.Struct("<4sQ2H2I4Q")  # the 64-bit end record
ENTRY = struct.Struct("<4s4H2H3I5H2I")  # an entry of the list of members, before its name
RECORD = struct.Struct("<4s5H3I2H")  # the header in front of a member's bytes, before its name
ELSEWHERE = 0xFFFFFFFF  # marks a number whose 64-bit value is in an extra field


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of bytes in a file, and their CRC-32; 0 if there is none, because torch.save can omit it."""

    start: int
    size: int
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of a zip's list of members; `byte_range` starts at the record before the member's bytes."""

    name: str
    byte_range: ByteRange
    stored: bool


def members(stream: BufferedIOBase, size: int) -> dict[str, Member]:
    """Returns the members that a zip of `size` bytes lists, by name; raises `FileError`, without the path,
    for a damaged list, or if the members are longer than the file.
    """
    start, length, count = directory(stream, size)
    if count > MEMBERS or count * ENTRY.size > length or start + length > size:
        raise FileError(f"its zip lists {count} members in {length} bytes at byte {start}, which cannot be")
    Store(None, size).take(MEMBER * count, "its list of members")
    stream.seek(start)
    listed = stream.read(length)
    by_name: dict[str, Member] = {}
    position = 0
    for _ in range(count):
        member, position = entry(listed, position)
        if member.name in by_name:
            raise FileError(f"its zip has two members of the name {member.name[:100]!a}")
        by_name[member.name] = member
    if sum(RECORD.size + member.byte_range.size for member in by_name.values()) > start:
        raise FileError("its zip lists more bytes than it has")
    return by_name


def directory(stream: BufferedIOBase, size: int) -> tuple[int, int, int]:
    """Finds the list of members at the end of a zip file of `size` bytes: returns the list's position and
    length in bytes, and the number of members. Raises `FileError` if it is missing.
    """
    begin = max(0, size - END.size - 0xFFFF - END_PLACE.size)
    stream.seek(begin)
    tail = stream.read(size - begin)
    end_position = tail.rfind(b"PK\5\6", 0, len(tail) - END.size + 4)
    if end_position < 0:
        raise FileError("its zip is cut off: the list of members at its end is missing")
    *_, count, length, start, _ = END.unpack_from(tail, end_position)
    if end_position >= END_PLACE.size and tail.startswith(b"PK\6\7", end_position - END_PLACE.size):
        offset = END_PLACE.unpack_from(tail, end_position - END_PLACE.size)[2]
        stream.seek(min(offset, size))
        end = stream.read(LONG_END.size)
        if len(end) < LONG_END.size or not end.startswith(b"PK\6\6"):
            raise FileError("its zip has no end where it says that it has one")
        *_, count, length, start = LONG_END.unpack(end)
    return start, length, count


def entry(listed: bytes, position: int) -> tuple[Member, int]:
    """Parses the entry at `position` of a zip's list of members; returns the member and the position of the
    next entry. listed: the bytes of the list. Raises `FileError` if the list is damaged.
    """
    if listed[position : position + 4] != b"PK\1\2" or len(listed) < position + ENTRY.size:
        raise FileError("its zip's list of members is broken")
    fields = ENTRY.unpack_from(listed, position)
    flags, method, checksum, packed, size, name_length, extra_length, comment_length = (
        fields[3:5] + fields[7:13]
    )
    record = fields[-1]
    position += ENTRY.size
    name = listed[position : position + name_length].decode("utf-8", "backslashreplace")
    position += name_length
    wide = wide_numbers(listed[position : position + extra_length])
    size, packed, record = (
        next(wide, -1) if number == ELSEWHERE else number for number in (size, packed, record)
    )
    if min(size, packed, record) < 0:
        raise FileError(f"its zip's member {name[:100]!a} has no size")
    stored = method == 0 and not flags & 1 and size == packed
    return Member(name, ByteRange(record, packed, checksum), stored), position + extra_length + comment_length


def wide_numbers(extra: bytes) -> Iterator[int]:
    """Yields the 64-bit sizes and offsets of a large zip member, from the first of its extra fields that has
    them (kind 1); extra: the bytes of these fields.
    """
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        position += 4
        if kind == 1:
            field = extra[position : position + length]
            yield from (number for (number,) in struct.iter_unpack("<Q", field[: len(field) // 8 * 8]))
            return
        position += length


def byte_range_of(stream: BufferedIOBase, member: Member, size: int) -> ByteRange:
    """Finds the range of the bytes of a member in a zip file of `size` bytes. They follow the record with the
    member's name, which the list of members points to. Raises `FileError` if the member is compressed, or not
    there.
    """
    if not member.stored:
        raise FileError(
            f"its zip's member {member.name[:100]!a} is compressed or encrypted, as PyTorch never stores one"
        )
    stream.seek(min(member.byte_range.start, size))
    record = stream.read(RECORD.size)
    if len(record) < RECORD.size or not record.startswith(b"PK\3\4"):
        raise FileError(f"its zip's member {member.name[:100]!a} is not where the list has it")
    name_length, extra_length = RECORD.unpack(record)[-2:]
    if stream.read(name_length).decode("utf-8", "backslashreplace") != member.name:
        raise FileError(f"its zip's member {member.name[:100]!a} has another name where it lies")
    start = member.byte_range.start + RECORD.size + name_length + extra_length
    if start + member.byte_range.size > size:
        raise FileError(f"its zip's member {member.name[:100]!a} is cut off")
    return ByteRange(start, member.byte_range.size, member.byte_range.checksum)


def bytes_at(stream: BufferedIOBase, byte_range: ByteRange) -> Array:
    """Reads a copy of the bytes in a range of a file; raises `FileError` if the file is cut off, or if they
    do not have the range's checksum, if it has one.
    """
    stream.seek(byte_range.start)
    data = np.empty(byte_range.size, np.uint8)
    if stream.readinto(data.data) != byte_range.size:
        raise FileError(f"it is cut off within {byte_range.size} bytes at byte {byte_range.start}")
    if byte_range.checksum and zlib.crc32(data.data) != byte_range.checksum:
        raise FileError(
            f"its {byte_range.size} bytes at byte {byte_range.start} are damaged: their checksum is wrong"
        )
    return data
