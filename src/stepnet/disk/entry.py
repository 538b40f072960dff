"""The bytes of one file of the cache.

    0    8    MAGIC
    8    8    how often it was read, which the checksum leaves out
    16   32   the checksum: of MAGIC, the file's name and the payload
    48   ...  the payload

A file under another name, or with a byte changed, missing or added, has another checksum.
"""

import hashlib
import struct

MAGIC = b"stepnet1"
HITS = struct.Struct("<Q")
HITS_AT, SUM_AT, BEGIN = 8, 16, 48


def checksum(name: str, payload: bytes) -> bytes:
    """32 bytes that stand for a payload under a name."""
    hasher = hashlib.blake2b(MAGIC, digest_size=BEGIN - SUM_AT)
    hasher.update(len(name).to_bytes(8, "little") + name.encode())
    hasher.update(payload)
    return hasher.digest()


def written(name: str, payload: bytes) -> bytes:
    """The file of a payload.

    >>> read("some.code", written("some.code", b"bytes"))
    b'bytes'
    >>> read("other.code", written("some.code", b"bytes"))
    """
    return MAGIC + HITS.pack(0) + checksum(name, payload) + payload


def read(name: str, data: bytes) -> bytes | None:
    """The payload of a file; None where it is not what was written under that name."""
    payload = data[BEGIN:]
    if data[:HITS_AT] != MAGIC or data[SUM_AT:BEGIN] != checksum(name, payload):
        return None
    return payload


def hits(data: bytes) -> int:
    """How often a file was read; 0 where it is too short to say."""
    return HITS.unpack_from(data, HITS_AT)[0] if len(data) >= BEGIN else 0
