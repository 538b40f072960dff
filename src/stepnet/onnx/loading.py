"""A graph from an ONNX model: which axis of its inputs is what, and what it does not run.

    X [3, ?, 8]    -->    X [time, batch, 8], because a GRU reads it so

What a recurrence reads says what its axes are. Of other inputs the usual ways are tried, batch first before
time first, until all operators fit.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, product
from pathlib import Path

import numpy as np

from stepnet.errors import ModelError
from stepnet.files.onnx.file import opened
from stepnet.files.onnx.graph import DEPTH, Constant, Key, Node, Output, Walk, find
from stepnet.files.onnx.node import GATES, INPUTS
from stepnet.files.onnx.tensor import Proto, text
from stepnet.files.store import Store
from stepnet.graph.graph import Graph
from stepnet.graph.operators.inputs import (
    MOST_WAYS,
    ModelInput,
    check_agree,
    check_names,
    first_fitting,
    graph_of,
    usual,
    with_axes,
)
from stepnet.graph.operators.padding import COMPARISONS
from stepnet.graph.operators.rowwise import DTYPES
from stepnet.onnx.model import OnnxModel, unsupported

Array = np.ndarray
SLOTS = {
    "X": ("TN_", "NT_"),
    "initial_h": ("_N_", "N__"),
    "initial_c": ("_N_", "N__"),
    "sequence_lens": ("lengths", "lengths"),
}
"""The axes of an input that a recurrent node reads, by its layout."""
MOVING = {"Add", "Cast", "Expand", "Identity", "Reshape", "Squeeze", "Sub", "Transpose", "Unsqueeze"}
"""What lengths, and numbers of steps, may go through before they are compared."""


def load(path: str | Path, *, axes: Mapping[str, str] | None = None) -> Graph:
    """The model of an .onnx file as a `Graph`, which runs over sequences without padding.

    Args:
        path: The file. Weights in files beside it are read too.
        axes: What the axes of inputs are, by name, where it cannot be told from the recurrences that read
            them: "NT" for [batch, time, ...], "TN" for time first, "N" for a value that each sequence has
            once, "_N" for [layers, batch, ...]. Further axes are features, as those called "_". "lengths" for
            the lengths of the sequences, which recurrences and masks of steps mostly tell.

    Returns:
        The graph. A model with one input of sequences takes it as it is, one with several a dict by name;
        inputs without steps are `statics`. The input `sequence_lens` is `lengths=` of a call. Outputs are
        those of the model, without padding, and by name where there are several. Their features are ONNX's
        axes other than sequences and steps, in order.

    Raises:
        FileError: For a file that is no ONNX model, or a damaged one.
        ModelError: For an operator that is not supported, with its node, and for a use of one that mixes
            sequences or needs all steps of a padded batch.
        InputError: For axes that do not fit.
    """
    proto, store = opened(path)
    return loaded(proto, store, str(path), axes or {}, {})


def loaded(
    proto: Proto, store: Store, path: str, axes: Mapping[str, str], constants: Mapping[str, Array]
) -> Graph:
    """The graph of a model. constants: arrays for inputs that are no sequences."""
    walk = Walk(proto, store)
    outputs = [text(value.name) for value in proto.graph.output]
    if not outputs:
        raise ModelError(f"{path}: it has no outputs")
    missing = unsupported(walk, outputs)
    if missing:
        raise ModelError(unsupported_text(path, missing, walk))
    declared = declared_inputs(proto, walk, axes, constants)

    def made(chosen: Sequence[str]) -> Graph:
        inputs = tuple(map(model_input, declared, chosen))
        check_agree(inputs)
        return graph_of(OnnxModel(path, inputs, walk, store, constants))

    return first_fitting(path, ways(declared, walk, axes), made)


def unsupported_text(path: str, missing: list[Node], walk: Walk) -> str:
    """What a model has that is not supported, and that the rest is."""
    named = [f"{node.op} {node.name!r}" for node in missing]
    kinds = ", ".join(dict.fromkeys(node.op for node in missing))
    others = len(walk.nodes) - len(missing)
    listed = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
    return f"{path}: {kinds} not supported: {listed}; its {others} other nodes are"


def declared_inputs(
    proto: Proto, walk: Walk, axes: Mapping[str, str], constants: Mapping[str, Array]
) -> list[Proto]:
    """The inputs of a model that are no weights; raises `InputError` for axes of others."""
    sources = walk.main.sources
    known = {name for name, source in sources.items() if isinstance(source, Constant)} | {*constants}
    declared = [value for value in proto.graph.input if text(value.name) not in known]
    check_names(axes, [text(value.name) for value in declared])
    return declared


def ways(declared: list[Proto], walk: Walk, axes: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The axes that the inputs may have, the likeliest first: those that fit the sizes of the file."""
    every = product(
        *(
            [axes[name]] if (name := text(value.name)) in axes else usual_axes(value, walk)
            for value in declared
        )
    )
    first = list(islice(every, MOST_WAYS))
    return chain(sorted(first, key=partial(differences, declared)), every)


def differences(declared: Sequence[Proto], chosen: Sequence[str]) -> int:
    """How much speaks against axes: several sizes of sequences or of steps, by the names and numbers of the
    file, and inputs with steps and no sequences.
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
    """The axes that an input may have."""
    rank = len(value.type.tensor_type.shape.dim)
    if rank == 1 and is_compared_with_steps(walk, (walk.main, text(value.name))):
        return ["lengths"]
    read = {axes for node in walk.nodes if node.op in GATES for axes in read_as(node, text(value.name), walk)}
    return sorted(read) if read else usual(rank)


def read_as(node: Node, name: str, walk: Walk) -> Iterator[str]:
    """The axes of an input of the model that a recurrent node reads."""
    batch_first = "layout" in node.attributes and node.attributes["layout"].i == 1
    for slot, operand in zip(INPUTS[node.op], node.inputs, strict=False):
        if slot in SLOTS and operand and before_casts(node, operand) == (walk.main, name):
            yield SLOTS[slot][batch_first]


def is_compared_with_steps(walk: Walk, value: Key) -> bool:
    """Whether a value is compared with the numbers of a Range, as the lengths of sequences are for a mask."""
    reached, counting = {value}, set[Key]()
    for node in walk.nodes:
        operands = {find(node.scope, name)[:2] for name in node.inputs if name}
        results = {(node.scope, name) for name in node.outputs if name}
        if node.op == "Range":
            counting |= results
        if node.op in COMPARISONS and operands & reached and operands & counting:
            return True
        if node.op in MOVING:
            reached |= results if operands & reached else set()
            counting |= results if operands & counting else set()
    return False


def before_casts(node: Node, operand: str) -> Key:
    """The value that an operand is, before casts."""
    scope, name, source = find(node.scope, operand)
    for _ in range(DEPTH):
        if not (isinstance(source, Output) and source.node.op == "Cast" and source.node.inputs):
            break
        scope, name, source = find(source.node.scope, source.node.inputs[0])
    return scope, name


def model_input(value: Proto, axes: str) -> ModelInput:
    """An input with its axes; raises `InputError` where these are none of its shape."""
    tensor, name = value.type.tensor_type, text(value.name)
    sizes = [size.dim_value for size in tensor.shape.dim]
    if tensor.elem_type not in DTYPES:
        raise ModelError(f"input {name!r} is of ONNX's type {tensor.elem_type}, which is not supported")
    dtype = DTYPES[tensor.elem_type]
    if axes == "lengths":
        return ModelInput(name, axes, (), dtype)
    return with_axes(name, sizes, dtype, axes)
