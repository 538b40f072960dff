"""Loading of an ONNX model as a graph: the meaning of the axes of its inputs, and checks of its operators."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, product
from pathlib import Path

import numpy as np

from stepnet.errors import ModelError
from stepnet.importers.quantizing import NARROW
from stepnet.layout.files.onnx.file import opened
from stepnet.layout.files.onnx.graph import DEPTH, Constant, GraphNode, Key, Output, Walk, find
from stepnet.layout.files.onnx.node import INPUTS
from stepnet.layout.files.onnx.tensor import Proto, text
from stepnet.layout.files.store import Store
from stepnet.model.graph import axis_choice
from stepnet.model.graph.array_model import ModelInput
from stepnet.model.graph.graph import Graph
from stepnet.onnx.axis_names import named_axes
from stepnet.onnx.dependencies import unsupported
from stepnet.onnx.model import OnnxModel
from stepnet.onnx.names import COMPARING, DTYPES

Array = np.ndarray
SLOTS = {
    "X": ("TN_", "NT_"),
    "initial_h": ("_N_", "N__"),
    "initial_c": ("_N_", "N__"),
    "sequence_lens": ("lengths", "lengths"),
}
"""The axes of an input that a recurrent node reads, by the node's attribute `layout`."""
RECURRENT = {**INPUTS, "DynamicQuantizeLSTM": INPUTS["LSTM"]}
"""The operands of recurrent nodes, by operator."""
OF_WINDOWS = {"Conv", "ConvInteger", "ConvTranspose", "FusedConv", "MaxPool", "AveragePool", "QLinearConv"}
"""The operators over windows of steps, which read [sequences, features, steps]."""
MOVING = {"Add", "Cast", "Expand", "Identity", "Reshape", "Squeeze", "Sub", "Transpose", "Unsqueeze"}
"""The operators through which lengths and step numbers may pass before they are compared."""


def read(path: str | Path, contents: bytes | None, axes: Mapping[str, str], any_steps: bool) -> Graph:
    """Reads the model in an .onnx file as a graph, as `stepnet.onnx.load` does, which has these errors.

    contents: the contents of the file, if they were read before. axes: the meaning of the first axes of
    inputs, by name. any_steps: whether no number in the file depends on the number of steps that it states.
    """
    proto, store = opened(path, contents)
    return loaded(proto, store, str(path), axes, {}, any_steps)


def loaded(
    proto: Proto,
    store: Store,
    path: str,
    axes: Mapping[str, str],
    constants: Mapping[str, Array],
    any_steps: bool = False,
) -> Graph:
    """Makes the graph of a model; tries the likely meanings of its inputs' axes (such as [batch, time,
    features]) until one fits.

    proto: the model. store: the limit on memory, and the folder of external weights. path: the name of the
    file, for messages. axes: the meaning of the first axes of inputs, by name, as the user stated them.
    constants: arrays, by name, for inputs that are constants in this graph. any_steps: whether no number in
    the file depends on the number of steps that it states.
    """
    walk = Walk(proto, store)
    outputs = [text(value.name) for value in proto.graph.output]
    if not outputs:
        raise ModelError(f"{path}: it has no outputs")
    missing = unsupported(walk, walk.main, outputs)
    if missing:
        raise ModelError(unsupported_text(path, missing, walk))
    declared = declared_inputs(proto, walk, axes, constants)

    def build(chosen: Sequence[str], apart: axis_choice.Apart) -> Graph:
        """Makes the graph for one choice of the inputs' axes, such as "NT_"; an error if they do not fit."""
        inputs = axis_choice.agreed([*map(model_input, declared, chosen)], apart)
        return axis_choice.graph_of(OnnxModel(path, inputs, walk, store, constants, any_steps=any_steps))

    remedy = "" if all(text(value.name) in axes for value in declared) else axis_choice.REMEDY
    return axis_choice.first_fitting(path, axes_choices(declared, walk, axes), build, remedy)


def unsupported_text(path: str, missing: list[GraphNode], walk: Walk) -> str:
    """Formats the error for a model with nodes that are not supported: lists the first five of them, and
    counts the supported ones.
    """
    node_texts = [f"{node.op} {node.name!r}" for node in missing]
    kinds = ", ".join(dict.fromkeys(node.op for node in missing))
    others = len(walk.nodes) - len(missing)
    nodes_text = ", ".join(node_texts[:5]) + (
        f" and {len(node_texts) - 5} more" if len(node_texts) > 5 else ""
    )
    return f"{path}: {kinds} not supported: {nodes_text}; its {others} other nodes are"


def declared_inputs(
    proto: Proto, walk: Walk, axes: Mapping[str, str], constants: Mapping[str, Array]
) -> list[Proto]:
    """Lists a model's declarations of inputs that are not weights.

    axes: the axes of inputs that the user states, by name; `InputError` for other names. constants: arrays of
    further inputs that are weights.
    """
    sources = walk.main.sources
    weights = {name for name, source in sources.items() if isinstance(source, Constant)} | {*constants}
    declared = [value for value in proto.graph.input if text(value.name) not in weights]
    axis_choice.check_names(axes, [text(value.name) for value in declared])
    return declared


def axes_choices(declared: list[Proto], walk: Walk, axes: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yields all combinations of axes that the inputs may have, each with a text such as "NT_" for every
    input. The first `MOST_WAYS` combinations are sorted by how little they contradict the file.

    declared: the inputs as the model declares them. walk: the nodes of the model. axes: the axes that the
    user states.
    """
    candidates = product(
        *(
            [axes[name]] if (name := text(value.name)) in axes else usual_axes(value, walk)
            for value in declared
        )
    )
    first = list(islice(candidates, axis_choice.MOST_WAYS))
    return chain(sorted(first, key=partial(contradictions, declared)), candidates)


def contradictions(declared: Sequence[Proto], chosen: Sequence[str]) -> int:
    """Counts the contradictions between a choice of axes and the file, to try the most likely choice first.

    They are different sizes, or names of sizes, for the batch or for the steps, and inputs with steps but
    without sequences.

    declared: the inputs as the model declares them. chosen: the axes of each input.
    """
    sizes = {
        (letter, size.dim_param or size.dim_value)
        for value, axes in zip(declared, chosen, strict=True)
        for letter, size in zip(axes, value.type.tensor_type.shape.dim, strict=False)
        if letter in "NT" and size.WhichOneof("value")
    }
    without_sequences = sum("T" in axes and "N" not in axes for axes in chosen)
    return len(sizes) - len({letter for letter, _ in sizes}) + without_sequences


def usual_axes(value: Proto, walk: Walk) -> list[str]:
    """Lists the axes that an input may have, such as "NT_", from the nodes that read it, or else from the
    names of its sizes and from its rank.

    value: the input as the model declares it. walk: the nodes of the model.
    """
    rank = len(value.type.tensor_type.shape.dim)
    name = text(value.name)
    is_sorted = any(
        node.op == "TopK" and before_casts(node, node.inputs[0]) == (walk.main, name) for node in walk.nodes
    )
    if rank == 1 and (is_sorted or is_compared_with_steps(walk, (walk.main, name))):
        return ["lengths"]
    read = {axes for node in walk.nodes if node.op in RECURRENT for axes in read_as(node, name, walk)}
    if any(reads_windows(node, name, walk) for node in walk.nodes):
        read |= {3: {"N_T"}, 4: {"N__T", "N_T_"}}.get(rank, set[str]())
    if read:
        return sorted(read)
    return named_axes(
        value, axis_choice.axes_of_sizes([size.dim_value for size in value.type.tensor_type.shape.dim])
    )


def reads_windows(node: GraphNode, name: str, walk: Walk) -> bool:
    """Returns whether a node is over windows of the steps of a model's input, called `name`."""
    is_read = node.op in OF_WINDOWS and bool(node.inputs)
    return is_read and before_casts(node, node.inputs[0]) == (walk.main, name)


def read_as(node: GraphNode, name: str, walk: Walk) -> Iterator[str]:
    """Yields the axes, such as "TN_", that a recurrent node requires of a model's input, once for each of its
    operands that is this input. name: the input of the model. walk: the nodes of the model.
    """
    batch_first = "layout" in node.attributes and node.attributes["layout"].i == 1
    for slot, operand in zip(RECURRENT[node.op], node.inputs, strict=False):
        if slot in SLOTS and operand and before_casts(node, operand) == (walk.main, name):
            yield SLOTS[slot][batch_first]


def is_compared_with_steps(walk: Walk, value: Key) -> bool:
    """Tells whether a value is compared with the output of a Range, as lengths are to compute a mask of
    steps.

    walk: the nodes of the model. value: (scope, name).
    """
    from_value, from_range = {value}, set[Key]()
    for node in walk.nodes:
        operands = {find(node.scope, name)[:2] for name in node.inputs if name}
        results = {(node.scope, name) for name in node.outputs if name}
        if node.op == "Range":
            from_range |= results
        if node.op in COMPARING and operands & from_value and operands & from_range:
            return True
        if node.op in MOVING:
            from_value |= results if operands & from_value else set()
            from_range |= results if operands & from_range else set()
    return False


def before_casts(node: GraphNode, operand: str) -> Key:
    """Returns the value, as (scope, name), from which a node's operand is cast, by one or several Casts; else
    the operand itself.
    """
    scope, name, source = find(node.scope, operand)
    for _ in range(DEPTH):
        if not (isinstance(source, Output) and source.node.op == "Cast" and source.node.inputs):
            break
        scope, name, source = find(source.node.scope, source.node.inputs[0])
    return scope, name


def model_input(value: Proto, axes: str) -> ModelInput:
    """Makes a model's input with the chosen axes; raises `InputError` if they do not fit its shape, and
    `ModelError` for an unsupported dtype. value: the input's declaration. axes: such as "NT_", or "lengths".
    """
    tensor, name = value.type.tensor_type, text(value.name)
    sizes = [size.dim_value for size in tensor.shape.dim]
    if tensor.elem_type not in DTYPES:
        raise ModelError(f"input {name!r} is of ONNX's type {tensor.elem_type}, which is not supported")
    dtype = DTYPES[tensor.elem_type]
    dtype = "int32" if dtype in NARROW else dtype
    if axes == "lengths":
        return ModelInput(name, axes, (), dtype)
    return axis_choice.with_axes(name, sizes, dtype, axes)
