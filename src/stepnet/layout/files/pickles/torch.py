"""Reads and writes the files of torch.save as arrays by name, without PyTorch.

1  A file is a zip of a pickle and of storages (PyTorch 1.6 and later, 2020), or has one of two older formats,
   which `stepnet.layout.files.pickles.torch_legacy` reads. Only zips are written.
2  Nothing that a file names is run or imported. Tensors are recognised by the names of the functions that
   rebuild them (`stepnet.layout.files.pickles.torch_tensor`); of other objects, only the attributes are read.
3  A whole module (torch.save(model)) and TorchScript (torch.jit.save) give the names of their state dict.
   Code in them is ignored.

Source: torch/serialization.py and caffe2/serialize/inline_container.cc of PyTorch 2.13.
"""

import math
import struct
import sys
import zipfile
from collections.abc import Mapping
from io import BufferedIOBase, BytesIO
from pathlib import Path

import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files.paths import new_file, opened
from stepnet.layout.files.pickles import torch_legacy
from stepnet.layout.files.pickles.machine import FileRange
from stepnet.layout.files.pickles.objects import TorchFile
from stepnet.layout.files.pickles.opcodes import load
from stepnet.layout.files.pickles.torch_tensor import DTYPES, STORAGES, UNTYPED, arrays, outside
from stepnet.layout.files.pickles.values import (
    Name,
    Pairs,
    PersistentReference,
    PickledCall,
    check_writable,
    dump,
    memory,
)
from stepnet.layout.files.store import Store
from stepnet.layout.files.zips import RECORD, ByteRange, byte_range_of, bytes_at, members

Array = np.ndarray

ALIGNMENT = 64  # of the storages in a zip, as in torch.save
WIDE = 1 << 30  # bytes from which on a member's size is written with 64 bits
NATIVE = {dtype: name for name, dtype in DTYPES.items()}
KINDS = {dtype: f"torch.{storage}" for storage, dtype in STORAGES.items()}


def read(path: str | Path) -> dict[str, Array]:
    """Reads the tensors of a PyTorch file, .pt or .pth, by name, as NumPy arrays in this machine's byte
    order.

    Names are the keys of dictionaries and the numbers in lists that lead to a tensor, joined by dots. A
    single tensor has the name "tensor". Other contents are left out. float16 and bfloat16 stay as they are.
    Tensors that share a storage share memory, and keep their strides.

    Raises `FileError`, with the path, for a file that is truncated or foreign, and for tensors that are
    quantized, sparse or without numbers.

    >>> read("model.pt")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.pt: there is no such file
    """
    return held(path).arrays


def held(path: str | Path) -> TorchFile:
    """Reads the tensors of a torch.save file, and the settings and classes of recurrent modules in it."""
    with opened(path) as (stream, size):
        return held_in(stream, size)


def arrays_in(stream: BufferedIOBase, size: int) -> dict[str, Array]:
    """Reads the tensors of an open file of torch.save, of `size` bytes and in any format, by name."""
    return held_in(stream, size).arrays


def held_in(stream: BufferedIOBase, size: int) -> TorchFile:
    """Reads the contents of an open file of torch.save, of `size` bytes, in any of its three formats; raises
    `FileError` for any other file.
    """
    head = stream.read(512)
    if head.startswith(b"PK\3\4"):
        return zipped(stream, size)
    if torch_legacy.is_tar(head):
        return torch_legacy.tarred(stream, size)
    if torch_legacy.is_stream(head):
        return torch_legacy.streamed(stream, size)
    raise FileError("this is not a file of torch.save; write one with torch.save(model.state_dict(), path)")


def zipped(stream: BufferedIOBase, size: int) -> TorchFile:
    """Reads a file in the zip format of torch.save: data.pkl is the pickle, data/KEY the bytes of a storage,
    in a folder of any name. size: the size of the file. Raises `FileError` for a zip without them.
    """
    by_name = members(stream, size)
    roots = [
        name.removesuffix("data.pkl")
        for name in by_name
        if name.count("/") == 1 and name.endswith("/data.pkl")
    ]
    if len(roots) != 1:
        raise FileError("this zip is none of torch.save's: it holds no data.pkl in one folder")
    root = roots[0]

    def data(name: str) -> Array:
        """Reads the bytes of a member of torch.save's zip, by its name."""
        return bytes_at(stream, byte_range_of(stream, by_name[name], size))

    order = data(f"{root}byteorder").tobytes() if f"{root}byteorder" in by_name else b"little"
    if order not in (b"little", b"big"):
        raise FileError(f"its byte order is {order[:20]!r} in place of little or big")
    pickle = data(f"{root}data.pkl").tobytes()
    value = load(FileRange(BytesIO(pickle), 0, len(pickle)), persistent=outside, store=Store(None, size))

    def storage_range(key: str) -> ByteRange | None:
        """Returns the position of a PyTorch storage's bytes in the zip, by its key; None if missing."""
        member = by_name.get(f"{root}data/{key}")
        return member and byte_range_of(stream, member, size)

    return TorchFile.of(arrays(stream, size, value, storage_range, order == b"big"), value)


def write(path: str | Path, arrays: Mapping[str, Array], force: bool = False) -> None:
    """Writes arrays by name as a state dict, which torch.load(path, weights_only=True) reads, bit for bit.

    Raises `FileError`, with the path, if the file exists, unless `force`, if it cannot be written, and for
    names and dtypes that PyTorch lacks.

    >>> write("model.pt", {"weight": np.array(["a"])})
    Traceback (most recent call last):
    stepnet.errors.FileError: model.pt: 'weight' is of dtype <U1, which PyTorch does not have
    """
    check_writable(path, arrays, NATIVE, "PyTorch")
    pickle = BytesIO()
    tensors = [(name, tensor_call(str(key), array)) for key, (name, array) in enumerate(arrays.items())]
    dump(Pairs(list(tensors)), pickle.write, 2)
    with new_file(path, force) as partial, zipfile.ZipFile(partial, "w") as archive:
        add(archive, "data.pkl", pickle.getbuffer())
        add(archive, "byteorder", memoryview(sys.byteorder.encode()))
        for key, array in enumerate(arrays.values()):
            add(archive, f"data/{key}", memory(array))
        add(archive, "version", memoryview(b"3\n"))


def tensor_call(key: str, array: Array) -> PickledCall:
    """Returns the pickled call that rebuilds an array in PyTorch, to write it; its numbers are in storage
    `key`, in C order.
    """
    kind = NATIVE[array.dtype.newbyteorder("=")]
    typed = kind in KINDS
    storage = Name(KINDS[kind] if typed else UNTYPED)
    reference = PersistentReference(("storage", storage, key, "cpu", array.size if typed else array.nbytes))
    strides = tuple(
        math.prod(max(length, 1) for length in array.shape[axis + 1 :]) for axis in range(array.ndim)
    )
    arguments = (reference, 0, array.shape, strides, False, PickledCall("collections.OrderedDict", ()))
    if typed:
        return PickledCall("torch._utils._rebuild_tensor_v2", arguments)
    return PickledCall("torch._utils._rebuild_tensor_v3", (*arguments, Name(f"torch.{kind}")))


def add(archive: zipfile.ZipFile, name: str, data: memoryview) -> None:
    """Adds a member to a zip, under archive/NAME as torch.save does, with a padding field so that its bytes
    begin at a multiple of `ALIGNMENT`.
    """
    member = zipfile.ZipInfo(f"archive/{name}")
    wide = data.nbytes >= WIDE  # then zipfile adds a field of 20 bytes (force_zip64)
    header = RECORD.size + len(member.filename) + 4 + (20 if wide else 0)
    padding = -(archive.start_dir + header) % ALIGNMENT
    member.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    with archive.open(member, "w", force_zip64=wide) as stream:
        stream.write(data)
