"""Writes a TensorFlow Lite model that runs recurrent operators one after another, without TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import FileError, InputError
from stepnet.layout.files.paths import new_file
from stepnet.layout.files.tflite.flatbuffer import Fields, Number, build
from stepnet.layout.files.tflite.names import (
    ACTIVATIONS,
    CODES,
    CONCATENATION,
    OPTIONS_TYPES,
    RECURRENT,
    REVERSE,
    VERSIONS,
)
from stepnet.layout.files.tflite.node import TfliteNode, misfit

Array = np.ndarray
LIMIT = (1 << 31) - (1 << 20)  # bytes that the offsets of a file can address
FLOAT32, INT32 = 0, 2
ACTIVATION = "fused_activation_function"
# The outputs of both directions are concatenated by another operator: with merge_outputs, TensorFlow 2.21's
# LSTM reads the states of all sequences but the first out of bounds (lstm_eval.cc, EvalFloat: b *
# output_batch_leading_dim).
ALWAYS = {"time_major": False, "merge_outputs": False}
WRITTEN = {kind.name: kind for kind in RECURRENT}


def write(
    path: str | Path, nodes: Sequence[TfliteNode], force: bool = False, batch: int = 1, time: int = 1
) -> None:
    """Writes a TFLite model that runs sequence operators one after another, in float32.

    Its input is `input` [batch, time, features], its output [batch, time, features], where the features of
    both directions are concatenated. A runtime can resize the time of the input, but not the batch, which the
    states have too. An operator with `reverse` runs from the end, and its output is reversed again. Of each
    node `name`, `op`, `arrays`, `options` and `reverse` are used. Missing options are the schema's defaults,
    but TANH for the activation. Raises `InputError` for nodes that do not fit, `FileError` if `path` exists,
    unless `force`.
    """
    nodes = [checked(node) for node in nodes]
    features = feature_counts(nodes)
    if sum(array.nbytes for node in nodes for array in node.arrays.values()) > LIMIT:
        raise FileError(f"{path}: these weights are more than the 2 GiB that a .tflite file holds")
    drawn = ModelBuilder(batch, time)
    x = drawn.tensor("input", (batch, time, features[0]))
    for index, node in enumerate(nodes):
        before, after = ((batch, time, features[position]) for position in (index, index + 1))
        if node.reverse:
            x = drawn.reversed_steps(x, f"{node.name}/input", before)
        x = drawn.node(node, x)
        if node.reverse:
            x = drawn.reversed_steps(x, f"{node.name}/forwards", after)
    data = build(drawn.model(x), b"TFL3")
    with new_file(path, force) as partial:
        partial.write_bytes(data)


class ModelBuilder:
    """The tensors and operators of a TFLite model that is being built."""

    def __init__(self, batch: int, time: int) -> None:
        """Starts with an empty TFLite model, whose tensors are for sequences [batch, time, ...]."""
        self.batch, self.time = batch, time
        self.tensors: list[Fields] = []
        self.buffers: list[Fields] = [{}]  # the first is for all tensors without numbers
        self.codes: list[int] = []
        self.operators: list[Fields] = []

    def tensor(
        self, name: str, shape: tuple[int, ...], array: Array | None = None, state: bool = False
    ) -> int:
        """Adds a tensor to the TFLite model; returns its index. The second of three axes is time, whose
        length is open.

        name, shape: those of the tensor. array: its numbers, if it is a constant. state: True for a state
        that the runtime keeps between steps.
        """
        fields: dict[int, Any] = {0: np.array(shape, "<i4"), 2: Number("I", 0), 3: name}
        if array is not None:
            fields[2] = Number("I", len(self.buffers))
            fields[1] = Number("b", INT32 if array.dtype.kind == "i" else FLOAT32)
            self.buffers.append({0: array.ravel().view("u1")})
        if state:
            fields[5] = Number("?", True)
        if len(shape) == 3:  # the length in time is open
            fields[7] = np.array((shape[0], -1, shape[2]), "<i4")
        self.tensors.append(fields)
        return len(self.tensors) - 1

    def operator(self, code: int, inputs: list[int], outputs: list[int], kind: int, options: Fields) -> int:
        """Adds an operator to the TFLite model; returns the index of its first output.

        code: the operator's number. inputs, outputs: the indices of tensors.
        kind, options: the schema's number of the options' type, and the options by field number.
        """
        if code not in self.codes:
            self.codes.append(code)
        operator: dict[int, Any] = {
            0: Number("I", self.codes.index(code)),
            1: np.array(inputs, "<i4"),
            2: np.array(outputs, "<i4"),
            3: Number("B", kind),
            4: options,
        }
        self.operators.append(operator)
        return outputs[0]

    def reversed_steps(self, x: int, name: str, shape: tuple[int, ...]) -> int:
        """Adds an operator that reverses tensor `x` in time; returns its output's index."""
        axis = self.tensor(f"{name}/axis", (1,), np.array([1], "<i4"))
        return self.operator(REVERSE, [x, axis], [self.tensor(name, shape)], OPTIONS_TYPES[REVERSE], {})

    def node(self, node: TfliteNode, x: int) -> int:
        """Adds a recurrent operator on tensor `x` to the TFLite model, with its weights, states and options.
        Returns the index of its output tensor, in which both directions are concatenated.
        """
        widths = outputs_of(node)
        names = (node.name, f"{node.name}/backward")[: len(widths)]
        sequences = (self.batch, self.time)
        outputs = [self.tensor(name, (*sequences, w)) for name, w in zip(names, widths, strict=True)]
        kind = WRITTEN[node.op]
        inputs: list[int] = []
        for name, axes in kind.inputs.items():
            array = node.arrays.get(name)
            if array is not None:
                inputs.append(self.tensor(f"{node.name}/{name}", array.shape, np.asarray(array, "<f4")))
            elif not axes and name.endswith("_state"):
                shape = (self.batch, state_size(node, name))
                inputs.append(self.tensor(f"{node.name}/{name}", shape, state=True))
            else:
                inputs.append(x if name == "input" else -1)
        inputs += [-1] * (kind.least - len(inputs))
        fields = {
            field: Number(letter, ACTIVATIONS.index(value) if isinstance(value, str) else value)
            for field, (name, letter, _) in enumerate(kind.options)
            for value in (node.options[name],)
        }
        self.operator(CODES[node.op], inputs, outputs, kind.options_type, fields)
        if len(outputs) == 1:
            return outputs[0]
        joined = self.tensor(f"{node.name}/joined", (*sequences, sum(widths)))
        along: Fields = {0: Number("i", 2)}
        return self.operator(CONCATENATION, outputs, [joined], OPTIONS_TYPES[CONCATENATION], along)

    def model(self, output: int) -> Fields:
        """Returns the whole TFLite model as the fields of its outermost table. output: the index of its
        output tensor; its input is tensor 0.
        """
        codes: list[Fields] = [
            {0: Number("b", code), 2: Number("i", VERSIONS.get(code, 1)), 3: Number("i", code)}
            for code in self.codes
        ]
        graph: Fields = {
            0: self.tensors,
            1: np.array([0], "<i4"),
            2: np.array([output], "<i4"),
            3: self.operators,
            4: "main",
        }
        return {0: Number("I", 3), 1: codes, 2: [graph], 3: "written by stepnet", 4: self.buffers}


def state_size(node: TfliteNode, name: str) -> int:
    """Returns the number of features of a state of a TFLite operator: the number of cells, or of projected
    outputs.
    name: the name of the state, such as "fw_output_state".
    """
    way = name[:3] if name[:3] in ("fw_", "bw_") else ""
    projection = node.arrays.get(way + "projection_weights")
    if projection is not None and name == way + "output_state":
        return projection.shape[0]
    return node.arrays[way + ("bias" if way + "bias" in node.arrays else "forget_gate_bias")].shape[0]


def outputs_of(node: TfliteNode) -> list[int]:
    """Returns the number of output features of a TFLite operator, one number for each direction."""
    inputs = WRITTEN[node.op].inputs
    return [state_size(node, name) for name in inputs if name.endswith(("output_state", "hidden_state"))]


def inputs_of(node: TfliteNode) -> int:
    """Returns the number of input features of a TFLite operator, by the shape of its input weights."""
    inputs = WRITTEN[node.op].inputs
    weights = [name for name, axes in inputs.items() if axes[1:] == ("input",) and name in node.arrays]
    return node.arrays[weights[0]].shape[1]


def checked(node: TfliteNode) -> TfliteNode:
    """Returns a TFLite operator with all its options, for writing. Missing options get the schema's defaults,
    but TANH for the activation; options in `ALWAYS` always get the value there. Raises `InputError` if it
    does not run over sequences, is not float32, or does not fit together.
    """
    kind = WRITTEN.get(node.op)
    wrong = [name for name, array in node.arrays.items() if array.dtype != np.float32]
    options: dict[str, Any] = {}
    if kind is None or "SEQUENCE" not in kind.name:
        reason = f"only {', '.join(name for name in WRITTEN if 'SEQUENCE' in name)} can"
    elif wrong:
        reason = f"its {wrong[0]} holds {node.arrays[wrong[0]].dtype}, and not float32; cast it"
    else:
        defaults = {name: default for name, _, default in kind.options} | {ACTIVATION: "TANH"}
        options = defaults | dict(node.options)
        options |= {name: value for name, value in ALWAYS.items() if name in defaults}
        reason = misfit(kind, node.arrays) or misfit_of_options(options, defaults)
    if reason is not None:
        raise InputError(f"operator {node.name!r} ({node.op}) cannot be written: {reason}")
    return replace(node, options=options)


def misfit_of_options(options: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """Returns why a TFLite operator's options cannot be written, or None. known: the schema's options."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        return f"it has an option {unknown[0]!r}, and the schema has {', '.join(known)}"
    if options[ACTIVATION] not in ACTIVATIONS:
        return f"its activation is {options[ACTIVATION]!r}, and not one of {', '.join(ACTIVATIONS)}"
    if options.get("diagonal_recurrent_tensors"):
        return "its recurrent weights are diagonals, for which stepnet has no layout"
    return None


def feature_counts(nodes: Sequence[TfliteNode]) -> list[int]:
    """Returns the number of input features of the first of some TFLite operators that run one after another,
    then the number of output features of each.

    Raises `InputError` if an operator does not take the outputs of the one before it, for an empty list, an
    empty name, or two equal names.
    """
    names = [node.name for node in nodes]
    if not nodes or len(set(names)) < len(names) or "" in names:
        raise InputError(f"the operators to write have the names {names}; at least one, and each its own")
    counts = [inputs_of(nodes[0])]
    for node in nodes:
        takes = inputs_of(node)
        if takes != counts[-1]:
            raise InputError(f"operator {node.name!r} takes {takes} numbers, and {counts[-1]} come to it")
        counts.append(sum(outputs_of(node)))
    return counts
