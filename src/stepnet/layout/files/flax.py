"""Reads and writes the msgpack files of flax.serialization as arrays by name, without Flax.

The name of an array is its path in the tree of dictionaries, joined by "/". flax/serialization.py: an array
is extension 1, the packed [shape, dtype's name, bytes]; a NumPy scalar is extension 3, the same; a tuple is
extension 4, a packed list; an array of more than 1 GiB is a dictionary
{"__msgpack_chunked_array__": true, "shape": {"0": ...}, "chunks": {"0": ...}}.
"""

import math
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files import msgpacks
from stepnet.layout.files.paths import existing, library, new_file, reading
from stepnet.layout.files.store import OBJECT, Store

Array = np.ndarray[Any, np.dtype[Any]]
Tree = dict[str, Any]

ARRAY, SCALAR, TUPLE = 1, 3, 4
CHUNKED = "__msgpack_chunked_array__"
MOST_AXES = 32
CHUNK = 1 << 30  # bytes of a chunk, as in Flax
DEEPEST = 100
DEEPEST_TUPLE = 8  # the deepest nesting of tuples, as each is decoded by a call of its own
LONGEST = 1 << 12  # items of a list: msgpack allocates a list before it reads its items
NAME = 1000  # the most characters of an array's name
DTYPES = {
    name: np.dtype(name)
    for name in (
        *("float64", "float32", "float16", "bool", "complex64", "complex128"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def read(path: str | Path) -> dict[str, Array]:
    """Reads the arrays of a Flax .msgpack file by name, as views of its bytes.

    Raises `FileError`, with the path, for a file that is truncated or foreign.

    >>> read("model.msgpack")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.msgpack: there is no such file
    """
    path = existing(path)
    msgpack = library("msgpack", "a .msgpack file", "flax")  # reports a missing library before any work
    with reading(path):
        data = path.read_bytes()
    try:
        arrays: dict[str, Array] = {}
        store = Store(None, len(data))
        for name, array in leaves(unpacked(data, store), ()):
            store.take(OBJECT + len(name), "the names of its arrays")
            if name in arrays:
                raise FileError(f"it has two arrays of the name {name!a}")
            arrays[name] = array
        return arrays
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(f"{path}: this is not a complete .msgpack file ({reason})") from error


def unpacked(data: bytes, store: Store, tuples: int = 0) -> Any:
    """Decodes the bytes of a Flax msgpack file, or of a tuple in it, to a tree of dictionaries, lists and
    arrays; raises `FileError` for tuples that are nested too deep. tuples: the number of tuples around the
    bytes. store: the limit on memory.
    """
    msgpacks.count(data, store)

    def extension(code: int, inner: bytes) -> Any:
        """Decodes a Flax extension, `inner`, by its number `code`: a tuple, array or scalar; None for other
        codes. Raises `FileError` for tuples that are nested too deep.
        """
        if code == TUPLE and tuples < DEEPEST_TUPLE:
            return unpacked(inner, store, tuples + 1)
        if code == TUPLE:
            raise FileError(f"its tuples are deeper than {DEEPEST_TUPLE}")
        return array_of(inner) if code in (ARRAY, SCALAR) else None

    return import_module("msgpack").unpackb(
        data,
        ext_hook=extension,
        object_pairs_hook=branch_of,
        raw=False,
        max_ext_len=len(data),
        max_array_len=LONGEST,
    )


def branch_of(pairs: list[tuple[Any, Any]]) -> Tree:
    """Makes a branch of the tree of msgpack's (key, value) pairs; `FileError` for a repeated key."""
    branch = dict(pairs)
    if len(branch) != len(pairs):
        raise FileError("a dictionary in it has a key twice")
    return branch


def array_of(data: bytes) -> Array:
    """Decodes an array in Flax's packed form [shape, dtype's name, bytes]; raises `FileError` for others."""
    packed = import_module("msgpack").unpackb(data, raw=True, max_ext_len=0, max_array_len=MOST_AXES)
    if not isinstance(packed, list | tuple) or len(cast("list[Any]", packed)) != 3:
        raise FileError("an array in it has no shape, dtype and bytes")
    shape, dtype, numbers = cast("list[Any]", packed)
    name = dtype.decode("ascii", "replace") if isinstance(dtype, bytes) else repr(dtype)
    if name not in DTYPES:
        raise FileError(f"an array in it holds {name[:50]!a}, which is not read")
    if not isinstance(numbers, bytes) or not is_shape(shape, len(numbers) // DTYPES[name].itemsize):
        raise FileError("an array in it has more or fewer bytes than its shape requires")
    array = np.frombuffer(numbers, DTYPES[name])
    if array.size != math.prod(shape):
        raise FileError("an array in it has more or fewer bytes than its shape requires")
    return array.reshape(shape)


def is_shape(value: Any, most: int) -> bool:
    """Returns True if a value from a Flax file is an array's shape, of at most `most` numbers."""
    if not isinstance(value, list | tuple) or len(cast("list[Any]", value)) > MOST_AXES:
        return False
    sizes = cast("list[Any]", value)
    return all(type(size) is int and size >= 0 for size in sizes) and math.prod(sizes) <= most


def leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Array]]:
    """Yields (name, array) for every array in a tree of dictionaries and lists from a Flax file. Other
    values, such as texts and numbers, are skipped. path: the keys that lead from the root to `tree`; their
    joined names are the name of an array. Raises `FileError` for a tree that is too deep.
    """
    if len(path) > DEEPEST:
        raise FileError(f"its tree is deeper than {DEEPEST}")
    if isinstance(tree, np.ndarray):
        yield name_of(path), cast(Array, tree)
    elif isinstance(tree, dict):
        branch = cast("dict[Any, Any]", tree)
        if CHUNKED in branch:
            yield name_of(path), joined_chunks(branch)
            return
        for key, value in branch.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(tree, list):
        for index, value in enumerate(cast("list[Any]", tree)):
            yield from leaves(value, (*path, str(index)))


def name_of(path: tuple[str, ...]) -> str:
    """Joins the keys that lead to an array in a Flax file to its name; `FileError` if it is too long."""
    if sum(map(len, path)) > NAME:
        raise FileError(f"it has an array with a name of more than {NAME} characters")
    return "/".join(path) or "array"


def joined_chunks(chunked: Mapping[Any, Any]) -> Array:
    """Joins the chunks in which Flax stores a long array, and gives it its shape; raises `FileError` if they
    do not fit. chunked: the dictionary that holds both.
    """
    shape, chunks = list_values(chunked.get("shape")), list_values(chunked.get("chunks"))
    if shape is None or chunks is None:
        raise FileError("a long array in it has no shape and chunks")
    if (
        not all(isinstance(chunk, np.ndarray) for chunk in chunks)
        or len({chunk.dtype for chunk in chunks}) != 1
    ):
        raise FileError("a long array in it has no chunks, or chunks that are not arrays of one dtype")
    flat = np.concatenate([np.ravel(chunk) for chunk in chunks])
    if not is_shape(shape, flat.size) or math.prod(shape) != flat.size:
        raise FileError("a long array in it has more or fewer numbers than its shape requires")
    return flat.reshape(shape)


def list_values(numbered: Any) -> list[Any] | None:
    """Returns the values, in order, of a dictionary with the keys "0", "1", ..., as which Flax writes a list;
    None for any other value. numbered: the dictionary.
    """
    if not isinstance(numbered, dict):
        return None
    values = cast("dict[Any, Any]", numbered)
    keys = [str(index) for index in range(len(values))]
    return [values[key] for key in keys] if values.keys() == set(keys) else None


# ---- writing -----------------------------------------------------------------------------------------------


def write(path: str | Path, arrays: Mapping[str, Array], force: bool = False) -> None:
    """Writes arrays to a .msgpack file, as the tree that flax.serialization.msgpack_restore returns.

    Raises `FileError`, with the path, for names that are both an array and a branch, for dtypes that Flax
    lacks, and if the file exists, unless `force`.
    """
    msgpack = library("msgpack", "a .msgpack file", "flax")
    tree: Tree = {}
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise FileError(f"{path}: {name!r} holds {array.dtype.name}, which Flax's files do not have")
        branch: Any = tree
        *front, last = name.split("/")
        for chunk in front:
            branch = cast("Tree", branch).setdefault(chunk, {})
            if not isinstance(branch, dict):
                raise FileError(f"{path}: {name!r} lies in {chunk!r}, which is an array")
        if last in branch:
            raise FileError(f"{path}: {name!r} is an array, and a branch with others in it")
        native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        branch[last] = encoded_array(msgpack, native.reshape(array.shape))
    with new_file(path, force) as partial, open(partial, "wb") as stream:
        stream.write(msgpack.packb(tree, use_bin_type=True))


def encoded_array(msgpack: Any, array: Array) -> Any:
    """Encodes an array as Flax does: as a msgpack extension or, if it is longer than `CHUNK`, as a dictionary
    of its shape and its chunks. msgpack: the library.
    """
    if array.nbytes <= CHUNK:
        packed = msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True)
        return msgpack.ExtType(ARRAY, packed)
    flat, size = array.reshape(-1), CHUNK // array.dtype.itemsize
    pieces = [flat[start : start + size] for start in range(0, flat.size, size)]
    return {
        CHUNKED: True,
        "shape": {str(axis): length for axis, length in enumerate(array.shape)},
        "chunks": {str(index): encoded_array(msgpack, piece) for index, piece in enumerate(pieces)},
    }
