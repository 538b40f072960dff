"""What the variables of a TensorFlow 2 checkpoint were called, by its graph of objects.

A checkpoint of objects names a variable by its place among them, "_operations/1/cell/kernel" or
"variables/0". The graph beside the variables, a text, has the names that these had in the program:
"encoder/gru_cell/kernel".

Source: core/protobuf/trackable_object_graph.proto and core/util/tensor_bundle/tensor_bundle.cc
(WriteStringTensor) of TensorFlow 2.21.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepnet.errors import FileError
from stepnet.files.checkpoint.file import Array, has_its_checksum, named
from stepnet.files.checkpoint.protobuf import Message, message
from stepnet.files.checkpoint.sstable import table, varint
from stepnet.files.paths import existing
from stepnet.files.store import Store

GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
LARGEST = 1 << 28  # bytes of the graph
CHECKSUM = 4  # bytes, between the length of a text and the text
LENGTH = 4  # bytes of a text's length, as the checksum of all takes it in


@dataclass(frozen=True)
class Node:
    """An object of a graph: the places of what it holds by the names of attributes, and, of a variable, what
    the checkpoint and the program call it.
    """

    children: Mapping[str, int]
    key: str = ""
    name: str = ""


def at(nodes: Sequence[Node], path: Iterable[str]) -> Node | None:
    """The object that attributes lead to, one after the other from the first; None where there is none.

    >>> at([Node({"cell": 1}), Node({}, "variables/0")], ["cell"])
    Node(children={}, key='variables/0', name='')
    """
    place = 0
    for step in path:
        place = nodes[place].children.get(step, len(nodes)) if place < len(nodes) else place
    return nodes[place] if place < len(nodes) else None


def program_names(nodes: Iterable[Node]) -> dict[str, str]:
    """The names that variables had in the program, by those in a checkpoint."""
    return {node.key: node.name for node in nodes if node.name}


def objects(prefix: str) -> list[Node]:
    """The objects of a checkpoint; none where it has no graph of them."""
    index = existing(f"{prefix}.index")
    with named(index):
        data = memoryview(index.read_bytes())
        store = Store(None, len(data))
        found = dict(table(data, store))
        if GRAPH not in found:
            return []
        count = message(found.get(b"", memoryview(b"")), store).number(1)
        graph = message(memoryview(text_of(prefix, count, message(found[GRAPH], store))), store)
        return [node_of(node) for node in graph.messages(1)]


def node_of(said: Message) -> Node:
    """The object that a TrackableObject means."""
    children = {child.text(2): child.number(1) for child in said.messages(1)}
    for attribute in said.messages(2):
        if attribute.text(1) == "VARIABLE_VALUE":
            return Node(children, attribute.text(3), attribute.text(2))
    return Node(children)


def text_of(prefix: str, count: int, said: Message) -> bytes:
    """The one text that a BundleEntryProto points to: its length, a checksum, and its bytes."""
    shard, start, size = said.number(3), said.number(4), said.number(5)
    file = existing(f"{prefix}.data-{shard:05d}-of-{count:05d}")
    length = file.stat().st_size
    if (
        said.number(1) != 7
        or math.prod(one.number(1) for one in said.one(2).messages(1)) != 1
        or size > LARGEST
    ):
        raise FileError("its graph of objects is not one text")
    if start + size > length:
        raise FileError(f"its graph of objects is cut off: it ends at {start + size} of {length} bytes")
    said.store.beside(file.name, length)
    said.store.take(2 * size, "its graph of objects")
    data = memoryview(np.fromfile(file, np.uint8, size, offset=start).data)
    many, at = varint(data, 0)
    if at + CHECKSUM + many != size:
        raise FileError("its graph of objects is not as long as it says")
    if not has_its_checksum(said, many.to_bytes(LENGTH, "little") + bytes(data[at:])):
        raise FileError("its graph of objects is damaged: its checksum is wrong")
    return bytes(data[at + CHECKSUM :])


def renamed(path: Path, arrays: Mapping[str, Array], names: Mapping[str, str]) -> dict[str, Array]:
    """Variables by the names that they had in the program, where each of these is that of one variable.

    A model that was exported has its variables twice: of two with one name and the same bits one is left out.
    """
    made: dict[str, Array] = {}
    for key, array in arrays.items():
        name = names.get(key, key)
        if name in made and same_bits(made[name], array):
            continue
        name = key if name in made else name
        if name in made:
            raise FileError(f"{path}: two variables in it have the name {name!a}")
        made[name] = array
    return made


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays are the same."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
