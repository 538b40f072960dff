"""Arrays by name out of and into the msgpack files of flax.serialization, without Flax.

A tree of dictionaries is one name per array, joined by "/". Source: flax/serialization.py: an array is
extension 1, the packed [shape, dtype's name, bytes]; a NumPy scalar is extension 3, the same; an array of
more than 1 GiB is a dictionary {"__msgpack_chunked_array__": true, "shape": ..., "chunks": ...}.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np

from stepnet.errors import FileError
from stepnet.files.paths import existing, library, new_file

Array = np.ndarray[Any, np.dtype[Any]]
Tree = dict[str, Any]

ARRAY, SCALAR = 1, 3
CHUNKED = "__msgpack_chunked_array__"
CHUNK = 1 << 30  # bytes, as Flax has it
DEEPEST = 100
DTYPES = {
    name: np.dtype(name)
    for name in (
        *("float64", "float32", "float16", "bool", "complex64", "complex128"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def read(path: str | Path) -> dict[str, Array]:
    """The arrays of a .msgpack file by name, as views of its bytes.

    Raises `FileError`, with the path, for what is truncated or foreign.

    >>> read("model.msgpack")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.msgpack: there is no such file
    """
    path = existing(path)
    msgpack = library("msgpack", "a .msgpack file", "flax")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or error})") from error
    try:
        tree = msgpack.unpackb(
            data, ext_hook=extension, raw=False, max_ext_len=len(data), strict_map_key=False
        )
        return dict(leaves(tree, ()))
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(f"{path}: this is no whole .msgpack file ({reason})") from error


def extension(code: int, data: bytes) -> Any:
    """An array, or None for what is none."""
    if code not in (ARRAY, SCALAR):
        return None
    found = library("msgpack", "a .msgpack file", "flax").unpackb(data, raw=True, max_ext_len=0)
    if not isinstance(found, list | tuple) or len(cast("list[Any]", found)) != 3:
        raise FileError("an array in it has no shape, dtype and bytes")
    shape, dtype, numbers = cast("list[Any]", found)
    name = dtype.decode("ascii", "replace") if isinstance(dtype, bytes) else repr(dtype)
    if name not in DTYPES:
        raise FileError(f"an array in it holds {name[:50]!a}, which is not read")
    if not isinstance(numbers, bytes) or not is_shape(shape, len(numbers) // DTYPES[name].itemsize):
        raise FileError("an array in it has not as many bytes as its shape says")
    array = np.frombuffer(numbers, DTYPES[name])
    if array.size != math.prod(shape):
        raise FileError("an array in it has not as many bytes as its shape says")
    return array.reshape(shape)


def is_shape(value: Any, most: int) -> bool:
    """Whether a value is a shape of so many numbers at most."""
    if not isinstance(value, list | tuple) or len(cast("list[Any]", value)) > 32:
        return False
    sizes = cast("list[Any]", value)
    return all(type(size) is int and size >= 0 for size in sizes) and math.prod(sizes) <= most


def leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Array]]:
    """Every array of a tree, by name."""
    if len(path) > DEEPEST:
        raise FileError(f"its tree is deeper than {DEEPEST}")
    if isinstance(tree, np.ndarray):
        yield "/".join(path) or "array", cast(Array, tree)
    elif isinstance(tree, dict):
        found = cast("dict[Any, Any]", tree)
        if CHUNKED in found:
            yield "/".join(path), joined(found)
            return
        for key, value in found.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(tree, list):
        for place, value in enumerate(cast("list[Any]", tree)):
            yield from leaves(value, (*path, str(place)))


def joined(chunked: Mapping[Any, Any]) -> Array:
    """A long array out of its chunks."""
    shapes, chunks = chunked.get("shape"), chunked.get("chunks")
    if not isinstance(shapes, dict) or not isinstance(chunks, dict):
        raise FileError("a long array in it has no shape and chunks")
    shape = list(cast("dict[str, Any]", shapes).values())
    parts = list(cast("dict[str, Any]", chunks).values())
    if not parts or not all(isinstance(part, np.ndarray) for part in parts):
        raise FileError("a long array in it has chunks that are none")
    flat = np.concatenate([np.ravel(part) for part in parts])
    if not is_shape(shape, flat.size) or math.prod(shape) != flat.size:
        raise FileError("a long array in it has not as many numbers as its shape says")
    return flat.reshape(shape)


# ---- writing -----------------------------------------------------------------------------------------------


def write(path: str | Path, arrays: Mapping[str, Array], force: bool = False) -> None:
    """Writes arrays by name as the tree that flax.serialization.msgpack_restore gives back.

    Raises `FileError`, with the path, for names that are both an array and a branch, for dtypes that Flax
    does not name, and where the file is there already and `force` is not given.
    """
    msgpack = library("msgpack", "a .msgpack file", "flax")
    tree: Tree = {}
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise FileError(f"{path}: {name!r} holds {array.dtype.name}, which Flax's files do not have")
        branch: Any = tree
        *front, last = name.split("/")
        for part in front:
            branch = cast("Tree", branch).setdefault(part, {})
            if not isinstance(branch, dict):
                raise FileError(f"{path}: {name!r} lies in {part!r}, which is an array")
        if last in branch:
            raise FileError(f"{path}: {name!r} is an array, and a branch with others in it")
        branch[last] = leaf(msgpack, np.ascontiguousarray(array).reshape(array.shape))
    with new_file(path, force) as partial, open(partial, "wb") as stream:
        stream.write(msgpack.packb(tree, use_bin_type=True))


def leaf(msgpack: Any, array: Array) -> Any:
    """An array as Flax packs it."""
    if array.nbytes <= CHUNK:
        packed = msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True)
        return msgpack.ExtType(ARRAY, packed)
    flat, size = array.reshape(-1), CHUNK // array.dtype.itemsize
    pieces = [flat[start : start + size] for start in range(0, flat.size, size)]
    return {
        CHUNKED: True,
        "shape": {str(axis): length for axis, length in enumerate(array.shape)},
        "chunks": {str(place): leaf(msgpack, piece) for place, piece in enumerate(pieces)},
    }
