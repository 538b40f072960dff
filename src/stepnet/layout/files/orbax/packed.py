"""Decompression of Zstandard, zlib and gzip, with a limit on the size of the result."""

import zlib
from typing import Any, cast

from stepnet.errors import FileError
from stepnet.layout.files.paths import library


def unpacked(data: bytes, method: str, most: int) -> bytes:
    """Decompresses bytes by `method`, "zlib", "gzip" or "zstd"; raises `FileError`, without the path, for
    more than `most` bytes and for damaged ones.

    >>> import zlib
    >>> unpacked(zlib.compress(b"aaaa"), "zlib", 4)
    b'aaaa'
    """
    if method in ("zlib", "gzip"):
        content = inflated(data, most)
    elif method == "zstd":
        content = from_zstandard(data, most)
    else:
        raise FileError(
            f"it is packed with {method[:50]!a}, which is not read: save it with zstd or gzip, or unpacked"
        )
    if len(content) > most:
        raise FileError(f"a part of it unpacks to more than the {most} bytes that it may have")
    return content


def inflated(data: bytes, most: int) -> bytes:
    """Decompresses a zlib or gzip stream, up to `most` + 1 bytes, so that the caller notices too many. Raises
    `FileError` for a damaged stream.
    """
    decompressor = zlib.decompressobj(wbits=47)  # zlib or gzip
    try:
        content = decompressor.decompress(data, most + 1)
    except zlib.error as error:
        raise FileError(f"a part of it is damaged ({error})") from error
    if not decompressor.eof and len(content) <= most:
        raise FileError("a part of it is cut off")
    return content


def from_zstandard(data: bytes, most: int) -> bytes:
    """Decompresses a Zstandard frame, up to `most` + 1 bytes, so that the caller notices too many. Raises
    `FileError` for a damaged frame.
    """
    arrow: Any = library("pyarrow", "an Orbax checkpoint", "arrow")
    try:
        with arrow.CompressedInputStream(arrow.BufferReader(data), "zstd") as stream:
            return cast(bytes, stream.read(most + 1))
    except OSError as error:  # Arrow raises it for damaged data
        raise FileError(f"a part of it is damaged ({str(error)[:100]})") from error
