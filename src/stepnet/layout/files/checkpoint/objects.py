"""The names of variables in the program that saved a TensorFlow 2 checkpoint, from its graph of objects.

A checkpoint names a variable by its path in the graph of objects, such as "_operations/1/cell/kernel" or
"variables/0". The graph, which is saved beside the variables as a text, has their names in the program, such
as "encoder/gru_cell/kernel".

Source: core/protobuf/trackable_object_graph.proto and core/util/tensor_bundle/tensor_bundle.cc
(WriteStringTensor) of TensorFlow 2.21.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from stepnet.compiler.values.dtypes import same_bits
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.checkpoint.file import Array, has_its_checksum
from stepnet.layout.files.checkpoint.protobuf import Message, message
from stepnet.layout.files.checkpoint.sstable import table, varint
from stepnet.layout.files.paths import existing, reading
from stepnet.layout.files.store import Store

GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
LARGEST = 1 << 28  # the most bytes of the graph
CHECKSUM = 4  # bytes, between the length of a text and the text
LENGTH = 4  # bytes of a text's length in the computation of the checksum


@dataclass(frozen=True)
class ObjectNode:
    """An object of a checkpoint's graph of objects.

    children: the indices of the objects in its attributes, by the attributes' names. key, name: the names of
    a variable in the checkpoint and in the program.
    """

    children: Mapping[str, int]
    key: str = ""
    name: str = ""


def object_at(nodes: Sequence[ObjectNode], path: Iterable[str]) -> ObjectNode | None:
    """Returns the object that a path of attribute names leads to from the first object of a checkpoint; None
    if there is no such object. nodes: all objects of the checkpoint, each with its attributes as indices in
    `nodes`.

    >>> object_at([ObjectNode({"cell": 1}), ObjectNode({}, "variables/0")], ["cell"])
    ObjectNode(children={}, key='variables/0', name='')
    """
    number = 0
    for step in path:
        number = nodes[number].children.get(step, len(nodes)) if number < len(nodes) else number
    return nodes[number] if number < len(nodes) else None


def objects(prefix: str) -> list[ObjectNode]:
    """Reads the graph of objects of a TensorFlow checkpoint, in which each object of the saved program, such
    as a layer, refers to the objects in its attributes; [] if the checkpoint has none. prefix: of the names
    of its files.
    """
    index = existing(f"{prefix}.index")
    with reading(index):
        data = memoryview(index.read_bytes())
        store = Store(None, len(data))
        entries = dict(table(data, store))
        if GRAPH not in entries:
            return []
        count = message(entries.get(b"", memoryview(b"")), store).number(1)
        graph = message(memoryview(text_of(prefix, count, message(entries[GRAPH], store))), store)
        return [node_of(node) for node in graph.messages(1)]


def node_of(proto: Message) -> ObjectNode:
    """Converts a TrackableObject message to an `ObjectNode`."""
    children = {child.text(2): child.number(1) for child in proto.messages(1)}
    for attribute in proto.messages(2):
        if attribute.text(1) == "VARIABLE_VALUE":
            return ObjectNode(children, attribute.text(3), attribute.text(2))
    return ObjectNode(children)


def text_of(prefix: str, count: int, proto: Message) -> bytes:
    """Reads the bytes of a checkpoint's graph of objects, which is stored as a text; raises `FileError` if it
    is damaged or too large.

    prefix, count: the prefix of the checkpoint's files, and the number of data files. proto: the
    BundleEntryProto, which states the data file, position and size of the text.
    """
    shard, start, size = proto.number(3), proto.number(4), proto.number(5)
    file = existing(f"{prefix}.data-{shard:05d}-of-{count:05d}")
    length = file.stat().st_size
    if (
        proto.number(1) != 7
        or math.prod(dimension.number(1) for dimension in proto.submessage(2).messages(1)) != 1
        or size > LARGEST
    ):
        raise FileError("its graph of objects is not one text")
    if start + size > length:
        raise FileError(f"its graph of objects is cut off: it ends at {start + size} of {length} bytes")
    proto.store.beside(file.name, length)
    proto.store.take(2 * size, "its graph of objects")
    data = memoryview(np.fromfile(file, np.uint8, size, offset=start).data)
    text_length, position = varint(data, 0)
    if position + CHECKSUM + text_length != size:
        raise FileError("its graph of objects is not as long as it says")
    if not has_its_checksum(proto, text_length.to_bytes(LENGTH, "little") + bytes(data[position:])):
        raise FileError("its graph of objects is damaged: its checksum is wrong")
    return bytes(data[position + CHECKSUM :])


def renamed(path: Path, arrays: Mapping[str, Array], names: Mapping[str, str]) -> dict[str, Array]:
    """Returns the variables of a checkpoint by their names in the program that saved it, or by those in the
    checkpoint if two variables have the same name.

    An exported model has its variables twice: of two with the same name and bits, one is left out. names:
    {name in the checkpoint: name in the program}. Raises `FileError`, with the path, if two variables then
    have one name.
    """
    by_name: dict[str, Array] = {}
    for key, array in arrays.items():
        name = names.get(key, key)
        if name in by_name and same_bits(by_name[name], array):
            continue
        name = key if name in by_name else name
        if name in by_name:
            raise FileError(f"{path}: two variables in it have the name {name!a}")
        by_name[name] = array
    return by_name
