"""Reads PyTorch's two older formats, which are no longer written.

stream (PyTorch 0.1.10 to 1.5, 2017 to 2020): pickles of a magic number, a protocol, facts on the machine, the
value and the keys of its storages, one after the other; then the storages in the order of these keys, each as
the count of its numbers in 8 bytes and the numbers.

tar (before 0.1.10): three files. `storages` is the pickle of their count, then for each the pickle of (key,
device, type), the count of its numbers and the numbers, then the pickle of the views: (key, key of the viewed
storage, offset, count). `tensors` is the pickle of their count, then for each the pickle of (key, storage's
key, type), the number of axes, shape, strides and offset. `pickle` is the value, in which tensors are keys.

Numbers are little-endian in both, whatever machine wrote them.

Source: _legacy_load in torch/serialization.py and torch/csrc/serialization.cpp of PyTorch 2.13.
"""

import struct
from collections.abc import Mapping
from io import BufferedIOBase
from typing import cast

from stepnet.errors import FileError
from stepnet.layout.files.pickles.machine import FileRange
from stepnet.layout.files.pickles.objects import TorchFile
from stepnet.layout.files.pickles.opcodes import load
from stepnet.layout.files.pickles.torch_tensor import (
    SIZES,
    TYPES,
    StorageRange,
    Tensor,
    arrays,
    outside,
    rebuilt,
)
from stepnet.layout.files.pickles.values import Name, tuple_items
from stepnet.layout.files.zips import ByteRange

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
BLOCK = 512  # bytes that a tar's headers have, and that its members are padded to


def is_stream(head: bytes) -> bool:
    """Returns True if a file that begins with the bytes `head` has PyTorch's older stream format."""
    return MAGIC.to_bytes(10, "little") in head[:32]


def is_tar(head: bytes) -> bool:
    """Returns True if a file that begins with the bytes `head` is a tar."""
    return head[257:262] == b"ustar"


def streamed(stream: BufferedIOBase, size: int) -> TorchFile:
    """Reads a file of PyTorch's stream format: several pickles, then the numbers of the storages. Raises
    `FileError`, short and without the path. size: of the file.
    """
    stream.seek(0)
    source = FileRange(stream, 0, size)
    storages: dict[str, StorageRange] = {}

    def storage(identity: object) -> StorageRange | Name:
        """Returns the storage or class that a persistent id in the pickle (a reference to a value outside it)
        means; adds storages to `storages`.
        """
        value_outside = outside(identity)
        if isinstance(value_outside, StorageRange):
            storages.setdefault(value_outside.key, value_outside)
        return value_outside

    if (load(source), load(source)) != (MAGIC, PROTOCOL):
        raise FileError("this is not a file of torch.save's protocol 1001")
    load(source)
    value = load(source, persistent=storage)
    keys = load(source)
    if not isinstance(keys, list):
        raise FileError("it has no list of its storages' keys")
    byte_ranges: dict[str, ByteRange] = {}
    for key in cast(list[object], keys):
        if not isinstance(key, str) or key not in storages or key in byte_ranges:
            raise FileError("it lists a storage that no tensor has, or one twice")
        byte_ranges[key] = numbers(source, storages[key].dtype)
    return TorchFile.of(arrays(stream, size, value, byte_ranges.get, big=False), value)


def numbers(source: FileRange, dtype: str) -> ByteRange:
    """Returns the position in the file of the numbers of a PyTorch storage, whose count is in the next 8
    bytes of `source`; moves `source` to the byte after the numbers. dtype: the dtype of the numbers.
    """
    (count,) = struct.unpack("<q", source.take(8))
    size = count * SIZES[dtype]
    source.room(size)
    byte_range = ByteRange(source.position, size)
    source.position += size
    source.stream.seek(source.position)
    return byte_range


def tarred(stream: BufferedIOBase, size: int) -> TorchFile:
    """Reads a file of PyTorch's tar format, with files of storages, of tensors and of a pickle. Raises
    `FileError`, short and without the path. size: of the file.
    """
    files = members(stream, size)
    missing = {"storages", "tensors", "pickle"} - files.keys()
    if missing:
        raise FileError(f"this tar is none of torch.save's: it holds no {min(missing)}")
    storages, byte_ranges = storages_in(tar_member(stream, files["storages"]))
    tensors = tensors_in(tar_member(stream, files["tensors"]), storages)

    def persistent(identity: object) -> object:
        """Returns the tensor or storage whose key a persistent id in the pickle (a reference to a value
        outside it) is; raises `FileError` if there is none.
        """
        key = str(identity) if isinstance(identity, str | int) else ""
        if key not in tensors and key not in storages:
            raise FileError("its pickle asks for a tensor that it does not hold")
        return tensors.get(key) or storages[key]

    value = load(tar_member(stream, files["pickle"]), persistent=persistent)
    return TorchFile.of(arrays(stream, size, value, byte_ranges.get, big=False), value)


def members(stream: BufferedIOBase, size: int) -> dict[str, ByteRange]:
    """Returns the positions of the files in a tar of `size` bytes, by name, without folders and links; raises
    `FileError` if it is cut off.
    """
    byte_ranges: dict[str, ByteRange] = {}
    position = 0
    while position + BLOCK <= size:
        stream.seek(position)
        header = stream.read(BLOCK)
        if not header.strip(b"\0"):
            break
        digits = header[124:136].strip(b"\0 ")
        length = int(digits, 8) if digits.isdigit() and not digits.strip(b"01234567") else size
        byte_range = ByteRange(position + BLOCK, length)
        if byte_range.start + length > size:
            raise FileError(f"its tar is cut off in the file at byte {position}")
        if header[156:157] in (b"\0", b"0"):  # a file, and not a folder, a link or metadata of the next file
            byte_ranges.setdefault(header[:100].rstrip(b"\0").decode("latin-1"), byte_range)
        position = byte_range.start + -(-length // BLOCK) * BLOCK
    return byte_ranges


def tar_member(stream: BufferedIOBase, byte_range: ByteRange) -> FileRange:
    """Returns a file in a tar as a source for `load`, with the stream at its start."""
    stream.seek(byte_range.start)
    return FileRange(stream, byte_range.start, byte_range.start + byte_range.size)


def storages_in(source: FileRange) -> tuple[dict[str, StorageRange], dict[str, ByteRange]]:
    """Reads the table of storages in a tar of torch.save; returns (storages by key, views of other storages
    too; positions of the numbers of storages that are no views, by key). source: the tar's file of storages.
    Raises `FileError` for a storage or a view of another form.
    """
    storages: dict[str, StorageRange] = {}
    byte_ranges: dict[str, ByteRange] = {}
    for _ in range(count_in(source)):
        match tuple_items(load(source)):
            case (str() | int() as key, _, Name(text=kind)) if kind in TYPES and str(key) not in storages:
                byte_ranges[str(key)] = numbers(source, TYPES[kind])
                count = byte_ranges[str(key)].size // SIZES[TYPES[kind]]
                storages[str(key)] = StorageRange(str(key), TYPES[kind], count)
            case _:
                raise FileError("its tar has a storage without a key or of a type that stepnet does not read")
    views = load(source)
    for view in cast(list[object], views) if isinstance(views, list) else [views]:
        match tuple_items(view):
            case (str() | int() as key, str() | int() as viewed, int(start), int(count)) if (
                str(viewed) in byte_ranges
                and start >= 0
                and 0 <= count <= storages[str(viewed)].count - start
            ):
                storages[str(key)] = StorageRange(str(viewed), storages[str(viewed)].dtype, count, start)
            case _:
                raise FileError("its tar has a view that is none of a storage")
    return storages, byte_ranges


def tensors_in(source: FileRange, storages: Mapping[str, StorageRange]) -> dict[str, Tensor]:
    """Reads the tensors of a torch.save tar as parts of its storages, by key; source: the tensors' file.
    Raises `FileError` for a tensor of another form.
    """
    tensors: dict[str, Tensor] = {}
    for _ in range(count_in(source)):
        match tuple_items(load(source)):
            case (str() | int() as key, str() | int() as storage, _) if str(storage) in storages:
                (axes,) = struct.unpack("<i4x", source.take(8))
                numbers = (
                    struct.unpack(f"<{2 * axes + 1}q", source.take(16 * axes + 8)) if 0 <= axes <= 64 else ()
                )
                shape, strides, offset = numbers[:axes], numbers[axes : 2 * axes], numbers[-1:]
                arguments = (storages[str(storage)], *offset, shape, strides)
                tensors[str(key)] = rebuilt(str(key), arguments, typed=False)
            case _:
                raise FileError("its tar has a tensor without a key or a storage")
    return tensors


def count_in(source: FileRange) -> int:
    """Reads the number of storages or tensors in a file of a torch.save tar; `FileError` if missing."""
    count = load(source)
    if not isinstance(count, int) or not 0 <= count <= source.end:
        raise FileError("its tar does not say how many storages or tensors it has")
    return count
