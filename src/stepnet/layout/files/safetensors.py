"""Reads and writes .safetensors files as arrays by name."""

import json
import math
import re
from collections.abc import Mapping
from io import BytesIO
from mmap import ACCESS_READ
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, numpy, safe_open

from stepnet.compiler.net.types import MappedFile
from stepnet.errors import FileError
from stepnet.layout.files.paths import existing, new_file
from stepnet.layout.files.store import OBJECT, Store

Array = np.ndarray

DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,  # safetensors asks NumPy for it by name, which ml_dtypes makes known
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}

LENGTH = 8  # bytes of the length of the description
DESCRIPTION = 100_000_000  # the most bytes of it: the library's limit
PARSED = 4  # memory of the parsed description, in times its length
COPIES = 2  # copies of an array in memory while it is read
METADATA = "__metadata__"  # a reserved key among the names of arrays
OF_SYSTEM = re.compile(r"I/O error: (.+?) \(os error \d+\)")  # in a message of the library


def read(path: str | Path) -> dict[str, Array]:
    """Reads the arrays of a .safetensors file by name, as NumPy arrays that own their memory.

    Raises `FileError`, with the path, for a file that is missing, truncated or foreign, and for dtypes that
    NumPy lacks.

    >>> read("model.bin")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.bin: there is no such file
    """
    return read_described(path)[0]


def read_described(path: str | Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Reads the arrays of a .safetensors file by name, and its metadata: texts by name. Raises `FileError`,
    with the path, for what `read` refuses.
    """
    path = existing(path)
    try:
        store = Store(path, path.stat().st_size)
        store.take(PARSED * description_length(path), "its description")
        with cast(Any, safe_open(path, framework="numpy")) as file:
            arrays = {name: array_of(file, name, path, store) for name in sorted(file.keys())}
            return arrays, dict(file.metadata() or {})
    except SafetensorError as error:
        raise incomplete(path, error) from error
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or reason(error)})") from error


def metadata_of(path: Path) -> dict[str, str]:
    """Returns the metadata of a .safetensors file, texts by name; raises `FileError` for files that `read`
    refuses for other reasons than their arrays.
    """
    try:
        Store(path, path.stat().st_size).take(PARSED * description_length(path), "its description")
        with cast(Any, safe_open(path, framework="numpy")) as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise incomplete(path, error) from error
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or reason(error)})") from error


def mapped(path: Path, contents: bytes | None = None) -> tuple[dict[str, Array], dict[str, str]]:
    """Maps the arrays of a .safetensors file, by name; returns them, read-only, and its metadata.

    Arrays are read from disk as they are used. One that the file does not align is copied. Raises
    `FileError`, with the path, for what `read` refuses, and for bools other than 0 and 1.

    contents: the bytes of the file, if they are read already: the file itself is not read then.
    """
    try:
        length = description_length(path, contents)
        size = path.stat().st_size if contents is None else len(contents)
        Store(path, size).take(PARSED * length, "its description")
        content: Any = contents
        if contents is None:
            with cast(Any, safe_open(path, framework="numpy")), open(path, "rb") as stream:
                content = MappedFile(stream.fileno(), 0, access=ACCESS_READ)
        else:
            cast(Any, numpy).deserialize(contents)  # as `safe_open`, it checks names, shapes and places
    except SafetensorError as error:
        raise incomplete(path, error) from error
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or reason(error)})") from error
    described: dict[str, Any] = json.loads(content[LENGTH : LENGTH + length])
    metadata: dict[str, str] = described.pop(METADATA, None) or {}
    begin = LENGTH + length
    return {
        name: mapped_array(content, begin, entry, f"{path}: {name!r}") for name, entry in described.items()
    }, metadata


def mapped_array(content: MappedFile | bytes, begin: int, entry: Any, what: str) -> Array:
    """Returns an array of a mapped file; raises `FileError` for a dtype that is not read, and wrong bools.

    begin: the offset of the first array.
    entry: the description of the array, which the library has checked.
    what: the path and the name of the array, for messages.
    """
    if entry["dtype"] not in DTYPES:
        raise FileError(f"{what} holds {entry['dtype']}, which stepnet does not read; save it as F32")
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), entry["shape"]
    offset = begin + entry["data_offsets"][0]
    array = np.frombuffer(content, np.uint8, math.prod(shape) * dtype.itemsize, offset)
    if dtype == np.bool_ and array.max(initial=0) > 1:
        raise FileError(f"{what} has bools that are neither 0 nor 1")
    try:
        aligned = array if offset % dtype.alignment == 0 else array.copy()
        return aligned.view(dtype).reshape(shape)
    except ValueError as error:
        raise FileError(f"{what} has a shape that NumPy does not have ({error})") from None


def description_length(path: Path, contents: bytes | None = None) -> int:
    """Returns the length of the JSON of a .safetensors file, up to the library's limit."""
    with open(path, "rb") if contents is None else BytesIO(contents) as stream:
        size = path.stat().st_size if contents is None else len(contents)
        return min(int.from_bytes(stream.read(LENGTH), "little"), DESCRIPTION, size)


def is_safetensors(path: Path) -> bool:
    """Returns True if a file begins as .safetensors files do."""
    with open(path, "rb") as stream:
        return begins_as_safetensors(stream.read(LENGTH + 1))


def begins_as_safetensors(head: bytes) -> bool:
    """Returns True if a file begins as a .safetensors file: with a length, then JSON.

    >>> begins_as_safetensors(b"\\x40" + bytes(7) + b'{"weight"')
    True
    """
    return head[LENGTH : LENGTH + 1] == b"{" and int.from_bytes(head[:LENGTH], "little") <= DESCRIPTION


def array_of(file: Any, name: str, path: Path, store: Store) -> Array:
    """Reads the array `name` of an open .safetensors file, and counts its memory in `store`, the limit on
    memory. Raises `FileError` for a dtype that is not read. path: of the file, for messages.
    """
    tensor_slice = file.get_slice(name)
    dtype: str = tensor_slice.get_dtype()
    if dtype not in DTYPES:
        raise FileError(f"{path}: {name!r} holds {dtype}, which stepnet does not read; save it as F32")
    size = math.prod(tensor_slice.get_shape()) * np.dtype(DTYPES[dtype]).itemsize
    store.room(COPIES * size, f"{name!r}")  # the array is a copy of the library's bytes
    store.take(size + OBJECT + len(name), f"{name!r}")
    return np.asarray(file.get_tensor(name), DTYPES[dtype])


def write(
    path: str | Path,
    arrays: Mapping[str, Array],
    force: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes arrays by name as a .safetensors file, with texts by name as its metadata.

    Raises `FileError`, with the path, for dtypes that the format lacks, and if the file exists, unless
    `force`.
    """
    dtypes = {np.dtype(dtype) for dtype in DTYPES.values()}
    for name, array in arrays.items():
        if array.dtype.newbyteorder("=") not in dtypes:
            raise FileError(
                f"{path}: {name!r} holds {array.dtype.name}, which .safetensors files do not have"
            )
    if METADATA in arrays:
        raise FileError(f"{path}: no array of a .safetensors file can be called {METADATA!r}")
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with new_file(path, force) as partial:
        try:
            cast(Any, numpy).save_file(contiguous, partial, None if metadata is None else dict(metadata))
        except SafetensorError as error:
            raise FileError(f"{path}: the file cannot be written ({reason(error)})") from error


def incomplete(path: Path, error: Exception) -> FileError:
    """Makes the error for an unreadable safetensors file; a .stepnet file is named as such."""
    kind = ".stepnet" if path.suffix == ".stepnet" else ".safetensors"
    return FileError(f"{path}: this is not a complete {kind} file ({reason(error)})")


def reason(error: Exception) -> str:
    """Returns an error message of the safetensors library in one line; of the system, only the reason."""
    text = " ".join(re.sub("^Error while deserializing( header)?: ", "", str(error)).split())
    refused = OF_SYSTEM.search(text)
    return refused[1] if refused else text
