"""Arrays as the bytes that a program hands to cuDNN or oneDNN, with a small JSON file that describes them.

weights.bin   the buffers one after the other, each at a multiple of 64 bytes; a single one is the file
weights.json  {"format": "stepnet raw 1", "layout": "cudnn.gru", "dtype": "float32",
               "byteorder": "little", "file": "weights.bin",
               "arrays": [{"name": "weight_space", "shape": [63], "offset": 0}], "sizes": ...}
"""

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files import jsons
from stepnet.layout.files.model import Array, FileContents, Module
from stepnet.layout.files.paths import existing, new_file, reading
from stepnet.layout.files.store import Store
from stepnet.layout.options import option
from stepnet.layout.registry import records

FORMAT = "stepnet raw 1"
ALIGNMENT = 64
MOST_AXES = 32
MOST_NUMBERS = 1 << 56  # the most that NumPy allows, where empty axes count as 1
DTYPES = {
    **{name: np.dtype(name) for name in ("float64", "float32", "float16")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def read(path: Path) -> FileContents:
    """Reads a raw buffer (the weights of one layer as the bytes that cuDNN or oneDNN takes), given by its
    .json or .bin file, as contents with one module (recurrent layer); raises `FileError` for an unknown
    layout (arrangement of weights), and for sizes or settings that are not numbers or words by name.
    """
    arrays, description = buffers(path)
    layout: Any = description.get("layout")
    sizes: Any = description.get("sizes") or {}
    semantics: Any = description.get("semantics") or {}
    if not isinstance(layout, str) or layout not in records():
        raise FileError(f"{path}: its layout is {layout!r}, which is unknown; `stepnet layouts` lists all")
    if not is_flat(sizes, int) or not is_flat(semantics, str | int | float):
        raise FileError(f"{path}: sizes and semantics are numbers or words by name")
    module = Module("", (layout,), arrays, sizes=cast("dict[str, int]", sizes), semantics=semantics)
    return FileContents(str(path), (module,))


def is_flat(value: Any, kind: Any) -> bool:
    """Returns True if a JSON value is an object whose values are all of the type `kind`."""
    return isinstance(value, dict) and all(
        isinstance(member, kind) for member in cast("dict[str, Any]", value).values()
    )


def write(path: Path, modules: tuple[Module, ...], rest: dict[str, Array], force: bool) -> None:
    """Writes one module (recurrent layer) as a raw buffer, the bytes that cuDNN or oneDNN takes:
    `weights.json`, and `weights.bin` beside it. Raises `FileError` for several modules, and for other arrays
    (`rest`), which it cannot hold.
    """
    for question, is_needed in (("module", len(modules) != 1), ("rest", bool(rest))):
        if is_needed:
            remedy = option(question, rest="drop")
            raise FileError(f"{path}: a raw buffer holds one recurrent module and nothing else; say {remedy}")
    module = modules[0]
    description = {"layout": module.layout, "sizes": dict(module.sizes), "semantics": dict(module.semantics)}
    write_buffers(path, dict(module.arrays), description, force)


# ---- the bytes and their description -----------------------------------------------------------------------


def buffers(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Reads the arrays of a raw buffer, a .bin file of the bytes of weights, by name, and its description in
    a .json file; path: of the .json or the .bin file.

    Raises `FileError`, with the path, for a description that does not fit the .bin file, or that names a file
    in another folder.

    >>> buffers("weights.json")
    Traceback (most recent call last):
    stepnet.errors.FileError: weights.json: there is no such file
    """
    path = existing(path).with_suffix(".json")
    described = description(existing(path))
    where = described.get("file", path.with_suffix(".bin").name)
    if not isinstance(where, str) or Path(where).name != where or where in ("", ".", ".."):
        raise FileError(f"{path}: its file is {where!r}, which is no name in its folder")
    buffer = existing(path.with_name(where))
    if buffer.resolve().parent != path.resolve().parent:
        raise FileError(f"{path}: its file {where!r} is a link out of its folder")
    dtype = DTYPES.get(str(described.get("dtype")))
    order = {"little": "<", "big": ">"}.get(str(described.get("byteorder")))
    listed = described.get("arrays")
    if dtype is None or order is None or not isinstance(listed, list):
        raise FileError(
            f"{path}: it does not say dtype, byteorder and arrays as a raw buffer's description does"
        )
    size = buffer.stat().st_size
    parsed_entries = [parsed_entry(path, entry, size, dtype) for entry in cast("list[Any]", listed)]
    spans = sorted(
        (offset, offset + math.prod(shape) * dtype.itemsize) for _, shape, offset in parsed_entries
    )
    if any(start < end for (_, end), (start, _) in pairwise(span for span in spans if span[0] < span[1])):
        raise FileError(f"{path}: arrays in it share bytes")
    Store(path, size).take(size, buffer.name)
    with reading(buffer):
        data = np.fromfile(buffer, np.uint8)
    arrays: dict[str, Array] = {}
    for name, shape, offset in parsed_entries:
        if name in arrays:
            raise FileError(f"{path}: it has two arrays of the name {name[:100]!r}")
        numbers = data[offset : offset + math.prod(shape) * dtype.itemsize]
        unsigned = numbers.view(np.dtype(f"{order}u{dtype.itemsize}")).astype(
            f"=u{dtype.itemsize}", copy=False
        )
        arrays[name] = unsigned.view(dtype).reshape(shape)
    return arrays, described


def description(path: Path) -> dict[str, Any]:
    """Reads the .json file that describes a raw buffer of weights; raises `FileError` for other JSON."""
    described = jsons.read(path)
    if described.get("format") != FORMAT:
        raise FileError(f'{path}: this is not a description of a raw buffer: it has no "format": "{FORMAT}"')
    return described


def parsed_entry(path: Path, entry: Any, size: int, dtype: np.dtype[Any]) -> tuple[str, tuple[int, ...], int]:
    """Returns the name, shape and offset of an array in a raw buffer, a file of the bytes of weights; raises
    `FileError` if the array does not lie in the buffer.

    path: of the description, for messages. entry: the array's entry in it. size: the buffer's bytes. dtype:
    of the array.
    """
    fields: dict[str, Any] = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    name, shape, offset = fields.get("name"), fields.get("shape"), fields.get("offset")
    numbers: list[Any] = [*cast("list[Any]", shape), offset] if isinstance(shape, list) else [None]
    if not isinstance(name, str) or not all(type(number) is int and number >= 0 for number in numbers):
        raise FileError(f"{path}: an array in it has no name, shape and offset")
    sizes = tuple(numbers[:-1])
    wide = len(sizes) > MOST_AXES or math.prod(max(1, length) for length in sizes) > MOST_NUMBERS
    if wide or numbers[-1] + math.prod(sizes) * dtype.itemsize > size:
        shown = f"{name[:100]!r} of shape {str(sizes)[:100]} at byte {str(offset)[:100]}"
        raise FileError(f"{path}: {shown} does not lie in {size} bytes")
    return name, sizes, numbers[-1]


def write_buffers(
    path: str | Path, arrays: Mapping[str, Array], description: Mapping[str, Any], force: bool = False
) -> None:
    """Writes a raw buffer: `weights.bin` with the bytes of the arrays, one after the other, and last
    `weights.json` with the description, to which names, shapes and offsets of the arrays are added.

    path: the path of either file. Raises `FileError`, with the path, for arrays of several dtypes or of a
    dtype that is not in `DTYPES`, and if one of the files exists, unless `force`.
    """
    path = Path(path).with_suffix(".json")
    names = {array.dtype.name for array in arrays.values()}
    if len(names) != 1 or not names <= DTYPES.keys():
        raise FileError(
            f"{path}: a raw buffer is of one dtype of {', '.join(DTYPES)}, not {', '.join(names)}"
        )
    (dtype,) = names
    buffer = path.with_suffix(".bin")
    listed: list[dict[str, Any]] = []
    with new_file(path, force) as text, new_file(buffer, force) as binary:
        with open(binary, "wb") as stream:
            for name, array in arrays.items():
                stream.write(bytes(-stream.tell() % ALIGNMENT))
                listed.append({"name": name, "shape": list(array.shape), "offset": stream.tell()})
                native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
                unsigned = native.view(f"=u{array.dtype.itemsize}")
                unsigned.astype(f"<u{array.dtype.itemsize}", copy=False).tofile(stream)
        facts = {"format": FORMAT, **description, "dtype": dtype, "byteorder": "little"}
        described = {**facts, "file": buffer.name, "arrays": listed}
        text.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
