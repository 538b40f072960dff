"""How much memory the values of MessagePack take once they are read, counted before they are.

An empty dictionary is one byte of a file and 64 in memory. All values lie one behind the other, whatever
holds them, so that one walk meets each of them once.

Source: github.com/msgpack/msgpack/blob/master/spec.md.
"""

from stepnet.files.store import OBJECT, Store

VALUE = 2 * OBJECT  # bytes of a value, be it a dictionary with one pair, an array or a text of a few bytes
# Where a length follows the first byte: how wide it is, and what else stands before the bytes that it counts.
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
# How many bytes follow the first one otherwise; of a list or dictionary those of its count.
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
    """Takes what the values will fill from the store; raises `FileError` for far too much.

    >>> count(bytes.fromhex("81 a1 77 93 01 02 03"), Store(None, 7))
    >>> count(b"\\xdd\\x00\\x10\\x00\\x00" + b"\\x80" * (1 << 20), Store(None, 1 << 20))
    Traceback (most recent call last):
    stepnet.errors.FileError: with its values it would fill more than 75497472 bytes of memory, far more ...
    """
    at, left = 0, store.left
    while at < len(data) and left >= 0:
        first, at = data[at], at + 1
        left -= VALUE
        if first < 0x80 or first >= 0xE0:
            continue
        if first in FIXED:
            at += FIXED[first]
        else:
            width, more = LENGTHS[first]
            at += width + more + int.from_bytes(data[at : at + width], "big")
    store.take(store.left - left, "its values")
