"""CRC-32C of bytes, the checksum in TensorFlow's checkpoints and in OCDBT files.

A checksum that starts at zero is a linear function of the bits. The checksum of two pieces is that of the
first piece followed by zeros for the second, xor that of the second. So NumPy computes the checksums of many
pieces of a block side by side, and then joins neighbours until one is left.

Source: RFC 3720, appendix B.4; tsl/lib/hash/crc32c.h of TensorFlow 2.21.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

POLYNOMIAL = 0x82F63B78  # of CRC-32C, its lowest bit first
MASK = 0xA282EAD8  # added to stored checksums, because the CRC of data that contains CRCs is weak
SHORT = 1 << 10  # bytes, below which a loop byte by byte is faster
WORDS = 64  # words of four bytes in a piece
PIECES = 1 << 12  # the most pieces of a block; a power of two
Words = np.ndarray[Any, np.dtype[np.uint32]]


def masked(crc: int) -> int:
    """Returns a CRC-32C in the masked form that TensorFlow's tables and checkpoints store."""
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def is_whole(data: bytes | memoryview, checksum: int) -> bool:
    """Returns True if bytes are undamaged: `checksum`, as stored in a file, is their masked CRC-32C."""
    return masked(crc32c(data)) == checksum


def crc32c(data: bytes | memoryview) -> int:
    """Returns the CRC-32C checksum of bytes, which TensorFlow's and OCDBT's files store to detect damage.

    >>> hex(crc32c(b"123456789")), hex(crc32c(bytes(5000)))
    ('0xe3069283', '0xe68075d0')
    """
    numbers = np.frombuffer(data, np.uint8)
    if len(numbers) < SHORT:
        crc, table = 0xFFFFFFFF, bytewise()
        for byte in bytes(data):
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    crc = np.zeros(1, np.uint32)
    for block in blocks(numbers):
        of_numbers, zeros = block_checksum(block)
        crc = after_zeros(zeros, crc) ^ of_numbers
    return int(crc[0]) ^ 0xFFFFFFFF


def blocks(numbers: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[Words]:
    """Splits the bytes `numbers` into blocks of 32-bit words [words, pieces] for `crc32c`. Each column of a
    block is a piece of consecutive bytes, and the checksums of all columns are computed at once. The first
    block is padded with zeros in front, which do not change a checksum that starts at zero. The first four
    bytes are inverted, because a CRC-32C begins with all ones.
    """
    pieces = PIECES
    while pieces > 1 and 2 * len(numbers) <= 4 * WORDS * pieces:
        pieces //= 2
    size = 4 * WORDS * pieces
    for end in range(len(numbers) - (len(numbers) - 1) // size * size, len(numbers) + 1, size):
        block = np.zeros(size, np.uint8)
        begin = max(0, end - size)
        block[size - (end - begin) :] = numbers[begin:end]
        for index in range(begin, min(end, 4)):
            block[index + size - end] ^= 0xFF
        yield block.view("<u4").astype(np.uint32).reshape(pieces, WORDS).T.copy()


def block_checksum(block: Words) -> tuple[Words, Words]:
    """Returns the CRC-32C of a block of words [words, pieces], whose columns are consecutive pieces of bytes,
    in an array of one number. It is computed with the initial value zero and without inversions.

    Also returns how a CRC changes if as many zero bytes follow as the block has: a linear map, given by its
    value for each of the 32 bits. With it, the caller joins the checksums of consecutive blocks.
    """
    low, high = wordwise()
    crcs = np.zeros(block.shape[1], np.uint32)
    for block_words in block:
        block_words = block_words ^ crcs
        crcs = low[block_words & 0xFFFF] ^ high[block_words >> 16]
    zeros = piecewise()
    while len(crcs) > 1:
        crcs = after_zeros(zeros, crcs[::2]) ^ crcs[1::2]
        zeros = after_zeros(zeros, zeros)
    return crcs, zeros


def after_zeros(zeros: Words, crcs: Words) -> Words:
    """Returns the values of the CRCs `crcs` after further zero bytes. zeros: the linear map by which these
    zero bytes change a CRC, given by its value for each of the 32 bits.
    """
    after = np.zeros_like(crcs)
    for bit, image in enumerate(zeros):
        after ^= (crcs >> np.uint32(bit) & np.uint32(1)) * image
    return after


@cache
def bytewise() -> list[int]:
    """Returns the table of 256 values with which a CRC-32C is computed byte by byte."""
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (POLYNOMIAL if value & 1 else 0) for value in table]
    return table


@cache
def wordwise() -> tuple[Words, Words]:
    """Returns two tables of 65536 values to advance a CRC by four bytes at a time: the CRC after four zero
    bytes, for each value of its lower 16 bits, and for each value of its higher 16 bits.
    """
    table, halves = np.array(bytewise(), np.uint32), np.arange(1 << 16, dtype=np.uint32)
    tables = np.stack([halves, halves << 16])
    for _ in range(4):
        tables = table[tables & 0xFF] ^ tables >> 8
    return tables[0], tables[1]


@cache
def piecewise() -> Words:
    """Returns how 4 * WORDS zero bytes, the bytes of a piece, change a CRC: a linear map, given by its value
    for each of the 32 bits.
    """
    low, high = wordwise()
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(WORDS):
        bits = low[bits & 0xFFFF] ^ high[bits >> 16]
    return bits
