"""The tensors of a folder of torch.distributed.checkpoint.save by name, without PyTorch.

    .metadata        a pickle: the shape of every tensor, and the place of each of its pieces
    __0_0.distcp     pieces one after the other, each a file of torch.save with one tensor
    __1_0.distcp     the pieces of the next process

Source: torch/distributed/checkpoint/metadata.py and filesystem.py of PyTorch 2.13.
"""

import math
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files import jsons
from stepnet.layout.files.model import Array
from stepnet.layout.files.part import open_range
from stepnet.layout.files.paths import reading
from stepnet.layout.files.pickles.machine import FileRange
from stepnet.layout.files.pickles.objects import attributes
from stepnet.layout.files.pickles.opcodes import load
from stepnet.layout.files.pickles.torch import arrays_in
from stepnet.layout.files.pickles.values import (
    Pairs,
    PickledCall,
    are_counts,
    array_name,
    is_shape,
    tuple_items,
)
from stepnet.layout.files.store import Store
from stepnet.layout.files.zips import ByteRange

METADATA = ".metadata"
LARGEST = 1 << 28  # the most bytes of the file .metadata
Offsets = tuple[int, ...]


def read(path: str | Path) -> dict[str, Array]:
    """Reads the tensors of a torch.distributed checkpoint by name; path is its folder, or its file .metadata.

    Raises `FileError`, with the path, for files that are missing, truncated or foreign.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    with reading(path):
        file = jsons.within(folder, METADATA)
        size = file.stat().st_size
        if size > LARGEST:
            raise FileError(f"its {METADATA} has more than {LARGEST} bytes")
        store = Store(None, size)
        for shard in folder.glob("*.distcp"):
            store.beside(shard.name, shard.stat().st_size)
        root = fields(load(FileRange(BytesIO(file.read_bytes()), 0, size), store=store))
        described = items(root, "state_dict_metadata")
        shapes = {array_name((name,)): shape_of(name, metadata) for name, metadata in described}
        pieces: dict[str, dict[Offsets, Array]] = {name: {} for name in shapes}
        for key, value in items(root, "storage_data"):
            index, slices = fields(key), fields(value)
            name = array_name((index.get("fqn"),))
            if shapes.get(name) is None:  # not a tensor, but a pickle of another object
                continue
            offsets = index.get("offset") or (0,) * len(shapes[name] or ())
            pieces[name][checked_offsets(name, offsets)] = piece(folder, name, slices, store)
        return {
            name: assembled(name, shape, pieces[name], store)
            for name, shape in shapes.items()
            if shape is not None
        }


def fields(value: object) -> dict[str, object]:
    """Returns a pickled object's attributes, with a torch.Size as a tuple; `FileError` for others."""
    if not isinstance(value, PickledCall):
        raise FileError(f"its {METADATA} has type {type(value).__name__} where an object must be")
    return {name: sized(item) for name, item in attributes(value) if isinstance(name, str)}


def sized(value: object) -> object:
    """Converts a pickled torch.Size to a tuple of numbers; returns any other value as it is."""
    return value.arguments[0] if isinstance(value, PickledCall) and value.name == "torch.Size" else value


def items(root: dict[str, object], name: str) -> list[tuple[object, object]]:
    """Returns the items of the dictionary `name` in the metadata of a distributed checkpoint; raises
    `FileError` if there is none. root: the metadata's fields by name.
    """
    value = root.get(name)
    if not isinstance(value, Pairs):
        raise FileError(f"its {METADATA} has no {name}, as those of torch.distributed.checkpoint have")
    return value.items


def shape_of(name: object, metadata: object) -> Offsets | None:
    """Returns a tensor's shape from its description in a distributed checkpoint, `metadata`; None for an
    object that is no tensor. name: the tensor's name, for messages. Raises `FileError` for a shape that no
    array can have.
    """
    size = fields(metadata).get("size")
    if isinstance(metadata, PickledCall) and metadata.name.endswith(".BytesStorageMetadata"):
        return None
    if not is_shape(size):
        raise FileError(f"{name!a} has a shape that no array can have")
    return cast(Offsets, size)


def checked_offsets(name: str, value: object) -> Offsets:
    """Checks a piece of the sharded tensor `name`: returns `value`, the index along each axis of the tensor
    at which the piece begins, as a tuple; raises `FileError` if it is not a tuple of such indices.
    """
    if not are_counts(value):
        raise FileError(f"a piece of {name!r} begins nowhere")
    return cast(Offsets, tuple_items(value))


def piece(folder: Path, name: str, description: dict[str, object], store: Store) -> Array:
    """Reads the numbers of one piece of the tensor `name`, which is a file of torch.save within a file of the
    folder. description: file, offset and length, from the metadata. store: the limit on the memory for the
    files of the model, from which the bytes are counted off. Raises `FileError` if it is missing or cut off,
    or over this limit.
    """
    match description:
        case {"relative_path": file, "offset": int(start), "length": int(length)} if start >= 0 <= length:
            path = jsons.within(folder, file)
        case _:
            raise FileError(f"{name!r} is not said to lie in a file")
    if description.get("transform_descriptors"):
        raise FileError(f"{name!r} is compressed or transformed; save the checkpoint without")
    if not path.is_file():
        raise FileError(f"its file {path.name} is missing")
    size = path.stat().st_size
    if start + length > size:
        raise FileError(f"its file {path.name} is cut off")
    store.beside(path.name, size)
    with open(path, "rb") as stream:
        arrays = arrays_in(open_range(stream, ByteRange(start, length)), length)
    if list(arrays) != ["tensor"]:
        raise FileError(f"a piece of {name!r} is no tensor")
    store.take(arrays["tensor"].nbytes, f"{name!r}")
    return arrays["tensor"]


def assembled(name: str, shape: Offsets, pieces: dict[Offsets, Array], store: Store) -> Array:
    """Assembles the tensor `name` of a distributed checkpoint from its pieces; raises `FileError` unless they
    fill it exactly, and for several dtypes.

    pieces: the arrays, by the index of the first element of each in the tensor. store: the limit on memory.
    """
    if len(pieces) == 1 and next(iter(pieces.values())).shape == shape:
        return next(iter(pieces.values()))
    if sum(array.size for array in pieces.values()) != math.prod(shape) or not pieces:
        raise FileError(f"not all pieces of {name!r} are there")
    dtype = next(iter(pieces.values())).dtype
    store.take(math.prod(shape) * (dtype.itemsize + 1), f"{name!r}")
    tensor, filled = np.empty(shape, dtype), np.zeros(shape, np.bool_)
    for offsets, array in pieces.items():
        slices = tuple(
            slice(start, start + length) for start, length in zip(offsets, array.shape, strict=False)
        )
        if len(offsets) != len(shape) or tensor[slices].shape != array.shape or filled[slices].any():
            raise FileError(f"a piece of {name!r} does not lie in it, or on another one")
        if array.dtype != dtype:
            raise FileError(f"the pieces of {name!r} are of several dtypes")
        tensor[slices], filled[slices] = array, True
    return tensor
