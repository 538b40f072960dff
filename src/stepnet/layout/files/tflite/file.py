"""Reads the recurrent operators of a TensorFlow Lite model, without TensorFlow.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs, version 3c, for the tables and the numbers of their
fields; tensorflow/lite/kernels/lstm_shared.h, lstm.cc, basic_rnn.cc, bidirectional_sequence_lstm.cc and
others beside them for the inputs of operators.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, StepnetError
from stepnet.layout.files.paths import existing, reading
from stepnet.layout.files.store import OBJECT, Store
from stepnet.layout.files.tflite.flatbuffer import Table, root
from stepnet.layout.files.tflite.names import (
    ACTIVATIONS,
    BASIC,
    CONCATENATION,
    DEQUANTIZE,
    KERNELS,
    KINDS,
    REVERSE,
    TRANSPOSE,
    OperatorKind,
    operator_name,
)
from stepnet.layout.files.tflite.node import TfliteNode, misfit

Array = np.ndarray

PARTS = 1 << 18  # the most tensors and operators of one model
OPERANDS = 64  # the most inputs or outputs of an operator that are read
DIMENSIONS = 8
STEPS = 100  # the most operators between a recurrent one and the source of its input
DTYPES = {0: "<f4", 1: "<f2", 2: "<i4", 4: "<i8", 10: "<f8"}  # float16 becomes float32, exactly
QUANTIZED = {3: "UINT8", 7: "INT16", 9: "INT8", 16: "UINT16", 17: "INT4"}


@dataclass(frozen=True)
class TfliteFile:
    """The recurrent operators of a TFLite model in execution order, and the names of its other operators."""

    nodes: tuple[TfliteNode, ...]
    others: tuple[str, ...]


def read(path: str | Path) -> TfliteFile:
    """Reads the recurrent operators of a TFLite model, and the names of the others.

    GRUs and unusual activations are not recurrent operators: the converter writes them as a loop of products.
    Operators that only reverse the input of a recurrent one count as part of it. Raises `FileError` for a
    damaged file, and for weights that are quantized, sparse or computed when the model runs.

    >>> read("model.tflite")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.tflite: there is no such file
    """
    path = existing(path)
    with reading(path):
        data = path.read_bytes()
    model, store = root(data, str(path), b"TFL3", ".tflite"), Store(path, len(data))
    codes = [max(code.get(0, "b"), code.get(3, "i")) for code in model.tables(1)]
    titles = [
        operator_name(max(code.get(0, "b"), code.get(3, "i")), code.text(1)) for code in model.tables(1)
    ]
    buffers = model.tables(4)
    recurrent: list[TfliteNode] = []
    others: list[str] = []
    parts = 0
    for subgraph in model.tables(2):
        tensors, operators = subgraph.tables(0), subgraph.tables(3)
        parts += 1 + len(tensors) + len(operators)
        if parts > PARTS:
            raise FileError(f"{path}: the model has more than {PARTS} tensors and operators")
        graph = Subgraph(tensors, buffers, makers_of(operators, codes, store), store)
        nodes = nodes_of(graph, {node.name for node in recurrent})
        others += others_of(graph, operators, codes, titles, nodes)
        recurrent += nodes
    return TfliteFile(tuple(recurrent), tuple(others))


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph of a TFLite model: its tensors, buffers of numbers, and the operator that makes each tensor."""

    tensors: list[Table]
    buffers: list[Table]
    makers: Mapping[int, "Maker"]
    store: Store


@dataclass(frozen=True)
class Maker:
    """The operator that computes a TFLite tensor, the number of its kind, and which output the tensor is."""

    code: int
    operator: Table
    output: int


Item = TypeVar("Item")


def checked_item(items: Sequence[Item], index: int, what: str, store: Store) -> Item:
    """Returns item number `index` of a list in a TFLite file; raises `FileError` if it is out of range. what:
    the kind of item, such as "tensor", for the message. store: has the path of the file.
    """
    if not 0 <= index < len(items):
        raise FileError(f"{store.path}: the file is broken: it names {what} {index} of {len(items)}")
    return items[index]


def operands(operator: Table, field: int) -> list[int]:
    """Returns the indices of an operator's inputs (field 1) or outputs (2); -1 for a missing one."""
    return operator.vector(field, "<i4")[:OPERANDS].tolist()


def makers_of(operators: Sequence[Table], codes: Sequence[int], store: Store) -> dict[int, Maker]:
    """Returns the operator that computes each tensor of a TFLite graph, by the tensor's index. codes: the
    numbers of the operators' kinds, to which operators refer by index.
    """
    makers: dict[int, Maker] = {}
    for operator in operators:
        code = checked_item(codes, operator.get(0, "I"), "operator code", store)
        makers.update({tensor: Maker(code, operator, i) for i, tensor in enumerate(operands(operator, 2))})
    return makers


def array_at(graph: Subgraph, index: int) -> Array | None:
    """Reads the numbers of TFLite tensor `index`, where float16 becomes float32; None if the file has none,
    or of a dtype that is not read. Raises `FileError` if shape and bytes do not fit.
    """
    tensor = checked_item(graph.tensors, index, "tensor", graph.store)
    dtype = DTYPES.get(tensor.get(1, "b"))
    buffer = checked_item(graph.buffers, tensor.get(2, "I"), "buffer", graph.store)
    data, start, size = buffer.vector(0, "u1"), buffer.get(1, "Q"), buffer.get(2, "Q")
    if start > 1:  # in a file of more than 2 GiB numbers lie behind the tables
        data = np.frombuffer(buffer.data, "u1")[start : start + size]
    if dtype is None or not data.size:
        return None
    shape = tuple(tensor.vector(0, "<i4")[: DIMENSIONS + 1].tolist())
    count = math.prod(shape)
    if len(shape) > DIMENSIONS or min(shape, default=1) < 1 or count * np.dtype(dtype).itemsize != data.size:
        raise FileError(
            f"{graph.store.path}: tensor {tensor.text(3)!r} of shape {shape} has {data.size} bytes of numbers"
        )
    graph.store.take(2 * data.size, f"tensor {tensor.text(3)!r}")
    with np.errstate(invalid="ignore"):  # a signalling NaN is kept as a NaN
        return data.view(dtype).reshape(shape).astype(np.float32 if dtype == "<f2" else dtype)


def weight(graph: Subgraph, index: int) -> Array:
    """Reads the weight in TFLite tensor `index`, or in the tensor that a Dequantize makes it of, as float16
    is stored; raises `ValueError` if it is quantized, sparse or no constant.
    """
    maker = graph.makers.get(index)
    if maker is not None and maker.code == DEQUANTIZE:  # this is also how float16 weights are stored
        index = next(iter(operands(maker.operator, 1)), -1)
    tensor = checked_item(graph.tensors, index, "tensor", graph.store)
    kind = tensor.get(1, "b")
    if kind in QUANTIZED:
        raise ValueError(f"is quantized ({QUANTIZED[kind]}); read the model it was quantized from")
    if tensor.table(6) is not None:
        raise ValueError("is sparse; convert the model without that")
    array = array_at(graph, index)
    if array is None or array.dtype.kind != "f":
        raise ValueError("is no constant of float32 or float16")
    return array


def nodes_of(graph: Subgraph, used_names: set[str]) -> list[TfliteNode]:
    """Reads the recurrent operators of a TFLite graph in order; adds their names to `used_names`."""
    nodes: dict[int, TfliteNode] = {}
    for tensor, maker in graph.makers.items():
        if maker.code in KINDS and maker.output == 0:
            name = name_of(graph, tensor)
            while name in used_names:
                name = f"{name}_{len(used_names)}"
            used_names.add(name)
            node = node_of(graph, maker, name)
            nodes[maker.operator.start] = with_origin(graph, node, operands(maker.operator, 1)[0], nodes)
    return list(nodes.values())


def others_of(
    graph: Subgraph,
    operators: Sequence[Table],
    codes: Sequence[int],
    titles: Sequence[str],
    nodes: Sequence[TfliteNode],
) -> Iterator[str]:
    """Yields the names of the operators of a TFLite graph that are left out when only its recurrent ones are
    read. Operators that reverse, transpose or concatenate the input of a recurrent one, or dequantize
    weights, are not among them.

    operators: all operators of the graph. codes, titles: the number and the name of each kind of operator in
    the model; an operator stores an index into these lists. nodes: the recurrent operators.
    """
    is_reversed = {tensor for node in nodes for tensor in node.inputs}
    concatenated = {tensor for node in nodes if node.after for tensor in node.inputs}
    within = {TRANSPOSE: is_reversed, REVERSE: is_reversed, CONCATENATION: concatenated}
    for operator in operators:
        code_index: int = operator.get(0, "I")
        outputs, inputs = operands(operator, 2), operands(operator, 1)
        name = name_of(graph, outputs[0]) if outputs and outputs[0] >= 0 else ""
        graph.store.take(OBJECT + len(name), "the names of its operators")
        of_weights = codes[code_index] == DEQUANTIZE and not any(tensor in graph.makers for tensor in inputs)
        inside: set[str] = within.get(codes[code_index], set())
        if codes[code_index] not in KINDS and name not in inside and not of_weights:
            yield f"{name} ({titles[code_index]})".lstrip()


def name_of(graph: Subgraph, tensor: int) -> str:
    """Returns the name of the TFLite tensor with the index `tensor`."""
    return checked_item(graph.tensors, tensor, "tensor", graph.store).text(3)


def node_of(graph: Subgraph, maker: Maker, name: str) -> TfliteNode:
    """Reads the arrays and options of a recurrent TFLite operator as a `TfliteNode` called `name`. maker: the
    operator, with the number of its kind. Raises `FileError` if the arrays do not fit each other, or if
    stepnet knows no layout (arrangement of weights) for them.
    """
    kind, inputs = KINDS[maker.code], operands(maker.operator, 1)
    where = f"{graph.store.path}: {kind.name} {name!r}"
    options = options_of(maker.operator, kind, where)
    if options.get("kernel_type") == "BASIC":
        kind = BASIC
    arrays: dict[str, Array] = {}
    for (slot, axes), index in zip(kind.inputs.items(), inputs, strict=False):
        if slot == "aux_input" and index >= 0:
            raise FileError(f"{where} has a second input, for which stepnet has no layout")
        if axes and index >= 0:
            try:
                arrays[slot] = weight(graph, index)
            except StepnetError:
                raise
            except ValueError as error:
                raise FileError(f"{where}: its {slot} {error}") from error
    reason = misfit(kind, arrays)
    if options.get("diagonal_recurrent_tensors"):
        reason = "its recurrent weights are diagonals, for which stepnet has no layout"
    if reason is not None:
        raise FileError(f"{where} is not read: {reason}")
    return TfliteNode(name, kind.name, arrays, options)


def options_of(operator: Table, kind: OperatorKind, where: str) -> dict[str, Any]:
    """Returns the options of a TFLite operator by name, with the schema's defaults, and numbers of
    activations and kernels as their names; raises `FileError` for options of another operator. kind: the kind
    of operator, with the names of its options. where: the operator, for messages.
    """
    table = operator.table(4)
    if table is not None and operator.get(3, "B") != kind.options_type:
        raise FileError(f"{where} has the options of another operator")
    options = {
        name: default if table is None else table.get(field, letter, default)
        for field, (name, letter, default) in enumerate(kind.options)
    }
    for name, values in (("fused_activation_function", ACTIVATIONS), ("kernel_type", KERNELS)):
        if name in options:
            if not 0 <= options[name] < len(values):
                raise FileError(
                    f"{where} has the {name} {options[name]}, and known are 0 to {len(values) - 1}"
                )
            options[name] = values[options[name]]
    return options


@dataclass(frozen=True)
class SourceTensor:
    """A source of a recurrent TFLite operator's input.

    maker: the operator that computes it; None for an input of the model.
    time_first: whether its first axis is time.
    is_reversed: whether it is reversed in time before it reaches the operator.
    """

    maker: Maker | None
    time_first: bool
    is_reversed: bool


def sources_of(
    graph: Subgraph, tensor: int, time_first: bool, is_reversed: bool, path: list[str]
) -> list[SourceTensor]:
    """Finds the tensors from which a TFLite tensor is made by operators that only concatenate features,
    transpose or reverse. Returns these sources, each with the operator that computes it, the order of its
    axes, and whether it is reversed on the way.

    time_first: True if the tensor's axes are [time, batch, features], else [batch, time, features].
    is_reversed: True if an odd number of reversals lies between the tensor and the operator that reads it.
    path: the list to which the names of the tensor and of those before it are appended.
    """
    maker = graph.makers.get(tensor)
    path.append(name_of(graph, tensor))
    if maker is None or len(path) > STEPS:
        return [SourceTensor(maker, time_first, is_reversed)]
    inputs = operands(maker.operator, 1)
    operand = array_at(graph, inputs[1]) if maker.code in (REVERSE, TRANSPOSE) and len(inputs) == 2 else None
    numbers = () if operand is None else tuple(operand.ravel()[:DIMENSIONS].tolist())
    if maker.code == REVERSE and numbers == (0 if time_first else 1,):
        return sources_of(graph, inputs[0], time_first, not is_reversed, path)
    if maker.code == TRANSPOSE and numbers == (1, 0, 2):
        return sources_of(graph, inputs[0], not time_first, is_reversed, path)
    options = maker.operator.table(4)
    if maker.code == CONCATENATION and options is not None and options.get(0, "i") in (2, -1):
        return [
            leaf for source in inputs for leaf in sources_of(graph, source, time_first, is_reversed, path)
        ]
    return [SourceTensor(maker, time_first, is_reversed)]


def with_origin(
    graph: Subgraph, node: TfliteNode, tensor: int, nodes: Mapping[int, TfliteNode]
) -> TfliteNode:
    """Returns the recurrent TFLite operator `node` with the fields about its input filled in.

    They are `inputs`, the names of its input tensor and of the tensors from which this is reversed,
    transposed or concatenated; `reverse`, True if it is reversed in time; `after`, the names of the recurrent
    operators whose outputs, all of them in order, are the input; and `over`, the name of the tensor that
    another operator computes as the only source of the input, else "".

    tensor: the index of the input tensor. nodes: the recurrent operators read so far, by the offset of their
    tables in the file.
    """
    path: list[str] = []
    time_first = node.options.get("time_major", False)
    sources = sources_of(graph, tensor, time_first, False, path)
    makers = [nodes.get(leaf.maker.operator.start) if leaf.maker else None for leaf in sources]
    is_reversed = {
        leaf.is_reversed ^ (maker is not None and maker.reverse)
        for leaf, maker in zip(sources, makers, strict=True)
    }
    fed = [
        (maker.name, leaf.maker.output)
        for leaf, maker in zip(sources, makers, strict=True)
        if leaf.maker and maker and maker.options.get("time_major", leaf.time_first) == leaf.time_first
    ]
    by_name = {maker.name: maker for maker in makers if maker}
    all_outputs = [(name, output) for name, maker in by_name.items() for output in range(outputs_of(maker))]
    follows = len(fed) == len(sources) and fed == all_outputs and len(is_reversed) == 1
    other = len(sources) == 1 and sources[0].maker is not None and not by_name
    return replace(
        node,
        inputs=tuple(path),
        reverse=is_reversed == {True},
        after=tuple(by_name) if follows else (),
        over=path[-1] if other else "",
    )


def outputs_of(node: TfliteNode) -> int:
    """Returns the number of output sequences of a TFLite operator: one per direction, unless merged."""
    return 2 if node.options.get("merge_outputs") is False else 1
