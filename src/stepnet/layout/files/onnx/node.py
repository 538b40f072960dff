"""A recurrent node of ONNX: its arrays, its attributes with their defaults, and the checks of both."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.importers.recurrent import weight_shapes, wrong_shape
from stepnet.layout.files.onnx.tensor import Array

LIMIT = (1 << 31) - (1 << 16)  # bytes of a model without the files beside it: protobuf's limit
WEIGHTS = ("W", "R", "B", "P")
STATES = ("initial_h", "initial_c")
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
INPUTS = {
    "RNN": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
}
OUTPUTS = ("Y", "Y_h", "Y_c")
ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
FLAGS = {"RNN": ("layout",), "GRU": ("linear_before_reset", "layout"), "LSTM": ("input_forget", "layout")}

# The functions that take an alpha or a beta, with its default; None if ONNX has no default.
ALPHAS: dict[str, float | None] = {
    "Affine": None,
    "LeakyRelu": 0.01,
    "ThresholdedRelu": 1.0,
    "ScaledTanh": None,
    "HardSigmoid": 0.2,
    "Elu": 1.0,
}
BETAS: dict[str, float | None] = {"Affine": None, "ScaledTanh": None, "HardSigmoid": 0.5}
# The activations, with their names among the elementwise operators of `importers`.
FUNCTIONS = {
    "Affine": "affine",
    "Elu": "elu",
    "HardSigmoid": "hard_sigmoid",
    "LeakyRelu": "leaky_relu",
    "Relu": "relu",
    "ScaledTanh": "scaled_tanh",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Tanh": "tanh",
    "ThresholdedRelu": "thresholded_relu",
}


@dataclass(frozen=True)
class OnnxNode:
    """A recurrent node of an ONNX model.

    Attributes:
        name: Its name, unique in the model.
        op: RNN, GRU or LSTM.
        arrays: Its constant inputs, by ONNX's names: W [directions, gates*hidden, inputs], R [directions,
            gates*hidden, hidden], B [directions, 2*gates*hidden], P [directions, 3*hidden], and initial_h and
            initial_c unless they are zeros. The order of gates is zrh (GRU) and iofc (LSTM; P: iof).
        attributes: All attributes, with ONNX's defaults for those that the model leaves out.
        inputs: X, and the values before it through nodes that only move numbers.
        after: The name of the recurrent node whose Y, with both directions concatenated, is X; "" if X is
            something else, None if that is unknown.
        begins: For those of sequence_lens, initial_h and initial_c that change the outputs, their source:
            "constant", "given" (an input of the model) or "computed" (by other nodes).
        constants: The arrays of the file from which these are computed, by name.
        gives: The outputs that the model uses.
    """

    name: str
    op: str
    arrays: Mapping[str, Array]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: tuple[str, ...] = ()
    after: str | None = ""
    begins: Mapping[str, str] = field(default_factory=dict[str, str])
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array])
    gives: tuple[str, ...] = ("Y",)

    @property
    def fed(self) -> tuple[str, ...]:
        """The inputs among sequence_lens, initial_h and initial_c that are known only in a run."""
        return tuple(slot for slot, kind in self.begins.items() if kind != "constant")

    @property
    def directions(self) -> int:
        """The number of directions of this recurrent ONNX node: 1 or 2."""
        return DIRECTIONS[self.attributes.get("direction", "forward")]


def filled(op: str, stated: Mapping[str, Any], hidden: int) -> dict[str, Any]:
    """Returns all attributes of a recurrent ONNX node: the stated ones, and ONNX's defaults for those that
    are missing.

    The result has `direction`; `hidden_size`; `clip`, None for none; `layout`; for a GRU
    `linear_before_reset`; for an LSTM `input_forget`; `activations`, for each direction in turn;
    `activation_alpha` and `activation_beta`, one per activation, None for a function without it. Numbers are
    the shortest decimals of their float32, such as 0.2.

    op: RNN, GRU or LSTM. stated: the attributes in the model. hidden: the hidden size by the shapes of the
    weights. Raises `ValueError` or `TypeError` if attributes do not fit. Source: ONNX operators, version 22.

    >>> filled("GRU", {"linear_before_reset": 1}, 4)["activations"]
    ('Sigmoid', 'Tanh')
    """
    direction = stated.get("direction", "forward")
    if direction not in DIRECTIONS:
        raise ValueError(f"its direction is {direction!r}, and not one of {', '.join(DIRECTIONS)}")
    size = stated.get("hidden_size", hidden)
    if size != hidden:
        raise ValueError(f"its hidden_size is {size}, and R is of {hidden}")
    count = len(ACTIVATIONS[op]) * DIRECTIONS[direction]
    names = stated.get("activations") or ACTIVATIONS[op] * DIRECTIONS[direction]
    spelling = {name.lower(): name for name in FUNCTIONS}  # runtimes accept upper and lower case
    activations = tuple(spelling.get(str(name).lower(), "") for name in names[:count])
    if len(activations) < count or "" in activations:
        raise ValueError(f"its activations are {', '.join(map(str, names[:6]))}, and not {count} of ONNX's")
    return {
        "direction": direction,
        "hidden_size": size,
        "activations": activations,
        "activation_alpha": per_activation(activations, stated.get("activation_alpha", ()), ALPHAS),
        "activation_beta": per_activation(activations, stated.get("activation_beta", ()), BETAS),
        "clip": None if stated.get("clip") is None else shortest_decimal(stated["clip"]),
        **{name: flag(name, stated.get(name, 0)) for name in FLAGS[op]},
    }


def per_activation(
    activations: Sequence[str], stated: Sequence[float | None], defaults: Mapping[str, float | None]
) -> tuple[float | None, ...]:
    """Returns the parameter alpha (or beta) of each activation: the next number of `stated`, which lists it
    for the activations that have one, else the default in `defaults`; None for an activation without this
    parameter.
    """
    numbers = iter([shortest_decimal(number) for number in stated if number is not None])
    return tuple(next(numbers, defaults[name]) if name in defaults else None for name in activations)


def flag(name: str, value: Any) -> int:
    """Returns the attribute `name` of a node, 0 or 1, as a number; raises `ValueError` for other values."""
    if value not in (0, 1):
        raise ValueError(f"its {name} is {value!r}, and not 0 or 1")
    return int(value)


def shortest_decimal(number: float) -> float:
    """Returns the shortest decimal that rounds to the same float32 as `number`, such as 0.2 for
    0.20000000298: an ONNX model stores float32, and this is the number that its author wrote.
    """
    return float(str(np.float32(number)))


def misfit(op: str, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> str | None:
    """Returns the reason why the arrays of a recurrent ONNX node do not fit its operator `op` (RNN, GRU or
    LSTM) and its attributes; None if they do.
    """
    directions, hidden = DIRECTIONS[attributes["direction"]], attributes["hidden_size"]
    state = (None, directions, hidden) if attributes["layout"] else (directions, None, hidden)
    expected = weight_shapes(op.lower(), directions, hidden)
    expected |= {"initial_h": state, **({"initial_c": state} if op == "LSTM" else {})}
    unknown = [name for name in arrays if name not in expected]
    if unknown:
        return f"it has an array {unknown[0]!r}, and {op} takes {', '.join(expected)}"
    return wrong_shape(arrays, expected, f"{directions} x {hidden} units")
