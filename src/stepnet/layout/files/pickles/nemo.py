"""The weights in a .nemo file by name: a tar of model_config.yaml and of model_weights.ckpt, a state dict.

NeMo 1 compressed the tar by gzip. Such a file is unpacked in memory, within the usual limit.
Source: nemo/core/connectors/save_restore_connector.py of NeMo 1 and 2.
"""

import zlib
from io import BufferedIOBase, BytesIO
from os import SEEK_END
from pathlib import Path, PurePosixPath

from stepnet.errors import FileError
from stepnet.layout.files.model import Array
from stepnet.layout.files.part import open_range
from stepnet.layout.files.paths import opened
from stepnet.layout.files.pickles import torch_legacy
from stepnet.layout.files.pickles.torch import arrays_in
from stepnet.layout.files.store import Store

WEIGHTS = "model_weights.ckpt"
GZIP = b"\x1f\x8b"
PIECE = 1 << 20  # bytes that are unpacked at a time


def read(path: str | Path) -> dict[str, Array]:
    """Reads the tensors of a .nemo file (a tar with the weights of a PyTorch model in it) by name; raises
    `FileError`, with the path, for any other file.

    >>> read("model.nemo")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.nemo: there is no such file
    """
    with opened(path) as (stream, size):
        packed = stream.read(len(GZIP)) == GZIP
        tar = unpacked(stream, Store(None, size)) if packed else stream
        files = torch_legacy.members(tar, tar.seek(0, SEEK_END))
        weights = [byte_range for name, byte_range in files.items() if PurePosixPath(name).name == WEIGHTS]
        if len(weights) != 1:
            raise FileError(f"this is not a .nemo file: it is a tar with {len(weights)} files {WEIGHTS}")
        return arrays_in(open_range(tar, weights[0]), weights[0].size)


def unpacked(stream: BufferedIOBase, store: Store) -> BytesIO:
    """Decompresses a gzip file into memory; raises `FileError`, short and without the path.

    store: the limit on memory, to which the content is counted.
    """
    stream.seek(0)
    decompressor, content = zlib.decompressobj(wbits=31), BytesIO()
    try:
        while not decompressor.eof:
            data = decompressor.unconsumed_tail or stream.read(PIECE)
            if not data:
                raise FileError("its compressed tar is cut off")
            piece = decompressor.decompress(data, PIECE)
            store.take(len(piece), "its compressed tar")
            content.write(piece)
    except zlib.error as error:
        raise FileError(f"its compressed tar is damaged ({error})") from error
    return content
