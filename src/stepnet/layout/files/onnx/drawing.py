"""Draws the graph of an ONNX model node by node, and writes it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import FileError
from stepnet.layout.files.onnx.node import INPUTS, LIMIT
from stepnet.layout.files.onnx.tensor import Array, Proto
from stepnet.layout.files.paths import new_file

OPSET, IR = 17, 8  # every onnxruntime since 1.13 runs these
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto


class GraphBuilder:
    """An ONNX graph that is being built: its nodes, and its initializers, each with its numbers."""

    def __init__(self, onnx: Any) -> None:
        """Starts with an empty ONNX graph, to which nodes are added; onnx: the imported library."""
        self.onnx = onnx
        self.nodes: list[Proto] = []
        self.constants: list[tuple[Proto, Array]] = []

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Adds a node of the operator `op` to the ONNX graph. inputs: the names of the values that it takes.
        output: the name of its only output, which is returned. attributes: the attributes of the node.
        """
        self.nodes.append(self.onnx.helper.make_node(op, inputs, [output], f"{output}_{op}", **attributes))
        return output

    def sizes(self, name: str, *sizes: int) -> str:
        """Adds a Constant with whole numbers, such as a shape, to the ONNX graph; returns its `name`."""
        return self.node("Constant", [], name, value_ints=sizes)

    def constant(self, name: str, array: Array) -> str:
        """Adds an initializer, a constant array, to the ONNX graph; returns `name`, the name of its value."""
        array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        self.constants.append((self.onnx.TensorProto(name=name, data_type=kind, dims=array.shape), array))
        return name

    def recurrent(
        self, op: str, inputs: Mapping[str, str], outputs: Sequence[str], name: str, **attributes: Any
    ) -> None:
        """Adds a node `name` of the operator `op` (RNN, GRU or LSTM) to the ONNX graph. inputs: the names of
        values, by ONNX's names of inputs, such as X and W. outputs: the names of its outputs.
        """
        operands = [inputs.get(slot, "") for slot in INPUTS[op]]
        self.nodes.append(self.onnx.helper.make_node(op, operands, outputs, name, **attributes))

    def write(
        self, path: str | Path, inputs: Sequence[Proto], outputs: Sequence[Proto], force: bool = False
    ) -> None:
        """Writes the graph as an ONNX model with these inputs and outputs, as ONNX's descriptions of values;
        raises `FileError` for over 2 GiB, and for an existing file unless `force`.
        """
        if sum(array.nbytes for _, array in self.constants) > LIMIT - (1 << 20):
            raise FileError(f"{path}: these weights are more than the 2 GiB that an ONNX file holds")
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "stepnet", inputs, outputs)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="stepnet")
        with new_file(path, force) as partial, partial.open("wb") as file:
            file.writelines(pieces(model, self.constants))


def pieces(model: Proto, constants: Sequence[tuple[Proto, Array]]) -> Iterator[bytes | memoryview]:
    """Yields the bytes of an ONNX model in pieces, to write them to a file. The numbers of initializers are
    not copied, as Protobuf would do four times. Empties the model's graph.

    model: the ModelProto without initializers. constants: the description (TensorProto) and the array of each
    initializer.

    Source: https://protobuf.dev/programming-guides/encoding
    """
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    heads: list[bytes] = []
    for tensor, array in constants:
        head = tensor.SerializeToString() + length_of(RAW_DATA, array.nbytes)
        heads.append(length_of(INITIALIZER, len(head) + array.nbytes) + head)
    numbers = sum(array.nbytes for _, array in constants)
    yield model.SerializeToString() + length_of(GRAPH, len(graph) + sum(map(len, heads)) + numbers) + graph
    for head, (_, array) in zip(heads, constants, strict=True):
        yield head
        yield array.reshape(-1).view(np.uint8).data


def length_of(field: int, length: int) -> bytes:
    """Returns the bytes in front of a protobuf field's content: its number, and its length as a varint."""
    head = bytes([field << 3 | 2])
    while length > 127:
        head += bytes([length & 127 | 128])
        length >>= 7
    return head + bytes([length])
