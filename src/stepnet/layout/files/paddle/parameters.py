"""Reads a .pdiparams: the parameters of a saved program, one after the other, in the order of their names.

    each   version u32 | levels u64 | version u32 | size i32 | TensorDesc | its numbers

The file has no names. They come from the program.

Source: paddle/fluid/framework/lod_tensor.cc and tensor_util.cc of PaddlePaddle 3, SerializeToStream.
"""

import math
import struct
from collections.abc import Sequence

import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files.checkpoint.protobuf import message
from stepnet.layout.files.paddle.program import Variable, dtype_of
from stepnet.layout.files.paddle.protobuf import signed
from stepnet.layout.files.store import Store

Array = np.ndarray


def read(data: bytes, variables: Sequence[Variable], store: Store) -> dict[str, Array]:
    """Reads the parameters of a Paddle program by name; raises `FileError`, without the path, if their dtypes
    or shapes are not those that the program declares, or if the file is cut off or too long.

    data: the .pdiparams file, which has no names. variables: the program's parameters in the file's order.
    store: the limit on memory.
    """
    arrays, at = dict[str, Array](), 0
    for expected in variables:
        array, at = tensor(data, at, store, expected.name)
        if array.dtype != expected.dtype or array.shape != expected.sizes:
            raise FileError(
                f"its parameter {len(arrays)} is {array.dtype} {list(array.shape)}, and the program's "
                f"{expected.name!r} is {expected.dtype} {list(expected.sizes)}"
            )
        arrays[expected.name] = array
    if at != len(data):
        raise FileError(f"it has more than the {len(arrays)} parameters of the program")
    return arrays


def tensor(data: bytes, at: int, store: Store, name: str) -> tuple[Array, int]:
    """Reads the tensor at offset `at` of a .pdiparams file; returns it and the offset after it. Raises
    `FileError` if it is cut off, or of another version or kind.

    store: limits the memory that reading takes. name: the name of the tensor, for messages.
    """
    (version, levels), at = unpacked("<IQ", data, at)
    if version or levels:
        raise FileError(f"{name!r} is no tensor of version 0 without levels")
    (version, size), at = unpacked("<Ii", data, at)
    if version or not 0 <= size <= len(data) - at:
        raise FileError(f"{name!r} is cut off, or no tensor of version 0")
    description = message(memoryview(data)[at : at + size], store)
    at += size
    dtype = dtype_of(description.number(1))
    shape = tuple(signed(number) for number in description.fields.get(2, ()))
    if any(number < 0 for number in shape) or math.prod(shape) * dtype.itemsize > len(data) - at:
        raise FileError(f"{name!r} of shape {list(shape)[:8]} is cut off")
    count = math.prod(shape)
    store.take(count * dtype.itemsize, f"parameter {name[:100]!r}")
    array = np.frombuffer(data, dtype.newbyteorder("<"), count, at).reshape(shape).astype(dtype)
    return array, at + count * dtype.itemsize


def unpacked(struct_format: str, data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Reads numbers at an offset of a .pdiparams file; returns them and the offset after them. Raises
    `FileError` if the file ends before. struct_format: their types, as for `struct`.
    """
    if at + struct.calcsize(struct_format) > len(data):
        raise FileError("it is cut off: it has fewer parameters than the program")
    return struct.unpack_from(struct_format, data, at), at + struct.calcsize(struct_format)
