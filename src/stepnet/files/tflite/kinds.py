"""The recurrent operators of TensorFlow Lite: what their inputs are, and their options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Axes = tuple[str, ...]  # a size has one name in all inputs of an operator; of no weight there are none
Option = tuple[str, str, Any]  # its name, its kind as `struct` has it, its default

ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
KERNELS = ("FULL", "BASIC")


@dataclass(frozen=True)
class TfliteNode:
    """A recurrent operator of a TensorFlow Lite model.

    name: of the tensor that it makes, unique in its model. op: such as UNIDIRECTIONAL_SEQUENCE_LSTM.
    arrays: by the names that the kernels give them, such as input_to_forget_weights [cell, input], those
    that are there; of a bidirectional operator they begin with fw_ and bw_. Without input_to_input_weights
    the input gate is one minus the forget gate. options: by the schema's names, all of them; a clip of 0 is
    none, and the converter from Keras writes a cell_clip of 10. inputs: the tensor that feeds it, and
    behind it those that this is made of by turning it round alone. reverse: whether its input is turned
    round in time, so that it runs backwards. after: the operators whose outputs, side by side, feed it.
    over: where one operator of another kind feeds it, the tensor that this makes.
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
class Kind:
    """An operator: its inputs in their order, the number that the schema gives its options, and these in
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

# Inputs that are there together or not at all, and of the full set those that may be missing.
TOGETHER = (
    ("input_to_input_weights", "recurrent_to_input_weights", "input_gate_bias"),
    ("cell_to_forget_weights", "cell_to_output_weights"),
    tuple(name for name in NORMS if not name.startswith("input")),
)
OPTIONAL = {*sum(TOGETHER, ()), *NORMS, "cell_to_input_weights", "projection_weights", "projection_bias"}


def both(inputs: Mapping[str, Axes], shared: Axes) -> dict[str, Axes]:
    """The inputs of a bidirectional operator, the forward ones first; sizes not shared may differ."""
    return {
        f"{way}_{name}": tuple(axis if axis in shared else f"{way}_{axis}" for axis in axes)
        for way in ("fw", "bw")
        for name, axes in inputs.items()
    }


def states(*names: str) -> dict[str, Axes]:
    """Inputs that are no weights."""
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
    16: Kind("LSTM", FULL, 14, ONE_STEP),
    24: Kind("RNN", {**states("input"), **RNN, **states("hidden_state")}, 7, (ACTIVATION, ASYMMETRIC)),
    35: Kind(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        {**states("input"), **RNN, **states("hidden_state")},
        31,
        (TIME, ACTIVATION, ASYMMETRIC),
    ),
    44: Kind(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        FULL,
        71,
        (ACTIVATION, *CLIPS, TIME, ASYMMETRIC, ("diagonal_recurrent_tensors", "?", False)),
    ),
    46: Kind(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        {**states("input"), **both({**RNN, **states("hidden_state")}, ("input",)), **states("aux_input")},
        70,
        (TIME, ACTIVATION, MERGE, ASYMMETRIC),
    ),
    52: Kind(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        {
            **states("input"),
            **both(LSTM, ("input", "cell", "output")),  # which its kernel asks for
            **states("fw_output_state", "fw_cell_state", "bw_output_state", "bw_cell_state", "aux_input"),
        },
        69,
        (ACTIVATION, *CLIPS, MERGE, ("time_major", "?", True), ASYMMETRIC),
    ),
}
# The LSTM of five inputs, whose gates lie side by side.
BASIC = Kind(
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


def misfit(kind: Kind, arrays: Mapping[str, Array]) -> str | None:
    """What is wrong with the arrays of an operator, in words; None where all fit together."""
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
            there = [way + name in arrays for name in names]
            if any(there) and not all(there):
                return f"of {', '.join(way + name for name in names)} it has only some"
        cell, output = (sizes.get(axis) for axis in ("cell", "output"))
        if way + "projection_weights" not in arrays and output not in (None, cell):
            return f"it gives {output} numbers out of {cell} cells and has no projection_weights"
    if sizes.get("gates", 0) % 4 or sizes.get("joined", 2) <= sizes.get("gates", 4) // 4:
        return f"its weights are of {arrays['weights'].shape}, and not of (4*cell, input+cell)"
    return None
