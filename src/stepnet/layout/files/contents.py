"""The kind of a file by its content. The endings of file names are hints only, and often missing or wrong:
a PyTorch checkpoint may end in .pt, .pth.tar, .th, .ckpt, .model or nothing.
"""

import os
import re
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from stepnet.errors import FileError
from stepnet.layout.files import zips
from stepnet.layout.files.checkpoint.file import ends_as_table
from stepnet.layout.files.paths import opened
from stepnet.layout.files.pickles import torch_legacy
from stepnet.layout.files.safetensors import begins_as_safetensors

HEAD = 512  # bytes that are enough to recognise every kind
PIR = re.compile(rb'\s*{\s*"base_code"\s*:\s*{[^}]*"magic"\s*:\s*"pir"')
"""The first bytes of a program of Paddle 3."""
MXNET = 0x112  # the magic number of a list of arrays (src/ndarray/ndarray.cc: kMXAPINDArrayListMagic)

# Tests for the first bytes of a file, by the title of its kind in `formats.FORMATS`.
BEGINS: dict[str, Callable[[bytes], bool]] = {
    "Keras": lambda head: head.startswith(b"\x89HDF\r\n\x1a\n"),
    "TFLite": lambda head: head[4:8] == b"TFL3",
    "PyTorch": torch_legacy.is_stream,
    "MXNet": lambda head: head[:16] == MXNET.to_bytes(8, "little") + bytes(8),
    "safetensors": begins_as_safetensors,
}
# Ends of members' names by which a zip's kind is recognised.
ZIPPED = {
    "PyTorch": ("/data.pkl",),
    "PyTorch export": ("/archive_format", "serialized_exported_program.json"),
    "Keras": ("model.weights.h5",),
    "NumPy": (".npy",),
}
# Files by which the kind of a folder is recognised.
FOLDERS = {
    "TensorFlow SavedModel": ("saved_model.pb",),
    "PyTorch distributed checkpoint": (".metadata",),
    "Core ML": ("Manifest.json",),
    "Orbax": ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"),
}


def title_of(path: Path) -> str | None:
    """Recognises a model file or folder by its content: returns the title of its kind, such as "Keras"; None
    if the content is unknown or incomplete.
    """
    if path.is_dir():
        return next(
            (
                title
                for title, names in FOLDERS.items()
                if any(os.path.lexists(path / name) for name in names)
            ),
            None,
        )
    with opened(path) as (stream, size):
        head = stream.read(HEAD)
        if head.startswith(b"PK\3\4"):
            return zip_title(stream, size)
        if torch_legacy.is_tar(head):
            return tar_title(stream, size)
        leading_title = next((title for title, begins in BEGINS.items() if begins(head)), None)
        return leading_title or ("TensorFlow checkpoint" if ends_as_table(path) else None)


def is_paddle_program(path: Path) -> bool:
    """Returns True if a file is a program of PaddlePaddle, by its name, and by the file of parameters beside
    it or, as a program may have none, its first bytes.
    """
    if path.suffix != ".json":
        return path.suffix == ".pdmodel"
    if path.with_suffix(".pdiparams").exists():
        return True
    if not path.is_file():
        return False
    with opened(path) as (stream, _):
        return bool(PIR.match(stream.read(HEAD)))


def zip_title(stream: BufferedReader, size: int) -> str | None:
    """Returns the title of the kind of model in a zip file, by the names of its members; None for an unknown
    kind or a damaged zip. size: the size of the file in bytes.
    """
    try:
        names = tuple(zips.members(stream, size))
    except FileError:  # reported by the reader that the file's ending selects
        return None
    return next((title for title, ends in ZIPPED.items() if any(name.endswith(ends) for name in names)), None)


def tar_title(stream: BufferedReader, size: int) -> str | None:
    """Returns the title of the kind of model in a tar file, by the names of its members; None for an unknown
    kind or a damaged tar. size: the size of the file in bytes.
    """
    try:
        names = {Path(name).name for name in torch_legacy.members(stream, size)}
    except FileError:
        return None
    return "NeMo" if "model_weights.ckpt" in names else "PyTorch" if "storages" in names else None
