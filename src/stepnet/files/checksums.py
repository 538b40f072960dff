"""CRC-32C of bytes, with which TensorFlow's checkpoints and OCDBT say whether they are whole.

A checksum that begins at zero is a linear function of the bits: that of two pieces is that of the first with
as many zeros behind it as the second has bytes, and that of the second. So many pieces of a block run side by
side in NumPy, and are put together by doubling.

Source: RFC 3720, appendix B.4; tsl/lib/hash/crc32c.h of TensorFlow 2.21.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

POLYNOMIAL = 0x82F63B78  # its bits from the lowest
MASK = 0xA282EAD8  # what checksums are kept under, so that one of data with checksums in it is no weak one
SHORT = 1 << 10  # bytes that are quicker one by one
WORDS = 64  # of four bytes, in a piece
PIECES = 1 << 12  # of a block at most, a power of two
Words = np.ndarray[Any, np.dtype[np.uint32]]


def masked(crc: int) -> int:
    """A checksum as tables and checkpoints keep it."""
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def is_whole(data: bytes | memoryview, checksum: int) -> bool:
    """Whether bytes have a checksum as tables and checkpoints keep it."""
    return masked(crc32c(data)) == checksum


def crc32c(data: bytes | memoryview) -> int:
    """The CRC-32C of bytes.

    >>> hex(crc32c(b"123456789")), hex(crc32c(bytes(5000)))
    ('0xe3069283', '0xe68075d0')
    """
    held = np.frombuffer(data, np.uint8)
    if len(held) < SHORT:
        crc, table = 0xFFFFFFFF, bytewise()
        for byte in bytes(data):
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    crc = np.zeros(1, np.uint32)
    for block in blocks(held):
        found, behind = of_block(block)
        crc = moved(behind, crc) ^ found
    return int(crc[0]) ^ 0xFFFFFFFF


def blocks(held: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[Words]:
    """Bytes in blocks of pieces, [words, pieces], as the checksum takes them in: with zeros before them,
    which change nothing, and the first four inverted.
    """
    pieces = PIECES
    while pieces > 1 and 2 * len(held) <= 4 * WORDS * pieces:
        pieces //= 2
    size = 4 * WORDS * pieces
    for end in range(len(held) - (len(held) - 1) // size * size, len(held) + 1, size):
        block = np.zeros(size, np.uint8)
        begin = max(0, end - size)
        block[size - (end - begin) :] = held[begin:end]
        for place in range(begin, min(end, 4)):
            block[place + size - end] ^= 0xFF
        yield block.view("<u4").astype(np.uint32).reshape(pieces, WORDS).T.copy()


def of_block(block: Words) -> tuple[Words, Words]:
    """The checksum of a block, begun at zero, and what as many zeros as it has bytes do to one before it."""
    low, high = wordwise()
    crcs = np.zeros(block.shape[1], np.uint32)
    for words in block:
        words = words ^ crcs
        crcs = low[words & 0xFFFF] ^ high[words >> 16]
    behind = piecewise()
    while len(crcs) > 1:
        crcs = moved(behind, crcs[::2]) ^ crcs[1::2]
        behind = moved(behind, behind)
    return crcs, behind


def moved(behind: Words, crcs: Words) -> Words:
    """Checksums with zeros behind them; behind: what these zeros make of each single bit."""
    found = np.zeros_like(crcs)
    for bit, made in enumerate(behind):
        found ^= (crcs >> np.uint32(bit) & np.uint32(1)) * made
    return found


@cache
def bytewise() -> list[int]:
    """What every byte does to a checksum."""
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (POLYNOMIAL if value & 1 else 0) for value in table]
    return table


@cache
def wordwise() -> tuple[Words, Words]:
    """What four zeros make of every two bytes, the lower and the higher ones of a checksum."""
    table, halves = np.array(bytewise(), np.uint32), np.arange(1 << 16, dtype=np.uint32)
    found = np.stack([halves, halves << 16])
    for _ in range(4):
        found = table[found & 0xFF] ^ found >> 8
    return found[0], found[1]


@cache
def piecewise() -> Words:
    """What as many zeros as a piece has bytes make of every bit of a checksum."""
    low, high = wordwise()
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(WORDS):
        bits = low[bits & 0xFFFF] ^ high[bits >> 16]
    return bits
