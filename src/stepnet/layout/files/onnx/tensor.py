"""Arrays from the tensors of an ONNX model, and from the files beside it that hold their numbers."""

import math
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files.paths import reading
from stepnet.layout.files.store import Store

Array = np.ndarray
Proto = Any  # a protobuf message: onnx makes their classes when it is imported

DIMENSIONS = 8
NUMBERS = 1 << 48  # the most of a tensor, where dimensions of zero count as one
EXTERNAL = 1

# By ONNX's number of a type: the field of numbers that are not stored as bytes, their dtype there, and the
# dtype.
TYPES: dict[int, tuple[str, Any, Any]] = {
    1: ("float_data", "<f4", "<f4"),
    2: ("int32_data", "<i4", "u1"),
    3: ("int32_data", "<i4", "i1"),
    4: ("int32_data", "<i4", "<u2"),
    5: ("int32_data", "<i4", "<i2"),
    6: ("int32_data", "<i4", "<i4"),
    7: ("int64_data", "<i8", "<i8"),
    9: ("int32_data", "<i4", "?"),
    10: ("int32_data", "<u2", "<f2"),
    11: ("double_data", "<f8", "<f8"),
    12: ("uint64_data", "<u8", "<u4"),
    13: ("uint64_data", "<u8", "<u8"),
    16: ("int32_data", "<u2", ml_dtypes.bfloat16),
}
HALVES = (10, 16)  # float16 and bfloat16, which become float32, exactly


def text(value: str | bytes) -> str:
    """Returns a string of a protobuf message as text; it is given as bytes if it is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def array_of(tensor: Proto, store: Store) -> Array:
    """Reads an ONNX `TensorProto` as an array that owns its memory. float16 and bfloat16 become float32,
    exactly.

    The numbers lie in the message as bytes or as a list, or in a file beside the model. Raises `FileError`
    for types that NumPy lacks, if shape and bytes disagree, and for a file outside the folder. store: the
    path of the model, and the limit on memory. Source: onnx.proto, TensorProto.
    """
    name = text(tensor.name)
    if tensor.data_type not in TYPES:
        raise FileError(
            f"{store.path}: tensor {name!r} holds numbers of ONNX type {tensor.data_type}, which stepnet does"
            " not read; save it as FLOAT"
        )
    shape = shape_of(tensor, name, store)
    field, stored, dtype = TYPES[tensor.data_type]
    count, size = math.prod(shape), np.dtype(dtype).itemsize
    store.take(count * size, f"tensor {name!r}")
    if tensor.data_location == EXTERNAL:
        array = external(tensor, name, store, count, np.dtype(dtype))
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
        if len(raw) != count * size:
            raise FileError(
                f"{store.path}: tensor {name!r} of {shape} takes {count * size} bytes and has {len(raw)}"
            )
        array = np.frombuffer(raw, dtype).copy()
    else:
        numbers = getattr(tensor, field)
        if len(numbers) != count:
            raise FileError(f"{store.path}: tensor {name!r} of {shape} has {len(numbers)} numbers")
        array = array_from_list(numbers, stored, dtype)
    with np.errstate(invalid="ignore"):  # a signalling NaN is kept as a NaN
        array = array.astype(np.float32 if tensor.data_type in HALVES else array.dtype, copy=False)
    return array.reshape(shape)


def shape_of(tensor: Proto, name: str, store: Store) -> tuple[int, ...]:
    """Returns the shape of an ONNX tensor; raises `FileError` for a shape that no array of a weight can have.
    name: the tensor's, for messages. store: has the path of the model, for messages.
    """
    shape = tuple(tensor.dims[: DIMENSIONS + 1])
    if len(shape) > DIMENSIONS or min(shape, default=0) < 0 or math.prod(max(1, d) for d in shape) > NUMBERS:
        raise FileError(f"{store.path}: tensor {name!r} has the shape {shape}, which no weight has")
    return shape


def array_from_list(numbers: Any, stored: Any, dtype: Any) -> Array:
    """Converts a repeated field of numbers in an ONNX message to an array. stored: the dtype of the numbers
    in the field. dtype: of the array. Numbers of 16 bits are stored as the bits of `dtype`.
    """
    if np.dtype(stored).itemsize == 2:
        return np.fromiter((n & 0xFFFF for n in numbers), stored, len(numbers)).view(dtype)
    return np.fromiter(numbers, stored, len(numbers)).astype(dtype)


def external(tensor: Proto, name: str, store: Store, count: int, dtype: np.dtype[Any]) -> Array:
    """Reads the `count` numbers of an ONNX tensor that lie in a file in the model's folder, at a stated
    offset; raises `FileError` if they do not lie in the file. name: for messages. dtype: of the numbers.
    store: the path of the model, and the limit on memory.
    """
    entries = {text(entry.key): text(entry.value) for entry in tensor.external_data[:16]}
    file = path_of_numbers(entries.get("location", ""), name, store)
    offset = decimal(entries.get("offset", "0"), name, store)
    length = decimal(entries.get("length", str(count * dtype.itemsize)), name, store)
    with reading(file, f"{store.path}: "), open(file, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if length != count * dtype.itemsize or offset + length > size:
            raise FileError(
                f"{store.path}: tensor {name!r} takes {count * dtype.itemsize} bytes, and is said to lie"
                f" in {length} from {offset} of {file}, which has {size}"
            )
        store.beside(file, size)
        stream.seek(offset)
        array = np.fromfile(stream, dtype, count)
    if array.size != count:
        raise FileError(f"{file}: the file became shorter while it was read")
    return array


def path_of_numbers(location: str, name: str, store: Store) -> str:
    """Returns the path of the file that holds the numbers of an ONNX tensor; raises `FileError` if it does
    not lie in the model's folder, or is missing.

    location: the path in the model, relative to the model's folder. name: the tensor's, for messages. store:
    has the path of the model.
    """
    paths = PurePosixPath(location), PureWindowsPath(location)
    strays = any(path.root or path.drive or ".." in path.parts for path in paths)
    folder = os.path.realpath(store.path.parent)
    file = os.path.realpath(store.path.parent / location) if "\0" not in location else ""
    if strays or not location or not file or not Path(file).is_relative_to(folder):
        raise FileError(
            f"{store.path}: tensor {name!r} is said to lie in {location!r}, outside the model's folder;"
            " put it beside the model"
        )
    if not os.path.isfile(file):
        raise FileError(f"{store.path}: tensor {name!r} lies in {location!r}, and there is no such file")
    return file


def decimal(number: str, name: str, store: Store) -> int:
    """Converts ONNX's decimal text of an offset or length, or raises `FileError`. name: the tensor's."""
    if not re.fullmatch("[0-9]{1,18}", number, re.ASCII):
        raise FileError(f"{store.path}: tensor {name!r} has {number[:40]!r} for an offset or a length")
    return int(number)
