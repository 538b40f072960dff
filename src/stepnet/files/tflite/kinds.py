"""The recurrent operators of TensorFlow Lite: their inputs and their options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
# Names of sizes, the same in all inputs of an operator; () for an input that is no weight.
Axes = tuple[str, ...]
Option = tuple[str, str, Any]  # its name, its kind as for `struct`, its default

ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
KERNELS = ("FULL", "BASIC")


@dataclass(frozen=True)
class TfliteNode:
    """A recurrent operator of a TensorFlow Lite model.

    Attributes:
        name: The name of its output tensor, unique in the model.
        op: Its operator, such as UNIDIRECTIONAL_SEQUENCE_LSTM.
        arrays: Its weights, by the names of the kernels, such as input_to_forget_weights [cell, input]; of a
            bidirectional operator with the prefixes fw_ and bw_. Without input_to_input_weights, the input
            gate is one minus the forget gate.
        options: All options by the schema's names. A clip of 0 is none; the converter from Keras writes a
            cell_clip of 10.
        inputs: Its input tensor, and the tensors that this comes from by reversal alone.
        reverse: Whether its input is reversed in time, so that it runs backward.
        after: The recurrent operators whose concatenated outputs are its input.
        over: The output tensor of the operator of another kind that computes its input, if there is one.
    """

    name: str
    op: str
    arrays: Mapping[str, Array]
    options: Mapping[str, Any]
    inputs: tuple[str, ...] = ()
    reverse: bool = False
    after: tuple[str, ...] = ()
    over: str = ""


@dataclass(frozen=True)
class OperatorKind:
    """A kind of operator: its inputs in order, the schema's number of its options' type, and its options in
    order.
    """

    name: str
    inputs: Mapping[str, Axes]
    options_type: int
    options: tuple[Option, ...]


GATES = ("input", "forget", "cell", "output")
LSTM: dict[str, Axes] = {
    **{f"input_to_{gate}_weights": ("cell", "input") for gate in GATES},
    **{f"recurrent_to_{gate}_weights": ("cell", "output") for gate in GATES},
    **{f"cell_to_{gate}_weights": ("cell",) for gate in ("input", "forget", "output")},
    **{f"{gate}_gate_bias": ("cell",) for gate in GATES},
    "projection_weights": ("output", "cell"),
    "projection_bias": ("output",),
}
NORMS: dict[str, Axes] = {f"{gate}_layer_norm_coefficients": ("cell",) for gate in GATES}
RNN: dict[str, Axes] = {
    "input_weights": ("cell", "input"),
    "recurrent_weights": ("cell", "cell"),
    "bias": ("cell",),
}

# Inputs that an operator has all or none of, and all inputs that may be missing.
TOGETHER = (
    ("input_to_input_weights", "recurrent_to_input_weights", "input_gate_bias"),
    ("cell_to_forget_weights", "cell_to_output_weights"),
    tuple(name for name in NORMS if not name.startswith("input")),
)
OPTIONAL = {*sum(TOGETHER, ()), *NORMS, "cell_to_input_weights", "projection_weights", "projection_bias"}


def both(inputs: Mapping[str, Axes], shared: Axes) -> dict[str, Axes]:
    """The inputs of a bidirectional operator, the forward ones first; only shared sizes must be equal."""
    return {
        f"{way}_{name}": tuple(axis if axis in shared else f"{way}_{axis}" for axis in axes)
        for way in ("fw", "bw")
        for name, axes in inputs.items()
    }


def states(*names: str) -> dict[str, Axes]:
    """Inputs that are not weights."""
    return dict.fromkeys(names, ())


ACTIVATION = ("fused_activation_function", "b", 0)
CLIPS = (("cell_clip", "f", 0.0), ("proj_clip", "f", 0.0))
ASYMMETRIC = ("asymmetric_quantize_inputs", "?", False)
MERGE = ("merge_outputs", "?", False)
TIME = ("time_major", "?", False)
ONE_STEP = (ACTIVATION, *CLIPS, ("kernel_type", "b", 0), ASYMMETRIC)
FULL = {**states("input"), **LSTM, **states("output_state", "cell_state"), **NORMS}

# By the schema's number of the operator.
KINDS = {
    16: OperatorKind("LSTM", FULL, 14, ONE_STEP),
    24: OperatorKind(
        "RNN", {**states("input"), **RNN, **states("hidden_state")}, 7, (ACTIVATION, ASYMMETRIC)
    ),
    35: OperatorKind(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        {**states("input"), **RNN, **states("hidden_state")},
        31,
        (TIME, ACTIVATION, ASYMMETRIC),
    ),
    44: OperatorKind(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        FULL,
        71,
        (ACTIVATION, *CLIPS, TIME, ASYMMETRIC, ("diagonal_recurrent_tensors", "?", False)),
    ),
    46: OperatorKind(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        {**states("input"), **both({**RNN, **states("hidden_state")}, ("input",)), **states("aux_input")},
        70,
        (TIME, ACTIVATION, MERGE, ASYMMETRIC),
    ),
    52: OperatorKind(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        {
            **states("input"),
            **both(LSTM, ("input", "cell", "output")),  # its kernel demands equal sizes
            **states("fw_output_state", "fw_cell_state", "bw_output_state", "bw_cell_state", "aux_input"),
        },
        69,
        (ACTIVATION, *CLIPS, MERGE, ("time_major", "?", True), ASYMMETRIC),
    ),
}
# The LSTM of five inputs, whose gates lie side by side.
BASIC = OperatorKind(
    "LSTM",
    {
        **states("input", "prev_activation"),
        "weights": ("gates", "joined"),
        "biases": ("gates",),
        **states("prev_state"),
    },
    14,
    ONE_STEP,
)


def misfit(kind: OperatorKind, arrays: Mapping[str, Array]) -> str | None:
    """Returns why the arrays of an operator do not fit together, in words; None if they do."""
    sizes: dict[str, int] = {}
    for name, axes in kind.inputs.items():
        if axes and name not in arrays and name.removeprefix("fw_").removeprefix("bw_") not in OPTIONAL:
            return f"it has no {name}"
        array = arrays.get(name)
        if array is None:
            continue
        if array.ndim != len(axes) or not array.size:
            return f"its {name} is of {array.shape}, and not of ({', '.join(axes)})"
        for axis, size in zip(axes, array.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                return f"its {name} is of {array.shape}, and other weights say that {axis} is {sizes[axis]}"
    for way in ("fw_", "bw_") if any(name.startswith("fw_") for name in arrays) else ("",):
        for names in TOGETHER:
            present = [way + name in arrays for name in names]
            if any(present) and not all(present):
                return f"of {', '.join(way + name for name in names)} it has only some"
        cell, output = (sizes.get(axis) for axis in ("cell", "output"))
        if way + "projection_weights" not in arrays and output not in (None, cell):
            return f"it gives {output} numbers out of {cell} cells and has no projection_weights"
    if sizes.get("gates", 0) % 4 or sizes.get("joined", 2) <= sizes.get("gates", 4) // 4:
        return f"its weights are of {arrays['weights'].shape}, and not of (4*cell, input+cell)"
    return None
