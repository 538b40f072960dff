"""The weights in the bytes of a model file, and a digest of all else.

    .onnx      graph.initializer.raw_data of float32   ->   weights, in order
               all else, but who wrote the file        ->   the digest
    .stepnet   the header, which has the net           ->   the digest
               all behind it                           ->   weights

Files of models that differ in their weights alone have one digest, so that something is known about a file
before it is parsed. What is in the file is not checked: a digest is known if a file with it was read before.

Source: protobuf.dev/programming-guides/encoding; github.com/huggingface/safetensors for .stepnet files.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stepnet.compiler.values.hashing import blake2b

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
FIXED = {EIGHT: 8, FOUR: 4}
GRAPH, INITIALIZER, DATA_TYPE, RAW_DATA = 7, 5, 2, 9
"""The numbers of the fields on the way to the weights: of a model, a graph and, twice, a tensor."""
WRITER = (2, 3, 6)
"""The fields of a model with the name and the version of the program that wrote it, and a comment."""
FLOAT32 = 1
HEAD = 8
"""The bytes of the field with the size of the header of a .stepnet file."""


class MessageField(NamedTuple):
    """Field of a message: its number, where it begins, and where its value begins and ends."""

    number: int
    at: int
    begin: int
    end: int


class DamagedError(Exception):
    """Raised for bytes that are no message."""


def apart(contents: bytes, is_onnx: bool) -> tuple[str, list[np.ndarray]] | None:
    """Returns the digest of a model file without its weights, and the weights as flat arrays of float32 that
    refer to its bytes. None for bytes that are no such file. is_onnx: whether it is an .onnx file, or a
    .stepnet file.
    """
    return apart_onnx(contents) if is_onnx else apart_stored(contents)


def apart_stored(contents: bytes) -> tuple[str, list[np.ndarray]] | None:
    """Returns the digest of the header of a .stepnet file, and all numbers behind it; see `apart`."""
    begin = HEAD + int.from_bytes(contents[:HEAD], "little")
    size = len(contents) - begin
    if size < 0 or size % 4:
        return None
    hasher = blake2b(contents[:begin], digest_size=16)
    hasher.update(b"%d" % size)
    return hasher.hexdigest(), [np.frombuffer(contents, "<f4", size // 4, begin)]


def apart_onnx(contents: bytes) -> tuple[str, list[np.ndarray]] | None:
    """Returns the digest of an .onnx file without its weights, and these; see `apart`."""
    hasher, weights, done = blake2b(digest_size=16), list[np.ndarray](), 0

    def skip(begin: int, end: int, kind: bytes) -> None:
        """Adds the bytes up to `begin` to the digest, and of those up to `end` their kind and size."""
        nonlocal done
        for piece in (contents[done:begin], b"%b %d %d;" % (kind, begin - done, end - begin)):
            hasher.update(piece)
        done = end

    try:
        for field in fields(contents, 0, len(contents)):
            if field.number in WRITER:
                hasher.update(contents[done : field.at])
                done = field.end
            elif field.number == GRAPH:
                for tensor in fields(contents, field.begin, field.end):
                    if tensor.number == INITIALIZER:
                        for begin, end in raw_data(contents, tensor):
                            weights.append(np.frombuffer(contents, "<f4", (end - begin) // 4, begin))
                            skip(begin, end, b"weights")
    except DamagedError:
        return None
    skip(len(contents), len(contents), b"end")
    return hasher.hexdigest(), weights


def raw_data(contents: bytes, tensor: MessageField) -> Iterator[tuple[int, int]]:
    """Yields where the numbers of a tensor begin and end, if they are float32 in one field of bytes."""
    own = list(fields(contents, tensor.begin, tensor.end))
    data = [each for each in own if each.number == RAW_DATA]
    types = [contents[each.begin : each.end] for each in own if each.number == DATA_TYPE]
    if types == [bytes([FLOAT32])] and len(data) == 1 and (data[0].end - data[0].begin) % 4 == 0:
        yield data[0].begin, data[0].end


def fields(contents: bytes, begin: int, end: int) -> Iterator[MessageField]:
    """Yields the fields of the message in some bytes of a file; raises `DamagedError`."""
    while begin < end:
        at = begin
        tag, begin = varint(contents, begin, end)
        wire = tag & 7
        if wire == VARINT:
            _, after = varint(contents, begin, end)
        elif wire in FIXED:
            after = begin + FIXED[wire]
        elif wire == BYTES:
            size, begin = varint(contents, begin, end)
            after = begin + size
        else:
            raise DamagedError
        if after > end:
            raise DamagedError
        yield MessageField(tag >> 3, at, begin, after)
        begin = after


def varint(contents: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Reads a number of variable length; returns it, and the place behind it. Raises `DamagedError`."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte, at = contents[at], at + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise DamagedError
