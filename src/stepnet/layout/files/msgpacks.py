"""Counts the memory that the values of a MessagePack file take, before they are read.

An empty dictionary is one byte in a file and 64 in memory. Values lie one after the other, nested or not, so
a single walk over the bytes meets each of them once.

Source: github.com/msgpack/msgpack/blob/master/spec.md.
"""

from stepnet.layout.files.store import OBJECT, Store

VALUE = 2 * OBJECT  # bytes of a value, be it a dictionary with one pair, an array or a text of a few bytes
# By first byte, if a length follows it: the width of the length, and how many more bytes precede the data.
LENGTHS = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
# For other first bytes: the number of bytes that follow; for a list or dictionary, the bytes of its count.
FIXED = {
    **dict.fromkeys((*range(0x80, 0xA0), *range(0xC0, 0xC4)), 0),
    **{0xA0 + length: length for length in range(32)},
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}


def count(data: bytes, store: Store) -> None:
    """Counts the memory that all values of a MessagePack file will take, before they are decoded, and takes
    it from `store`, the limit on memory; raises `FileError` if too little is left. data: the content of the
    file.

    >>> count(bytes.fromhex("81 a1 77 93 01 02 03"), Store(None, 7))
    >>> count(b"\\xdd\\x00\\x10\\x00\\x00" + b"\\x80" * (1 << 20), Store(None, 1 << 20))
    Traceback (most recent call last):
    stepnet.errors.FileError: with its values it would fill more than 75497472 bytes of memory, far more ...
    """
    position, left = 0, store.left
    while position < len(data) and left >= 0:
        first, position = data[position], position + 1
        left -= VALUE
        if first < 0x80 or first >= 0xE0:
            continue
        if first in FIXED:
            position += FIXED[first]
        else:
            width, more = LENGTHS[first]
            position += width + more + int.from_bytes(data[position : position + width], "big")
    store.take(store.left - left, "its values")
