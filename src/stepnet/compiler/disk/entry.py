"""The format of one file of the cache.

    offset  bytes
    0       8      MAGIC
    8       8      the number of reads, which is not part of the checksum
    16      32     the checksum of MAGIC, the file's name and the payload
    48      ...    the payload

A file that was renamed, changed, truncated or extended has a wrong checksum.
"""

import struct

from stepnet.compiler.values.hashing import blake2b

MAGIC = b"stepnet1"
HITS = struct.Struct("<Q")
HITS_AT, SUM_AT, BEGIN = 8, 16, 48


class NotDataError(Exception):
    """Raised for a value that cannot be serialized, and for bytes that are no serialized value."""


def checksum(name: str, payload: bytes) -> bytes:
    """Computes the checksum (32 bytes) of a cache file from its name and payload, to detect changed files."""
    hasher = blake2b(MAGIC, digest_size=BEGIN - SUM_AT)
    hasher.update(len(name).to_bytes(8, "little") + name.encode())
    hasher.update(payload)
    return hasher.digest()


def file_contents(name: str, payload: bytes) -> bytes:
    """Makes the contents of a cache file that has this name and payload: a head with a count of reads, 0, and
    a checksum, then the payload.

    >>> read("some.code", file_contents("some.code", b"bytes"))
    b'bytes'
    >>> read("other.code", file_contents("some.code", b"bytes"))
    """
    return MAGIC + HITS.pack(0) + checksum(name, payload) + payload


def read(name: str, data: bytes) -> bytes | None:
    """Returns the payload in the contents of a cache file; None if the file was changed or renamed."""
    payload = data[BEGIN:]
    if data[:HITS_AT] != MAGIC or data[SUM_AT:BEGIN] != checksum(name, payload):
        return None
    return payload


def hits(data: bytes) -> int:
    """Returns the number of reads that a cache file has counted; 0 if it is too short to have one."""
    return HITS.unpack_from(data, HITS_AT)[0] if len(data) >= BEGIN else 0
