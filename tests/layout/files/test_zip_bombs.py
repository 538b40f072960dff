"""Small zips that unpack to much, in each other or over each other: refused before the memory is taken."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from stepnet.layout.files.store import SPARE, TIMES
from tests.layout.files.readers import Reading

STORED, DEFLATED, LZMA = 0, 8, 14
LARGE = 200 << 20  # bytes that a bomb unpacks to


@dataclass(frozen=True)
class Member:
    """A member of a zip: its bytes as they lie there, and what the zip says of them."""

    name: str
    data: bytes
    method: int = STORED
    size: int = -1
    checksum: int = 0

    def record(self, begins: bytes, *before: int, behind: bytes = b"") -> bytes:
        """It as the zip tells of it, before its bytes or in the list at the end."""
        size = len(self.data) if self.size < 0 else self.size
        checksum = self.checksum or zlib.crc32(self.data)
        fields = (0, self.method, 0, 0, checksum, len(self.data), size, len(self.name), 0)
        text = struct.pack(f"<4s{len(before)}H", begins, *before) + struct.pack("<4H3I2H", *fields)
        return text + behind + self.name.encode()


def zipped(members: list[Member], places: list[int] | None = None) -> bytes:
    """A zip of members; places: where the list says that they are, if that is not the truth."""
    body, listed = b"", b""
    for number, member in enumerate(members):
        place = len(body) if places is None else places[number]
        body += member.record(b"PK\3\4", 20) + member.data
        listed += member.record(b"PK\1\2", 20, 20, behind=struct.pack("<3H2I", 0, 0, 0, 0, place))
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(members), len(members), len(listed), len(body), 0)
    return body + listed + end


@cache
def packed(head: bytes) -> tuple[bytes, int]:
    """Zeros behind a head, compressed, and their checksum."""
    packer, block = zlib.compressobj(9, zlib.DEFLATED, -15), bytes(1 << 20)
    data, checksum = packer.compress(head), zlib.crc32(head)
    for _ in range(LARGE >> 20):
        data += packer.compress(block)
        checksum = zlib.crc32(block, checksum)
    return data + packer.flush(), checksum


def bomb(name: str, head: bytes = b"", says: int | None = None) -> Member:
    """A member of zeros behind a head; says: how many bytes the zip has it to be."""
    data, checksum = packed(head)
    return Member(name, data, DEFLATED, len(head) + LARGE if says is None else says, checksum)


def numpy_head(count: int) -> bytes:
    """The bytes that NumPy writes before an array."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


def array(says: int | None = None) -> Member:
    """A member that is an array of zeros."""
    return bomb("kernel.npy", numpy_head(LARGE // 4), says)


def nested(name: str, *before: Member) -> bytes:
    """A zip with a bomb in it."""
    return zipped([*before, Member(name, zipped([array()]))])


CONFIG, WEIGHTS = Member("config.json", b"{}"), "model.weights.h5"
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "array.npz": (lambda: zipped([array()]), "it would fill more than"),
    "short.npz": (lambda: zipped([array(says=200)]), "this is not a complete .npz file"),
    "nested.npz": (lambda: nested("inner.npy"), "is not an array of NumPy"),
    "lzma.npz": (lambda: zipped([Member("k.npy", bytes(99), LZMA, LARGE)]), "compressed as NumPy never does"),
    "nested.pt": (lambda: nested("archive/data.pkl"), "its pickle has opcode"),
    "pickle.pt": (lambda: zipped([bomb("archive/data.pkl")]), "is compressed or encrypted, as PyTorch never"),
    "nested.keras": (lambda: nested(WEIGHTS, CONFIG), "this is not an HDF5 file"),
    "config.keras": (lambda: zipped([bomb("config.json"), Member(WEIGHTS, b"")]), "zip it without"),
    "weights.keras": (lambda: zipped([CONFIG, bomb(WEIGHTS)]), "zip it without"),
    "lying.keras": (lambda: zipped([CONFIG, bomb(WEIGHTS, says=100)]), "zip it without"),
    **{
        f"over.{ending}": (lambda: zipped([array()] * 2, [0, 0]), "its zip")
        for ending in ("npz", "pt", "keras", "pt2")
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(tmp_path: Path, reading: Reading, name: str):
    make, problem = BOMBS[name]
    path = tmp_path / name
    path.write_bytes(make())
    count, said = reading.taken(path)
    assert problem in said
    assert count < 2 * SPARE + 2 * TIMES * path.stat().st_size
