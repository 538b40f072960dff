"""Arrays by name out of a .safetensors file."""

import os
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from stepnet.errors import FileError

Array = np.ndarray

# What the format's dtypes become. Halves are widened, which is exact: stepnet's own numbers start at 32 bits.
DTYPES: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float32,
    "BF16": np.float32,
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
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # safetensors asks NumPy for it by name, which ml_dtypes makes known


def read(path: str | Path) -> dict[str, Array]:
    """The arrays of a .safetensors file by name, as NumPy arrays of their own; float16 and bfloat16 become
    float32, exactly.

    Raises `FileError`, with the path, for what is missing, truncated or no such file, and for numbers of a
    kind that NumPy lacks.

    >>> read("model.bin")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.bin: there is no such file
    """
    path = Path(path)
    if not os.path.exists(path):  # Path.exists raises for some paths, such as too long ones
        raise FileError(f"{path}: there is no such file")
    if not os.path.isfile(path):
        raise FileError(f"{path}: this is no file but a {'folder' if path.is_dir() else 'device'}")
    try:
        with cast(Any, safe_open(path, framework="numpy")) as file:
            return {name: array_of(file, name, path) for name in sorted(file.keys())}
    except SafetensorError as error:
        raise FileError(f"{path}: this is no whole .safetensors file ({reason(error)})") from error
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or reason(error)})") from error


def array_of(file: Any, name: str, path: Path) -> Array:
    """One array of an open file."""
    dtype: str = file.get_slice(name).get_dtype()
    if dtype not in DTYPES:
        raise FileError(f"{path}: {name!r} holds {dtype}, which stepnet does not read; save it as F32")
    return np.ascontiguousarray(file.get_tensor(name), DTYPES[dtype])


def reason(error: Exception) -> str:
    """What the library says is wrong, in one line."""
    return " ".join(str(error).removeprefix("Error while deserializing header: ").split())
