"""The weights of a .pt2 archive of torch.export.save by the names of the state dict, without PyTorch.

    model/data/weights/model_weights_config.json    {"config": {"gru.weight_ih_l0": {"path_name": "weight_0",
                                                     "use_pickle": false, "tensor_meta": {...}}}}
    model/data/weights/weight_0                     the bytes of a storage
    model/data/constants/...                        the same for tensors that are no parameters

PyTorch before 2.8 wrote serialized_state_dict.pt, which is a file of torch.save, and the same for constants.

Source: torch/export/pt2_archive/_package.py and torch/_export/serde/schema.py of PyTorch 2.13.
"""

import re
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from stepnet.errors import FileError
from stepnet.layout.files import jsons, zips
from stepnet.layout.files.model import Array
from stepnet.layout.files.part import open_range
from stepnet.layout.files.paths import opened
from stepnet.layout.files.pickles.objects import TorchFile
from stepnet.layout.files.pickles.program import program_of
from stepnet.layout.files.pickles.torch import arrays_in
from stepnet.layout.files.pickles.torch_tensor import SIZES, StorageRange, Tensor, arrays
from stepnet.layout.files.pickles.values import Pairs, are_counts, is_shape
from stepnet.layout.files.store import Store
from stepnet.layout.files.zips import ByteRange, Member, bytes_at

CONFIGS = ("_weights_config.json", "_constants_config.json")
PROGRAM = re.compile(r"(/models/[^/]+|serialized_exported_program)[.]json$")
OLDER = ("serialized_state_dict.pt", "serialized_constants.pt")
DTYPES = {  # torch/_export/serde/schema.py: ScalarType
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    34: "uint32",
    35: "uint64",
}


def read(path: str | Path) -> dict[str, Array]:
    """Reads the weights and constants of a torch.export file (.pt2) by name; raises `FileError`, with the
    path, for any other file.

    >>> read("model.pt2")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.pt2: there is no such file
    """
    return held(path).arrays


def held(path: str | Path) -> TorchFile:
    """Reads the weights and constants of a .pt2 file of torch.export, and the program that calls its
    recurrent layers, if it has exactly one.
    """
    with opened(path) as (stream, size):
        members = zips.members(stream, size)
        arrays_by_name = in_archive(stream, size, members)
        document = program_in(stream, size, members)
        if document is None:
            return TorchFile(arrays_by_name)
        return TorchFile(arrays_by_name, program=program_of(document), unspecified="")


def program_in(stream: BufferedIOBase, size: int, members: dict[str, Member]) -> jsons.Object | None:
    """Reads the program of an open .pt2 archive as JSON; None if it has none, or several.

    size: the number of bytes of the archive. members: the members of its zip, by name.
    """
    programs = [member for name, member in members.items() if PROGRAM.search(name)]
    if len(programs) != 1:
        return None
    data = bytes_at(stream, zips.byte_range_of(stream, programs[0], size)).tobytes()
    return jsons.parsed(data, programs[0].name, Store(None, size))


def in_archive(stream: BufferedIOBase, size: int, members: dict[str, Member]) -> dict[str, Array]:
    """Reads the weights and constants of an open .pt2 archive by name; with several models in it, the name of
    each is a prefix.

    size: the number of bytes of the archive. members: the members of its zip, by name. Raises `FileError` if
    it has no list of weights, or two of one name.
    """
    config_members = [member for name, member in members.items() if name.endswith(CONFIGS)]
    older_members = [member for name, member in members.items() if name.endswith(OLDER)]
    if not config_members and not older_members:
        raise FileError("this zip is none of torch.export.save's: it holds no list of weights")
    merged: dict[str, Array] = {}
    for member in older_members:
        byte_range = zips.byte_range_of(stream, member, size)
        merged |= checked_new(merged, arrays_in(open_range(stream, byte_range), byte_range.size))
    for member in config_members:
        folder, _, file = member.name.rpartition("/")
        configs = [entry.name for entry in config_members if entry.name.endswith(file.partition("_")[2])]
        model = f"{file.removesuffix(CONFIGS[0]).removesuffix(CONFIGS[1])}." if len(configs) > 1 else ""
        data = bytes_at(stream, zips.byte_range_of(stream, member, size)).tobytes()
        config = jsons.parsed(data, file, Store(None, size)).get("config")
        entries = cast("dict[str, Any]", config) if isinstance(config, dict) else {}
        inner = weights(stream, size, members, folder, entries)
        merged |= checked_new(merged, {f"{model}{name}": array for name, array in inner.items()})
    return merged


def checked_new(merged: dict[str, Array], arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns `arrays`, to be merged; raises `FileError` if one has the name of an array in `merged`."""
    for name in arrays.keys() & merged.keys():
        raise FileError(f"it holds two arrays of the name {name!a}")
    return arrays


def weights(
    stream: BufferedIOBase, size: int, members: dict[str, Member], folder: str, entries: dict[str, Any]
) -> dict[str, Array]:
    """Reads the tensors that a torch.export file lists, by name. Each is a member of its zip in `folder`, as
    bytes or as a file of torch.save.

    entries: the list, by the tensors' names. members: of the zip. size: of the zip file. Raises `FileError`
    if a member is missing.
    """
    tensors: list[tuple[object, object]] = []
    byte_ranges: dict[str, ByteRange] = {}
    pickled: dict[str, Array] = {}
    for name, value in entries.items():
        entry = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        member = members.get(f"{folder}/{entry.get('path_name')}")
        if member is None:
            raise FileError(f"it does not hold the numbers of {name[:100]!a}")
        if entry.get("use_pickle") and entry.get("tensor_meta") is None:
            continue  # an object that is no tensor
        byte_range = zips.byte_range_of(stream, member, size)
        if entry.get("use_pickle"):
            pickled |= {
                name if key == "tensor" else f"{name}.{key}": array
                for key, array in arrays_in(open_range(stream, byte_range), byte_range.size).items()
            }
            continue
        byte_ranges[member.name] = byte_range
        tensors.append((name, tensor_of(name, member.name, byte_range.size, entry.get("tensor_meta"))))
    return {**arrays(stream, size, Pairs(tensors), byte_ranges.get, big=False), **pickled}


def tensor_of(name: str, key: str, size: int, meta: Any) -> Tensor:
    """Describes a tensor of a .pt2 file as a part of the storage `key` of `size` bytes; raises `FileError`
    for a dtype that is not read. name: for messages. meta: its tensor_meta in JSON.
    """
    fields = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
    dtype = DTYPES.get(cast(Any, fields.get("dtype")))
    if dtype is None:
        raise FileError(f"{name[:100]!a} holds numbers of kind {fields.get('dtype')!a}, which is not read")
    shape, strides = numbers(fields.get("sizes")), numbers(fields.get("strides"))
    offset = numbers([fields.get("storage_offset")])
    if not is_shape(shape) or not are_counts(strides) or not are_counts(offset):
        raise FileError(f"{name[:100]!a} has no shape, strides and offset")
    return Tensor(StorageRange(key, dtype, size // SIZES[dtype]), dtype, offset[0], shape, strides)


def numbers(values: Any) -> Any:
    """Returns the integers in a list of JSON objects such as [{"as_int": 9}, ...] as a tuple; else None."""
    items = cast("list[Any]", values) if isinstance(values, list) else [None]
    fields = [cast("dict[str, Any]", value) if isinstance(value, dict) else {} for value in items]
    return tuple(field["as_int"] for field in fields) if all("as_int" in field for field in fields) else None
