"""The weights in a .nemo file by name: a tar of model_config.yaml and of model_weights.ckpt, a state dict.

Source: nemo/core/connectors/save_restore_connector.py of NeMo 2.
"""

from pathlib import Path, PurePosixPath

from stepnet.errors import FileError
from stepnet.files.model import Array
from stepnet.files.part import part
from stepnet.files.paths import opened
from stepnet.files.pickles import torch_legacy
from stepnet.files.pickles.torch import arrays_in

WEIGHTS = "model_weights.ckpt"
GZIP = b"\x1f\x8b"


def read(path: str | Path) -> dict[str, Array]:
    """The tensors of a .nemo file by name; raises `FileError`, with the path.

    >>> read("model.nemo")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.nemo: there is no such file
    """
    with opened(path) as (stream, size):
        if stream.read(len(GZIP)) == GZIP:
            raise FileError("it is a compressed tar, as NeMo 1 wrote; unpack it with gunzip -S .nemo")
        files = torch_legacy.members(stream, size)
        weights = [place for name, place in files.items() if PurePosixPath(name).name == WEIGHTS]
        if len(weights) != 1:
            raise FileError(f"this is no .nemo file: it is a tar with {len(weights)} files {WEIGHTS}")
        return arrays_in(part(stream, weights[0]), weights[0].size)
