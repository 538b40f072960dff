"""One model in several files: shards, and an index file that maps arrays to shards.

    model.safetensors.index.json        {"metadata": ..., "weight_map": {"encoder.weight": "model-0...", ...}}
    model-00001-of-00002.safetensors
    model-00002-of-00002.safetensors    the same with pytorch_model.bin.index.json and .bin

The path of the index or of any shard stands for the whole model. A shard is never read by itself.

Source: huggingface_hub/serialization/_torch.py and transformers/utils/hub.py (get_checkpoint_shard_files).
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from stepnet.errors import FileError
from stepnet.layout.files import jsons, safetensors
from stepnet.layout.files.model import Array
from stepnet.layout.files.pickles import torch
from stepnet.layout.files.safetensors import is_safetensors

INDEX = re.compile(r"\.index(\.\w+)?\.json$")  # \w+ is a variant, as in index.fp16.json
SHARD = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})\.(?P<ending>safetensors|bin|pt|pth)$"
)
SHARDS = 1 << 12  # the most files of one model
MAP = "weight_map"


def is_index(path: Path) -> bool:
    """Returns True if a path is named as the index of a model in shards, which maps arrays to files."""
    return bool(INDEX.search(path.name))


def index_of(path: Path) -> Path | None:
    """Returns the index file of a model in shards, for the path of the index or a shard; None for others.

    Raises `FileError` if a file has the name of a shard, and there is no index.
    """
    if is_index(path):
        return path
    shard = SHARD.match(path.name)
    for index in indices_in(path.parent):
        try:
            if path.name in weight_map(index).values():
                return index
        except FileError:
            if shard:  # a broken index does not concern files that are not named as shards
                raise
    if shard and path.exists():
        expected = f"{shard['stem']}.{shard['ending']}.index.json"
        raise FileError(
            f"{path}: this is one of {int(shard['count'])} files of a model, and there is no {expected} "
            "beside it, which says what is in the others; put it and all of them into one folder"
        )
    return None


def indices_in(folder: Path) -> list[Path]:
    """Returns the index files in a folder, each of which maps a model's arrays to the files that they are in;
    [] if there is no such folder. Raises `FileError` if the folder cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if is_index(path)) if os.path.isdir(folder) else []
    except OSError as error:
        raise FileError(f"{folder}: the folder cannot be read ({error.strerror or error})") from error


def weight_map(index: Path) -> Mapping[str, str]:
    """Reads the index file of a model in shards: returns {array name: name of the file that holds it}. Raises
    `FileError`, with the path, if the index is broken.
    """
    entries: Any = jsons.read(index).get(MAP)
    file_of = cast("dict[str, Any]", entries) if isinstance(entries, dict) else {}
    if not file_of or not all(isinstance(file_name, str) for file_name in file_of.values()):
        raise FileError(f'{index}: this is not an index of shards: it has no "{MAP}" from arrays to files')
    if len(set(file_of.values())) > SHARDS:
        raise FileError(f"{index}: it names more than {SHARDS} files")
    return file_of


def read(path: Path) -> dict[str, Array]:
    """Reads the arrays of all shards of a model by name, in the index's order; path: the index or a shard.

    Raises `FileError`, with the path, if a shard is missing or if its arrays are not those of the index.
    """
    index = index_of(path)
    if index is None:
        raise FileError(f"{path}: this is neither a shard of a model nor its index")
    file_of = weight_map(index)
    merged: dict[str, Array] = {}
    for file in dict.fromkeys(file_of.values()):
        try:
            shard = jsons.within(index.parent, file)
        except FileError as error:
            raise FileError(f"{index}: {error}") from None
        if not shard.exists():
            raise FileError(f"{index}: the model is in several files, and {file} is not beside it")
        arrays = safetensors.read(shard) if is_safetensors(shard) else torch.read(shard)
        listed = {name for name, file_name in file_of.items() if file_name == file}
        if listed != arrays.keys():
            name = min(listed ^ arrays.keys())
            which = "has no" if name in listed else "does not tell of the"
            raise FileError(
                f"{index}: {'the file ' + file if name in listed else 'it'} {which} array {name!a}"
            )
        merged |= arrays
    return {name: merged[name] for name in file_of}
