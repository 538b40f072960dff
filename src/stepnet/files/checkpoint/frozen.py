"""The recurrent layers of a frozen TensorFlow graph: its variables are constants, by their own names.

    node { name: "rnn/basic_lstm_cell/kernel" op: "Const" attr { key: "value" value { tensor { ... } } } }

The graph is code, and is not run: its constants are arrays, among which layers are found by names, as in a
checkpoint. What the graph computes with them, such as what is added to a forget gate, is asked for.

Source: core/framework/graph.proto, node_def.proto, attr_value.proto and tensor.proto of TensorFlow 2.21, and
core/protobuf/saved_model.proto and meta_graph.proto.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stepnet.errors import FileError
from stepnet.files.checkpoint.file import entry, native, values
from stepnet.files.checkpoint.modules import by_names, model_of, version_of
from stepnet.files.checkpoint.protobuf import Message, message
from stepnet.files.model import Array, Model
from stepnet.files.paths import opened
from stepnet.files.store import OBJECT, Store

NODES, NAME, OP, ATTRIBUTES = 1, 1, 2, 5  # fields of a GraphDef, and of a node
KEY, VALUE, TENSOR = 1, 2, 8  # of an attribute
CONTENT = 4  # of a tensor: its numbers as bytes
META_GRAPHS, GRAPH = 2, 2  # of a SavedModel, and of one of its graphs
PLAIN = {"Const", "Identity", "Placeholder", "NoOp"}  # operators that compute nothing


def read(path: Path, layout: str | None, layouts: Mapping[str, str]) -> Model:
    """The recurrent layers of a file that is a graph, or of a SavedModel without variables.

    layout, layouts: as for a checkpoint. Raises `FileError`, with the path, for what is no graph, or has no
    constants that could be weights.
    """
    with opened(path) as (stream, size):
        store = Store(None, size)
        store.take(size, "its graph")
        nodes = nodes_of(memoryview(stream.read()), store)
        arrays: dict[str, Array] = {}
        for name, array in constants(nodes):
            if name in arrays:
                raise FileError(f"two constants in it are called {name[:100]!a}")
            arrays[name] = array
        if not arrays:
            raise FileError("its graph has no constants that could be weights: save it with its variables")
    known = by_names({name: name for name in arrays}, arrays, version_of(arrays))
    model = model_of(path, arrays, known, ("tf1", "keras2"), layout, layouts)
    others = (f"{node.text(NAME)} ({node.text(OP)})" for node in nodes if node.text(OP) not in PLAIN)
    return replace(model, layers=tuple(others))


def nodes_of(data: memoryview, store: Store) -> Sequence[Message]:
    """The nodes of a graph, or of the graphs of a SavedModel."""
    whole = message(data, store)
    is_model = any(
        isinstance(value, int) for value in whole.fields.get(NODES, ())
    )  # which begins with a version
    graphs = [meta.one(GRAPH) for meta in whole.messages(META_GRAPHS)] if is_model else [whole]
    nodes = [node for graph in graphs for node in graph.messages(NODES)]
    if not nodes or not all(node.text(NAME) and node.text(OP) for node in nodes):
        raise FileError("this is no graph of TensorFlow: it has no nodes with names and operators")
    return nodes


def constants(nodes: Sequence[Message]) -> Iterator[tuple[str, Array]]:
    """The constants among nodes that could be weights, by name: floating-point numbers with an axis."""
    for node in nodes:
        if node.text(OP) != "Const":
            continue
        name = node.text(NAME)
        for attribute in node.messages(ATTRIBUTES):
            if attribute.text(KEY) == "value":
                array = tensor(name, attribute.one(VALUE).one(TENSOR))
                if array is not None and array.ndim:
                    yield name, native(array)


def tensor(name: str, said: Message) -> Array | None:
    """The numbers of a TensorProto; None where they are no floating-point ones.

    What is there may be less than the shape asks for: the last number is repeated then.
    """
    whole = entry(name, said.number(1), said.one(2), ())
    kind = whole.kind
    if kind is None or not (kind.kind == "f" or kind.name == "bfloat16"):
        return None
    said.store.take(whole.bytes + OBJECT + len(name), f"the constant {name[:100]!a}")
    count, content = math.prod(whole.shape), said.pieces(CONTENT)
    if content:
        if len(content[-1]) != whole.bytes:
            raise FileError(f"the constant {name[:100]!a} has not the size of its shape")
        return np.frombuffer(content[-1], kind.newbyteorder("<")).reshape(whole.shape)
    there = values(name, kind, said)
    if len(there) > count:
        raise FileError(f"the constant {name[:100]!a} has more numbers than its shape")
    made = np.full(count, there[-1] if len(there) else 0, kind)
    made[: len(there)] = there
    return made.reshape(whole.shape)
