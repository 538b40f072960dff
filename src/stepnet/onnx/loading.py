"""A graph from an ONNX model: which axis of its inputs is what, and what it does not run.

    X [3, ?, 8]    -->    X [time, batch, 8], because a GRU reads it so

What a recurrence reads says what its axes are. Of other inputs the usual ways are tried, batch first before
time first, until all operators fit.
"""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path

import numpy as np

from stepnet.errors import InputError, ModelError
from stepnet.files.onnx.file import opened
from stepnet.files.onnx.graph import Constant, Node, Walk, find
from stepnet.files.onnx.node import GATES, INPUTS
from stepnet.files.onnx.tensor import Proto, text
from stepnet.files.store import Store
from stepnet.graph.graph import Graph
from stepnet.onnx.model import ModelInput, OnnxModel, unsupported
from stepnet.onnx.placed import AxesError, words
from stepnet.onnx.rowwise import DTYPES
from stepnet.onnx.sizes import FEATURE
from stepnet.trace.step import Spec
from stepnet.values.arguments import shown

Array = np.ndarray
MOST_WAYS = 200
USUAL: dict[int, tuple[str, ...]] = {0: ("",), 1: ("N", "T", "_"), 2: ("NT", "TN", "N_", "T_", "__")}
"""The axes that are tried for inputs of few axes; of more, the first two are sequences and steps."""
SLOTS = {
    "X": ("TN_", "NT_"),
    "initial_h": ("_N_", "N__"),
    "initial_c": ("_N_", "N__"),
    "sequence_lens": ("lengths", "lengths"),
}
"""The axes of an input that a recurrent node reads, by its layout."""


def load(path: str | Path, *, axes: Mapping[str, str] | None = None) -> Graph:
    """The model of an .onnx file as a `Graph`, which runs over sequences without padding.

    Args:
        path: The file. Weights in files beside it are read too.
        axes: What the axes of inputs are, by name, where it cannot be told from the recurrences that read
            them: "NT" for [batch, time, ...], "TN" for time first, "N" for a value that each sequence has
            once, "_N" for [layers, batch, ...]. Further axes are features, as those called "_".

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
    missing = unsupported(walk, outputs)
    if missing:
        raise ModelError(unsupported_text(path, missing, walk))
    problem: Exception | None = None
    declared = declared_inputs(proto, walk, axes, constants)
    for chosen in islice(ways(declared, walk, axes), MOST_WAYS):
        try:
            inputs = tuple(map(model_input, declared, chosen))
            check_agree(inputs)
            return graph_of(OnnxModel(path, walk, store, inputs, constants))
        except AxesError as error:
            problem = problem or error
    if problem is None:
        raise ModelError(f"{path}: none of its inputs is a sequence")
    remedy = "axes= says what the axes of the inputs are, as axes={'x': 'NT'}"
    raise ModelError(f"{problem}\n  {remedy}") from problem


def unsupported_text(path: str, missing: list[Node], walk: Walk) -> str:
    """What a model has that is not supported, and that the rest is."""
    named = [f"{node.op} {node.name!r}" for node in missing]
    kinds = ", ".join(dict.fromkeys(node.op for node in missing))
    others = len(walk.nodes) - len(missing)
    listed = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
    return f"{path}: {kinds} not supported: {listed}; its {others} other nodes are"


def graph_of(model: OnnxModel) -> Graph:
    """The graph of a model whose inputs have axes; raises `AxesError` where they do not fit."""
    sequences = {input_.name: Spec(input_.features, input_.dtype) for input_ in model.sequences}
    if not sequences:
        raise AxesError(f"{model.path}: none of its inputs is a sequence")
    statics = {input_.name: Spec(input_.features, input_.dtype) for input_ in model.statics}
    inputs = next(iter(sequences.values())) if len(sequences) == 1 else sequences
    return Graph(model, inputs=inputs, statics=statics or None)


def declared_inputs(
    proto: Proto, walk: Walk, axes: Mapping[str, str], constants: Mapping[str, Array]
) -> list[Proto]:
    """The inputs of a model that are no weights; raises `InputError` for axes of others."""
    sources = walk.main.sources
    known = {name for name, source in sources.items() if isinstance(source, Constant)} | {*constants}
    declared = [value for value in proto.graph.input if text(value.name) not in known]
    names = [text(value.name) for value in declared]
    unknown = [name for name in axes if name not in names]
    if unknown:
        raise InputError(f"axes= names {shown(unknown[0])}, and the inputs are {', '.join(names)}")
    return declared


def ways(declared: list[Proto], walk: Walk, axes: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The axes that the inputs may have, the likeliest first."""
    return product(
        *([axes[name]] if (name := text(value.name)) in axes else usual(value, walk) for value in declared)
    )


def usual(value: Proto, walk: Walk) -> list[str]:
    """The axes that an input may have."""
    rank = len(value.type.tensor_type.shape.dim)
    read = {axes for node in walk.nodes if node.op in GATES for axes in read_as(node, text(value.name), walk)}
    if read:
        return sorted(read)
    more = "_" * (rank - 2)
    return list(USUAL.get(rank, ("NT" + more, "TN" + more, "N_" + more, "_N" + more)))


def read_as(node: Node, name: str, walk: Walk) -> Iterator[str]:
    """The axes of an input of the model that a recurrent node reads."""
    batch_first = "layout" in node.attributes and node.attributes["layout"].i == 1
    for slot, operand in zip(INPUTS[node.op], node.inputs, strict=False):
        if slot in SLOTS and operand and find(node.scope, operand)[:2] == (walk.main, name):
            yield SLOTS[slot][batch_first]


def model_input(value: Proto, axes: str) -> ModelInput:
    """An input with its axes; raises `InputError` where these are none of its shape."""
    tensor, name = value.type.tensor_type, text(value.name)
    sizes = [size.dim_value for size in tensor.shape.dim]
    if tensor.elem_type not in DTYPES:
        raise ModelError(f"input {name!r} is of ONNX's type {tensor.elem_type}, which is not supported")
    dtype = DTYPES[tensor.elem_type]
    if axes == "lengths":
        return ModelInput(name, axes, (), dtype)
    axes = axes.ljust(len(sizes), FEATURE)
    if len(axes) != len(sizes) or set(axes) - set("NT_") or axes.count("N") > 1 or axes.count("T") > 1:
        raise InputError(
            f"the axes of {name!r} are {shown(axes)}, and it has {len(sizes)}: "
            "N is sequences, T steps, and _ a feature"
        )
    features = tuple(size for size, letter in zip(sizes, axes, strict=True) if letter == "_")
    if 0 in features:
        raise AxesError(f"{name!r} has a feature of which the model does not say how many numbers it has")
    stated = tuple((letter, size) for letter, size in zip(axes, sizes, strict=True) if letter != "_" and size)
    return ModelInput(name, axes, features, dtype, stated)


def check_agree(inputs: tuple[ModelInput, ...]) -> None:
    """Raises `AxesError` where inputs state different numbers of sequences or of steps."""
    known = dict[str, tuple[int, str]]()
    for input_ in inputs:
        for letter, size in input_.stated:
            other, name = known.setdefault(letter, (size, input_.name))
            if other != size:
                what = f"{words(letter)}: {size} in {input_.name!r}, {other} in {name!r}"
                raise AxesError(f"inputs state different numbers of {what}")
