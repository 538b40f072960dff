"""Reads the variables of a TensorFlow checkpoint by name, without TensorFlow.

    model.index, model.data-00000-of-00002, ...    V2: a table of the places of variables, and their numbers
    model.ckpt                                     V1: a single table with everything in it

1  Only numbers are read. Texts, such as the graph of objects, are left out.
2  A variable that was saved in pieces is assembled.
3  Numbers are read only from the files that belong to the checkpoint by their names. Variables may not share
   bytes, so no more memory is taken than these files hold.
4  The checksums of tables and variables are verified.

Sources, of TensorFlow 2.21: core/protobuf/tensor_bundle.proto, core/util/tensor_bundle/tensor_bundle.cc and
naming.cc, core/util/saved_tensor_slice.proto, core/util/saved_tensor_slice_util.cc and
core/lib/strings/ordered_code.cc.
"""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from stepnet.compiler.values.dtypes import native
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files import checksums
from stepnet.layout.files.checkpoint.protobuf import Message, message
from stepnet.layout.files.checkpoint.sstable import FOOTER, is_table, table
from stepnet.layout.files.paths import existing, reading
from stepnet.layout.files.store import OBJECT, Store

Array = np.ndarray
Kind = np.dtype[Any]

# The numbers of kinds (core/framework/types.proto).
KINDS: dict[int, Kind] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    4: np.dtype(np.uint8),
    5: np.dtype(np.int16),
    6: np.dtype(np.int8),
    8: np.dtype(np.complex64),
    9: np.dtype(np.int64),
    10: np.dtype(np.bool_),
    14: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(np.uint16),
    18: np.dtype(np.complex128),
    19: np.dtype(np.float16),
    22: np.dtype(np.uint32),
    23: np.dtype(np.uint64),
}
NO_NUMBERS = {7, 20, 21}  # texts, resources and variants
HALVES = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}

# The field of a TensorProto (core/framework/tensor.proto) for each kind: with plain numbers, and with
# varints.
PLAIN = {1: 5, 2: 6, 8: 9, 18: 12}
VARINTS = {3: 7, 4: 7, 5: 7, 6: 7, 17: 7, 9: 10, 10: 11, 14: 13, 19: 13, 22: 16, 23: 17}

VARIABLE = 8 * OBJECT  # approximate bytes of memory per variable besides its numbers and its name
PIECE = 1 << 16  # bytes of varints that are decoded at a time

OF_DATA = re.compile(r"\.(index|data-\d{5,}-of-\d{5,})$")


def read(path: str | Path) -> dict[str, Array]:
    """Reads the variables of a TensorFlow checkpoint by name, as NumPy arrays that own their memory. float16
    and bfloat16 become float32, exactly.

    path: the name that it was saved under ("model.ckpt-1000"), or one of its files. Raises `FileError`, with
    the path, for files that are missing, truncated or foreign.

    >>> read("model.ckpt")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.ckpt: there is no such file, nor model.ckpt.index
    """
    prefix = OF_DATA.sub("", str(path))
    is_v2 = os.path.exists(f"{prefix}.index")
    if not is_v2 and not os.path.exists(path):
        raise FileError(f"{path}: there is no such file, nor {prefix}.index")
    file = existing(f"{prefix}.index" if is_v2 else path)
    with reading(file, prefix):
        if not ends_as_table(file):
            beside = "" if is_v2 else f", and there is no {prefix}.index"
            raise FileError(f"this is not a TensorFlow checkpoint: it does not end as one{beside}")
        data = memoryview(file.read_bytes())
        store = Store(None, len(data))
        variables = bundle(prefix, data, store) if is_v2 else single_table(data, store)
        return {name: native(variable) for name, variable in sorted(variables.items())}


def is_checkpoint(path: str | Path) -> bool:
    """Returns True if a path is a checkpoint's: the name that it was saved under, or one of its files."""
    if os.path.isfile(f"{OF_DATA.sub('', str(path))}.index"):
        return True
    with reading(path):
        return os.path.isfile(path) and ends_as_table(path)


def ends_as_table(path: str | Path) -> bool:
    """Returns True if a file ends as a sorted string table does; checkpoints consist of such tables."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - FOOTER))
        return is_table(file.read(FOOTER))


# The places of variables and their pieces


ENTRY_CHECKSUM = 6  # the field of a BundleEntryProto with the checksum of the variable's bytes
Piece = tuple[
    tuple[int, int | None], ...
]  # along every axis, its start and its length; None means up to the end


@dataclass(frozen=True)
class VariableEntry:
    """The description of a variable in a checkpoint; kind, its dtype, is None for one without numbers."""

    kind: Kind | None
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """The number of bytes of this variable's numbers in a checkpoint; 0 if it holds none."""
        return math.prod(self.shape) * (self.kind.itemsize if self.kind else 0)


def entry(name: str, kind: int, shape: Message, pieces: tuple[Message, ...]) -> VariableEntry:
    """Describes a variable of a checkpoint by its dtype, shape and pieces; raises `FileError` for a dtype
    that is not read, and for an impossible shape (of more than 32 axes, or 2**48 numbers).

    name: of the variable, for messages. kind: TensorFlow's number of the dtype. shape: a TensorShapeProto.
    pieces: the TensorSliceProto of each slice in which the variable is stored; () if it is stored in one
    piece.
    """
    if kind not in KINDS and kind not in NO_NUMBERS:
        raise FileError(f"{name!a} holds TensorFlow's kind {kind} of numbers, which stepnet does not read")
    dimensions = tuple(dimension.number(1) for dimension in shape.messages(2))
    if len(dimensions) > 32 or math.prod(max(1, n) for n in dimensions) >= 1 << 48:
        raise FileError(f"{name!a} cannot have {dimensions} numbers")
    return VariableEntry(KINDS.get(kind), dimensions, tuple(map(piece_of, pieces)))


def piece_of(slices_message: Message) -> Piece:
    """Converts a TensorSliceProto, the range of a variable that was saved separately, to (start, length)
    along each axis; length None means up to the end.
    """
    return tuple(
        (extent.number(1), extent.number(2) if 2 in extent.fields else None)
        for extent in slices_message.messages(1)
    )


def slices_of(name: str, piece: Piece, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Converts a piece of the variable `name`, (start, length) along each axis, to an index into an array of
    the variable's shape; raises `FileError` if it lies outside.
    """
    ends = [n if length is None else start + length for (start, length), n in zip(piece, shape, strict=False)]
    if len(piece) != len(shape) or any(end > n for end, n in zip(ends, shape, strict=True)):
        raise FileError(f"a piece of {name!a} does not lie in it")
    return tuple(slice(start, end) for (start, _), end in zip(piece, ends, strict=True))


def assembled(name: str, variable: VariableEntry, pieces: list[tuple[Piece, Array]]) -> Array:
    """Assembles a checkpoint's variable from the pieces in which it was saved, as (ranges along its axes,
    numbers); raises `FileError` unless they fill it exactly. name: of the variable, for messages. variable:
    its shape and dtype.
    """
    if sum(piece_array.size for _, piece_array in pieces) != math.prod(variable.shape):
        raise FileError(f"not all pieces of {name!a} are in it")
    if len(pieces) == 1:
        return pieces[0][1].reshape(variable.shape)
    array, filled = np.empty(variable.shape, variable.kind), np.zeros(variable.shape, np.bool_)
    for piece, piece_array in pieces:
        slices = slices_of(name, piece, variable.shape)
        if filled[slices].any() or filled[slices].size != piece_array.size:
            raise FileError(f"pieces of {name!a} overlap")
        filled[slices] = True
        array[slices] = piece_array.reshape(array[slices].shape)
    return array


# Checkpoints of several files


def bundle(prefix: str, data: memoryview, store: Store) -> dict[str, Array]:
    """Reads the variables of a checkpoint that consists of several files, except variables without numbers;
    assembles variables that were saved in pieces. prefix: the prefix of the files' names. data: the content
    of the index file. store: the limit on memory. Raises `FileError` for a damaged or newer index, and if a
    piece is missing.
    """
    entries = dict(table(data, store))
    header = message(entries.pop(b"", memoryview(b"")), store)
    if header.submessage(3).number(2) > 1 or not header.number(1):
        raise FileError("it is not the index of a checkpoint, or is one of a newer kind")
    shards = Shards(prefix, header.number(1), ">" if header.number(2) else "<", {})
    variables: dict[str, Array] = {}
    for key, value in entries.items():
        if key.startswith(b"\0"):  # a piece, which is read with its variable
            continue
        name, proto = key.decode("utf-8", "backslashreplace"), message(value, store)
        described = entry(name, proto.number(1), proto.submessage(2), proto.messages(7))
        if described.kind is None:
            continue
        if not described.pieces:
            variables[name] = shards.numbers(name, proto, described)
            continue
        slices_of_variable: list[tuple[Piece, Array]] = []
        for piece in described.pieces:
            piece_name = piece_key(key, piece)
            if piece_name not in entries:
                raise FileError(f"a piece of {name!a} is missing")
            piece_message = message(entries[piece_name], store)
            piece_described = entry(name, piece_message.number(1), piece_message.submessage(2), ())
            if piece_described.kind != described.kind:
                raise FileError(f"a piece of {name!a} holds another kind of numbers")
            slices_of_variable.append((piece, shards.numbers(name, piece_message, piece_described)))
        variables[name] = assembled(name, described, slices_of_variable)
    return variables


@dataclass(frozen=True)
class Shards:
    """The files of a checkpoint that have its numbers: the prefix of their names, their count, their byte
    order.

    left: how many bytes of each file do not belong to a variable yet.
    """

    prefix: str
    count: int
    order: Literal["<", ">"]
    left: dict[Path, int]

    def numbers(self, name: str, proto: Message, described: VariableEntry) -> Array:
        """Reads the array of the variable `name` of a checkpoint from the data file and position that
        `proto`, a BundleEntryProto, states. Raises `FileError` if it is damaged or cut off, or if the
        variables of a file have more bytes than the file. described: the variable's dtype and shape.
        """
        shard, start, size = proto.number(3), proto.number(4), proto.number(5)
        if shard >= self.count or size != described.bytes or described.kind is None:
            raise FileError(f"{name!a} cannot be {size} bytes of file {shard} of {self.count}")
        file = existing(f"{self.prefix}.data-{shard:05d}-of-{self.count:05d}")
        with reading(file):
            length = file.stat().st_size
            self.left[file] = self.left.get(file, length) - size
            if start + size > length:
                raise FileError(
                    f"it is cut off: {name!a} lies at {start} to {start + size} of its {length} bytes"
                )
            if self.left[file] < 0:
                raise FileError("variables share bytes of it")
            count = math.prod(described.shape)
            array = np.fromfile(file, described.kind.newbyteorder(self.order), count, offset=start)
            if not has_its_checksum(proto, array.view(np.uint8).data):
                raise FileError(f"{name!a} is damaged: its checksum is wrong")
            return array.reshape(described.shape)


def has_its_checksum(proto: Message, data: memoryview | bytes) -> bool:
    """Returns True if a variable's bytes have the checksum that their entry states, if any."""
    return ENTRY_CHECKSUM not in proto.fields or checksums.is_whole(data, proto.number(ENTRY_CHECKSUM))


def piece_key(name: bytes, piece: Piece) -> bytes:
    """Returns the key under which the index of a checkpoint lists a piece of the variable `name`. piece:
    (start, length) along each axis; length None means up to the end.

    >>> piece_key(b"w", ((0, 2), (5, None)))
    b'\\x00w\\x00\\x01\\x01\\x02\\x80\\x82\\x85\\x7f'
    """
    escaped = b"".join({0: b"\0\xff", 255: b"\xff\0"}.get(byte, bytes([byte])) for byte in name)
    numbers = [-1 if number is None else number for extent in piece for number in extent]
    return b"\0" + escaped + b"\0\1" + unsigned_code(len(piece)) + b"".join(map(signed_code, numbers))


def unsigned_code(number: int) -> bytes:
    """Encodes a number for a sorted table, so that bytes sort as numbers: their count, then the bytes."""
    length = (number.bit_length() + 7) // 8
    return bytes([length]) + number.to_bytes(length, "big")


def signed_code(number: int) -> bytes:
    """Encodes a signed number for a key of a sorted table, so that bytes sort as numbers do: a one per byte,
    a zero, then the bits.

    >>> signed_code(0x424242).hex(), signed_code(-0x800).hex()
    ('f0424242', '3800')
    """
    length = (~number if number < 0 else number).bit_length() // 7 + 1
    ones = (1 << length) - 1 << 7 * length
    return ((number ^ ones) & (1 << 8 * length) - 1).to_bytes(length, "big")


# Checkpoints of one file


def single_table(data: memoryview, store: Store) -> dict[str, Array]:
    """Reads the variables of a checkpoint of TensorFlow that is a single sorted string table (the format
    before index and data files), without those that hold no numbers; assembles each from its pieces. data:
    the whole file. store: the limit on memory. Raises `FileError` if it lists no variables, or has numbers of
    one that it does not list.
    """
    described: dict[str, VariableEntry] = {}
    pieces: dict[str, list[tuple[Piece, Array]]] = {}
    for _, value in table(data, store):
        proto = message(value, store)
        for item in proto.submessage(1).messages(1):
            name = item.text(1)
            store.take(VARIABLE + len(name), "its variables")
            described[name] = entry(name, item.number(3), item.submessage(2), item.messages(4))
        for item in proto.messages(2):
            name = item.text(1)
            if name not in described:
                raise FileError(f"it does not list {name!a}, of which it has numbers")
            kind = described[name].kind
            if kind is not None:
                pieces.setdefault(name, []).append(
                    (piece_of(item.submessage(2)), values(name, kind, item.submessage(3)))
                )
    if not described:
        raise FileError("it lists no variables, as a checkpoint does")
    numbers = {name: entry for name, entry in described.items() if entry.kind is not None}
    return {name: assembled(name, entry, pieces.get(name, [])) for name, entry in numbers.items()}


def values(name: str, kind: Kind, proto: Message) -> Array:
    """Decodes the numbers that a TensorProto holds in the field for their dtype `kind`, as a vector; float16
    and bfloat16 are stored there as their bits. name: of the variable, for messages. Raises `FileError` if
    its bytes end within a number.
    """
    number = next(number for number, known in KINDS.items() if known == kind)
    if number in PLAIN:
        data = b"".join(proto.pieces(PLAIN[number]))
        if len(data) % kind.itemsize:
            raise FileError(f"{name!a} ends within a number")
        return np.frombuffer(data, kind.newbyteorder("<"), len(data) // kind.itemsize)
    data = b"".join(proto.pieces(VARINTS[number]))
    stored = np.dtype(np.uint16) if kind in HALVES else kind
    proto.store.take(len(data) * (1 + stored.itemsize), f"the numbers of {name!a}")
    numbers = np.concatenate([np.empty(0, stored), *(varint.astype(stored) for varint in varints(data))])
    return numbers.view(kind) if kind in HALVES else numbers


def varints(data: bytes) -> Iterator[Array]:
    """Decodes varints, numbers stored in groups of seven bits; yields them in pieces, as int64. Raises
    `FileError` for one that does not end.

    >>> [part.tolist() for part in varints(bytes.fromhex("01 9601"))]
    [[1, 150]]
    """
    groups, start = np.frombuffer(data, np.uint8), 0
    while start < len(groups):
        piece = groups[start : start + PIECE]
        ends = np.flatnonzero(piece < 0x80)
        lengths = np.diff(ends, prepend=-1)
        if not len(ends) or lengths.max() > 10:
            raise FileError("a number in it does not end")
        starts, numbers = ends - lengths + 1, np.zeros(len(ends), np.uint64)
        for index in range(lengths.max()):
            longer = lengths > index
            bits = (piece[starts[longer] + index] & np.uint8(0x7F)).astype(np.uint64)
            numbers[longer] |= bits << np.uint64(7 * index)
        yield numbers.view(np.int64)
        start += int(ends[-1]) + 1
