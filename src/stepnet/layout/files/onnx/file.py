"""Reads the recurrent nodes of an ONNX model."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, StepnetError
from stepnet.layout.files.onnx import messages
from stepnet.layout.files.onnx.folds import FOLDS, MOVES
from stepnet.layout.files.onnx.graph import (
    DOMAINS,
    Constant,
    ConstantFolder,
    GraphNode,
    GraphScope,
    Key,
    Output,
    Source,
    Walk,
    find,
    value_of,
)
from stepnet.layout.files.onnx.node import GATES, INPUTS, LIMIT, OUTPUTS, STATES, OnnxNode, filled, misfit
from stepnet.layout.files.onnx.states import InputSource, lengths, state
from stepnet.layout.files.onnx.tensor import Array, Proto, array_of
from stepnet.layout.files.onnx.unrolled import unrolled
from stepnet.layout.files.paths import existing, library
from stepnet.layout.files.store import Store

STEPS = 1000  # the most nodes between a value and its origin
LABELS = 1 << 22  # the largest output that is traced into the next layer; float32 has twice as many integers
REFUSED = {
    "DynamicQuantizeLSTM": "its weights are quantized; read the model it was quantized from",
    "AttnLSTM": "its attention is part of the step, for which stepnet has no layout",
}
QUANTIZED = ("DequantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class OnnxFile:
    """The contents of an ONNX model.

    Attributes:
        nodes: Its recurrent nodes in order, in bodies and functions too.
        rest: Its other arrays: initializers that are not weights of these nodes, and constant initial states.
        others: The names of its other nodes, except nodes that compute constants for recurrent nodes, and
            nodes that only move numbers from one recurrent node to the next.
        unrolled: For recurrent layers that are named in the exporter's metadata and are not nodes: the
            reason, by the name of the layer.
    """

    nodes: tuple[OnnxNode, ...]
    rest: Mapping[str, Array]
    others: tuple[str, ...]
    unrolled: Mapping[str, str]


def contents(path: str | Path) -> OnnxFile:
    """Reads the recurrent nodes of an ONNX model, and everything else in it.

    Weights may be initializers, constants, or files in the model's folder, and may pass through nodes that
    move numbers. A layer that an exporter wrote as products, unrolled or in a loop, is not a recurrent node;
    PyTorch's exporter says which layers these are. Raises `FileError` for a damaged file, and for weights
    that are quantized or no constants.

    >>> contents("model.onnx")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.onnx: there is no such file
    """
    model, store = opened(path)
    nodes, walk, folder = recurrent(model, store)
    initializers = {
        name: array_of(source.tensor, store)
        for name, source in walk.main.sources.items()
        if isinstance(source, Constant) and (walk.main, name) not in folder.used
    }
    constants = {name: array for node in nodes for name, array in node.constants.items()}
    plain = [node for node in walk.nodes if not is_recurrent(node) and node not in folder.nodes]
    others = tuple(f"{node.name or 'a node'} ({node.op})" for node in plain)
    return OnnxFile(nodes, initializers | constants, others, unrolled(walk.nodes, is_recurrent))


def read(path: str | Path) -> tuple[OnnxNode, ...]:
    """Reads the recurrent nodes of an ONNX model, with their weights, in order."""
    return recurrent(*opened(path))[0]


def opened(path: str | Path, contents: bytes | None = None) -> tuple[Proto, Store]:
    """Parses an ONNX file: returns the message, whose tensors are not read yet, and the limit on memory.
    Raises `FileError` for a file that is missing, too large or damaged.

    contents: the contents of the file, if they were read before.
    """
    path = existing(path) if contents is None else Path(path)
    kind = messages.classes().ModelProto
    protobuf = library("google.protobuf.message", "an .onnx file", "onnx")
    try:
        size = path.stat().st_size if contents is None else len(contents)
        if size > LIMIT:
            raise FileError(
                f"{path}: no ONNX file has {size} bytes; keep its weights in a separate file (external data)"
            )
        data = path.read_bytes() if contents is None else contents
        store = Store(path, size)
        messages.count(data, kind.DESCRIPTOR, store)
        model = kind.FromString(data)
    except protobuf.DecodeError as error:
        raise FileError(
            f"{path}: this is not a complete ONNX model ({' '.join(str(error).split())})"
        ) from error
    except OSError as error:
        raise FileError(f"{path}: the file cannot be read ({error.strerror or error})") from error
    if not model.ir_version or not model.HasField("graph"):
        raise FileError(f"{path}: this is not a complete ONNX model (it has no graph)")
    return model, store


def recurrent(model: Proto, store: Store) -> tuple[tuple[OnnxNode, ...], Walk, ConstantFolder]:
    """Reads the recurrent nodes of an ONNX model, each under a unique name. Also returns all nodes of the
    model, as a `Walk`, and the `ConstantFolder` that computed the constants among the inputs of the recurrent
    nodes. store: the limit on memory. Raises `FileError` for recurrent operators of onnxruntime that are not
    read.
    """
    walk, folder = Walk(model, store), ConstantFolder(store)
    names: dict[GraphNode, str] = {}
    names_in_use: set[str] = set()
    for node in walk.nodes:
        if node.op in REFUSED and node.domain == "com.microsoft":
            raise FileError(f"{store.path}: {node.op} {node.name!r} is not read: {REFUSED[node.op]}")
        if is_recurrent(node):
            name = node.name or node.op.lower()
            while name in names_in_use:
                name = f"{name}_{len(names_in_use)}"
            names[node] = name
            names_in_use.add(name)
    used = walk.used() if names else set[Key]()
    layers = {
        node: replace(layer(node, name, walk, folder), gives=outputs_used(node, used))
        for node, name in names.items()
    }
    return tuple(with_origin(node, layers, walk, folder) for node in names), walk, folder


def is_recurrent(node: GraphNode) -> bool:
    """Returns True if a node is one of ONNX's recurrent operators RNN, GRU and LSTM."""
    return node.op in GATES and node.domain in DOMAINS


def outputs_used(node: GraphNode, used: Collection[Key]) -> tuple[str, ...]:
    """Returns the outputs of a recurrent node, such as "Y_h", that nodes read or the model returns."""
    named = zip(OUTPUTS, node.outputs, strict=False)
    return tuple(slot for slot, name in named if name and (node.scope, name) in used)


def layer(node: GraphNode, name: str, walk: Walk, folder: ConstantFolder) -> OnnxNode:
    """Reads a recurrent ONNX node, with its arrays, attributes and initial states, as an `OnnxNode` called
    `name`. Raises `FileError` if a weight is no constant, or if arrays and attributes do not fit each other.

    walk: all nodes of the model, with the shapes that it declares. folder: computes constants, and records
    which of them become weights.
    """
    arrays: dict[str, Array] = {}
    begins: dict[str, InputSource] = {}
    for slot, value in zip(INPUTS[node.op][1:], node.inputs[1:], strict=False):
        if not value:
            continue
        if slot == "sequence_lens":
            begins[slot] = lengths(node, value, walk, folder)
        elif slot in STATES:
            begins[slot] = beginning = state(node.scope, value, folder)
            if beginning.array is not None:
                what = f"the initial state {value[:100]!r}"
                arrays[slot] = in_order(beginning.array, folder.store, what)
        else:
            array = folder.value(node.scope, value)
            if array is None:
                raise FileError(
                    f"{folder.store.path}: {node.op} {name!r}: {no_constant(node, slot, value, folder)}"
                )
            folder.use(node.scope, value)
            arrays[slot] = in_order(array, folder.store, f"{slot} of {node.op} {name[:100]!r}")
    try:
        missing = [slot for slot in ("W", "R") if slot not in arrays]
        if missing:
            raise ValueError(f"it has no {missing[0]}")
        stated = {key: value_of(attribute, folder.store) for key, attribute in node.attributes.items()}
        attributes = filled(node.op, stated, arrays["R"].shape[-1] if arrays["R"].ndim else 0)
        reason = misfit(node.op, arrays, attributes)
        if reason is not None:
            raise ValueError(reason)
    except StepnetError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise FileError(f"{folder.store.path}: {node.op} {name!r} is no such node: {error}") from error
    constants = {
        called if scope is walk.main else f"{name}/{called}": array
        for beginning in begins.values()
        for (scope, called), array in beginning.constants.items()
    }
    kinds = {slot: beginning.kind for slot, beginning in begins.items() if beginning.kind}
    return OnnxNode(name, node.op, arrays, attributes, begins=kinds, constants=constants)


def in_order(array: Array, store: Store, what: str) -> Array:
    """Returns an array in C order; counts the bytes of a copy. what: its name in messages."""
    if not array.flags.c_contiguous:
        store.take(array.nbytes, what)
    return np.ascontiguousarray(array)


def no_constant(node: GraphNode, slot: str, value: str, folder: ConstantFolder) -> str:
    """Returns a message that says why the weight of an ONNX node in the input `slot`, such as "W", is no
    constant. value: the name of the value that the node takes there. folder: counts the nodes that are
    followed.
    """
    names, source = origin(node.scope, value, folder)
    if isinstance(source, Output) and source.node.op in QUANTIZED:
        return f"its {slot} is quantized; read the model it was quantized from"
    if isinstance(source, Output) and source.node.op == "Constant":
        return f"its {slot} is {names[-1]!r}, and that Constant holds no array of numbers"
    if isinstance(source, Output) and source.node.op not in FOLDS:
        producer = f"{source.node.op} {source.node.name!r}"
        return f"its {slot} comes from {producer}, which is not computed here; simplify the model"
    if source is None:
        return f"its {slot} is an input of the model; save it as a constant"
    return f"its {slot} is made of {names[-1]!r} by nodes that cannot be computed here; simplify the model"


def origin(scope: GraphScope, name: str, folder: ConstantFolder) -> tuple[tuple[str, ...], Source]:
    """Follows an ONNX value back through nodes that only move numbers. Returns the names of the value and of
    those before it, and the source of the last one: a constant, the output of another node, or None for an
    input of the model and beyond `STEPS` nodes.

    scope: the graph or function in which the name is looked up. folder: counts the nodes that are followed,
    whose number is limited.
    """
    names = [name]
    for _ in range(STEPS):
        folder.work()
        source = find(scope, names[-1])[2]
        if not isinstance(source, Output) or source.node.op not in MOVES or not source.node.inputs:
            return tuple(names), source
        scope = source.node.scope
        names.append(source.node.inputs[0])
    return tuple(names), None


def with_origin(
    node: GraphNode, layers: Mapping[GraphNode, OnnxNode], walk: Walk, folder: ConstantFolder
) -> OnnxNode:
    """Returns the `OnnxNode` of a recurrent ONNX node with `inputs` and `after` filled in. inputs: the names
    of its input X and of the values before X, through nodes that only move numbers. after: the name of the
    recurrent node whose whole output is X; "" if X is something else, None if that is unknown.

    layers: all recurrent nodes of the model. walk: all nodes, with declared shapes. folder: computes
    constants.
    """
    inputs, source = origin(node.scope, node.inputs[0], folder)
    before = source.node if isinstance(source, Output) and source.node in layers else None
    if before is None:
        return replace(layers[node], inputs=inputs, after="")
    after = {True: layers[before].name, False: "", None: None}
    return replace(layers[node], inputs=inputs, after=after[follows_on(node, before, layers, walk, folder)])


def follows_on(
    node: GraphNode,
    before: GraphNode,
    layers: Mapping[GraphNode, OnnxNode],
    walk: Walk,
    folder: ConstantFolder,
) -> bool | None:
    """Returns True if X, the input of an ONNX node, is Y, the output of the recurrent node `before`, with
    both directions concatenated. To find out, the nodes between them are computed on distinct labels in place
    of Y; None if Y is too large for that.

    layers: both nodes with their weights. walk: has the shapes that the model declares. folder: computes
    constants, and records the nodes in between as used.
    """
    below, above = layers[before], layers[node]
    by_batch: int = below.attributes["layout"]
    sizes = walk.sizes(before.scope, before.outputs[0]) if before.outputs else ()
    sizes = sizes if len(sizes) == 4 else (0, 0, 0, 0)
    T, N = (sizes[1] or 2, sizes[0] or 3) if by_batch else (sizes[0] or 2, sizes[2] or 3)
    D, H = below.directions, int(below.attributes["hidden_size"])
    if min(T, N) < 1 or T * N * D * H > LABELS:
        return None
    folder.work(T * N * D * H)
    labels = labels_of(T * N * D * H, below.arrays["R"].dtype).reshape(T, N, D, H)
    Y = labels.transpose((1, 0, 2, 3) if by_batch else (0, 2, 1, 3))
    X = labels.reshape(T, N, D * H).swapaxes(0, above.attributes["layout"])
    memory = folder.store.left
    labelled = ConstantFolder(folder.store, {(before.scope, before.outputs[0]): Y})
    seen = labelled.value(node.scope, node.inputs[0])
    folder.store.give_back(memory - folder.store.left)  # labels are not kept
    follows = seen is not None and np.array_equal(seen, X)
    if follows:
        folder.use(node.scope, node.inputs[0])
    return follows


def labels_of(count: int, dtype: np.dtype[Any]) -> Array:
    """Returns `count` distinct numbers that do not survive a cast to a narrower dtype or to an integer. In
    place of a node's output, they show to which positions other nodes move its numbers.

    >>> labels_of(2, np.dtype(np.float32)).astype(np.float16).astype(np.float32)
    array([1., 1.], dtype=float32)
    """
    return (1 + (2 * np.arange(count) + 1) * np.finfo(dtype).eps).astype(dtype)
