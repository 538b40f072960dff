"""What kind of file some bytes are, where they tell: the endings of names are hints, and often none or wrong.

A checkpoint of PyTorch is called .pt, .pth.tar, .th, .ckpt, .model or nothing; its bytes begin the same.
"""

import os
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from stepnet.errors import FileError
from stepnet.files import zips
from stepnet.files.checkpoint.file import ends_as_table
from stepnet.files.pickles import torch_legacy
from stepnet.files.safetensors import begins_as_safetensors

HEAD = 512  # bytes, of which every kind tells
MXNET = 0x112  # of a list of arrays (src/ndarray/ndarray.cc: kMXAPINDArrayListMagic)

# What a file begins with, by the title of its kind in `formats.FORMATS`.
BEGINS: dict[str, Callable[[bytes], bool]] = {
    "Keras": lambda head: head.startswith(b"\x89HDF\r\n\x1a\n"),
    "TFLite": lambda head: head[4:8] == b"TFL3",
    "PyTorch": torch_legacy.is_stream,
    "MXNet": lambda head: head[:16] == MXNET.to_bytes(8, "little") + bytes(8),
    "safetensors": begins_as_safetensors,
}
# What a zip holds, by the end of a member's name.
ZIPPED = {
    "PyTorch": ("/data.pkl",),
    "PyTorch export": ("/archive_format", "serialized_exported_program.json"),
    "Keras": ("model.weights.h5",),
    "NumPy": (".npy",),
}
# What lies in a folder that is a model.
FOLDERS = {
    "TensorFlow SavedModel": ("saved_model.pb",),
    "PyTorch distributed checkpoint": (".metadata",),
    "Core ML": ("Manifest.json",),
    "Orbax": ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"),
}


def title_of(path: Path) -> str | None:
    """The title of a file's or a folder's kind; None where it does not tell, or is not whole."""
    if path.is_dir():
        return next(
            (title for title, names in FOLDERS.items() if any(is_in(path, name) for name in names)), None
        )
    try:
        with open(path, "rb") as stream:
            head = stream.read(HEAD)
            if head.startswith(b"PK\3\4"):
                return zip_title(stream, os.fstat(stream.fileno()).st_size)
            if torch_legacy.is_tar(head):
                return tar_title(stream, os.fstat(stream.fileno()).st_size)
        begun = next((title for title, begins in BEGINS.items() if begins(head)), None)
        return begun or ("TensorFlow checkpoint" if ends_as_table(path) else None)
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or error})") from error


def is_in(folder: Path, name: str) -> bool:
    """Whether a folder has something of a name."""
    return os.path.lexists(folder / name)


def zip_title(stream: BufferedReader, size: int) -> str | None:
    """The kind of a zip, by what is in it."""
    try:
        names = tuple(zips.members(stream, size))
    except FileError:  # which the reader of the kind that its ending says puts into words
        return None
    return next((title for title, ends in ZIPPED.items() if any(name.endswith(ends) for name in names)), None)


def tar_title(stream: BufferedReader, size: int) -> str | None:
    """The kind of a tar, by what is in it."""
    try:
        names = {Path(name).name for name in torch_legacy.members(stream, size)}
    except FileError:
        return None
    return "NeMo" if "model_weights.ckpt" in names else "PyTorch" if "storages" in names else None
