"""ONNX's operators RNN, GRU and LSTM as recurrences.

    X [time, batch, inputs]   -->   Y [time, directions, batch, hidden],  Y_h, Y_c [directions, batch, hidden]

The steps are the equations of ONNX's operators, version 22, with every activation, `clip`, `input_forget`,
peepholes, and a reset before or after the product.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.errors import ModelError
from stepnet.files.onnx.node import ALPHAS, BETAS, DIRECTIONS, GATES, filled, misfit
from stepnet.importers.activations import (
    affine,
    elu,
    hard_sigmoid,
    leaky_relu,
    scaled_tanh,
    thresholded_relu,
)
from stepnet.importers.axes import AxesError, words
from stepnet.importers.call import Call
from stepnet.importers.facts import LENGTH, Behind
from stepnet.importers.placed import LENGTHS, Placed, Unusable
from stepnet.importers.shaping import expand
from stepnet.importers.sizes import SEQUENCES, STEPS, Size
from stepnet.importers.values import reshaped
from stepnet.model.recurrence import RNN

Array = np.ndarray
Function = Callable[..., Any]
ACTIVATIONS: Mapping[str, Function] = {
    "Affine": affine,
    "Elu": elu,
    "HardSigmoid": hard_sigmoid,
    "LeakyRelu": leaky_relu,
    "Relu": functions.relu,
    "ScaledTanh": scaled_tanh,
    "Sigmoid": functions.sigmoid,
    "Softplus": functions.softplus,
    "Softsign": functions.softsign,
    "Tanh": np.tanh,
    "ThresholdedRelu": thresholded_relu,
}
PADDED = (
    "it runs into the padding, in a model where other recurrences have sequence_lens: stepnet has no padding"
)
SLOTS = {"RNN": ("h",), "GRU": ("h",), "LSTM": ("h", "c")}


@dataclass(frozen=True)
class OnnxStep:
    """The step of an operator in one direction. Its memory is {"h": ...}, of an LSTM {"h": ..., "c": ...}.

    op: the operator.
    activations: the name of each activation, with its alpha and beta; None for those that it does not have.
    bound: the attribute `clip`; None for no clipping.
    reset_after: whether a GRU resets after the product (`linear_before_reset`).
    coupled: whether an LSTM's forget gate is 1 - i (`input_forget`).
    """

    op: str
    activations: tuple[tuple[str, float | None, float | None], ...]
    bound: float | None = None
    reset_after: bool = False
    coupled: bool = False

    @property
    def __name__(self) -> str:
        return self.op.lower()

    def activated(self, place: int, x: Any) -> Any:
        """The activation at a position, of the clipped argument."""
        return self.function(place, x if self.bound is None else np.clip(x, -self.bound, self.bound))

    def function(self, place: int, x: Any) -> Any:
        """The activation at a position, with its alpha and beta."""
        name, *numbers = self.activations[place]
        return ACTIVATIONS[name](x, *(number for number in numbers if number is not None))

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """The output and the memory after a step."""
        steps = {"RNN": self.rnn, "GRU": self.gru, "LSTM": self.lstm}
        after = steps[self.op](x @ params["W"] + params["b"], memory, params)
        return after["h"], after

    def rnn(self, x: Any, memory: Any, params: Any) -> Any:
        """H' = f(X W + H R + b)."""
        return {"h": self.activated(0, x + memory["h"] @ params["R"] + params["d"])}

    def gru(self, x: Any, memory: Any, params: Any) -> Any:
        """H' = (1 - z) n + z H, with the gates in the order z r n."""
        h, R, d, size = memory["h"], params["R"], params["d"], memory["h"].shape[-1]
        gates, last = slice(0, 2 * size), slice(2 * size, None)
        from_h = h @ R[:, gates] + d[gates]
        z = self.activated(0, x[:, :size] + from_h[:, :size])
        r = self.activated(0, x[:, size : 2 * size] + from_h[:, size:])
        inside = r * (h @ R[:, last] + d[last]) if self.reset_after else (r * h) @ R[:, last] + d[last]
        n = self.activated(1, x[:, last] + inside)
        return {"h": (1 - z) * n + z * h}

    def lstm(self, x: Any, memory: Any, params: Any) -> Any:
        """C' = f C + i g, H' = o h(C'), with the gates in the order i o f g."""
        h, c = memory["h"], memory["c"]
        i, o, f, g = np.split(x + h @ params["R"] + params["d"], 4, axis=-1)
        p_i, p_o, p_f = params.get("p", (0, 0, 0))
        i = self.activated(0, i + p_i * c)
        f = 1 - i if self.coupled else self.activated(0, f + p_f * c)
        c = f * c + i * self.activated(1, g)
        return {"h": self.activated(0, o + p_o * c) * self.function(2, c), "c": c}


def recurrence(call: Call) -> list[Placed]:
    """The outputs Y, Y_h and Y_c of an RNN, GRU or LSTM."""
    arrays = {
        name: array
        for place, name in ((1, "W"), (2, "R"), (3, "B"), (7, "P"))
        if (array := weights(call, place)) is not None
    }
    try:
        attributes = filled(call.op, call.attributes, arrays["R"].shape[-1])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(str(error)) from None
    if problem := misfit(call.op, arrays, attributes):
        raise ModelError(problem)
    batch_first = bool(attributes["layout"])
    x = as_sequences(call.x, batch_first)
    has_lengths = reads_lengths(call, x)
    initial = [beginning(call, place, batch_first) for place in (5, 6)[: len(SLOTS[call.op])]]
    directions = [
        direction(call, x.value, arrays, attributes, number, [state(value, number) for value in initial])
        for number in range(DIRECTIONS[attributes["direction"]])
    ]
    results = outputs(call, x, directions, batch_first)
    if not call.padded:
        return results
    if has_lengths:  # sequence_lens makes the outputs at padding steps zero
        return [replace(results[0], fact=Behind(np.zeros((), x.value.dtype))), *results[1:]]
    return [results[0], *padded_ends(results[1:], attributes["direction"] != "forward")]


def weights(call: Call, place: int) -> Array | None:
    """The array of a constant operand; None if it is left out."""
    value = call.optional(place)
    return None if value is None else value.array


def as_sequences(x: Placed, batch_first: bool) -> Placed:
    """The input, checked to have the axes steps, sequences and features; raises `AxesError` if it has not."""
    letters = "NT_" if batch_first else "TN_"
    if x.letters != letters:
        raise AxesError(f"its input is [{words(x.letters)}], and it runs over [{words(letters)}]")
    if x.is_constant:
        raise ModelError("its input is a constant")
    return x


def reads_lengths(call: Call, x: Placed) -> bool:
    """Whether sequence_lens is the model's input of lengths. It may also be left out, or be the number of all
    steps; raises `ModelError` for anything else.
    """
    lengths = call.optional(4)
    if lengths is None or lengths.value is LENGTHS or lengths.fact == LENGTH:
        return lengths is not None
    all_steps = Size((STEPS,), stated=dict(x.stated).get(STEPS))
    if not lengths.is_constant or any(all_steps != size for size in np.ravel(lengths.value)):
        raise ModelError("its sequence_lens is neither an input of the model nor all steps")
    return False


def padded_ends(states: Sequence[Placed], reverse: bool) -> list[Placed]:
    """The placeholders for the final states of a recurrence that runs into the padding, which no rule may
    read. Raises `ModelError` for a reverse recurrence, which would begin in the padding.
    """
    if reverse:
        raise ModelError(PADDED)
    return [state.with_value(Unusable(PADDED)) for state in states]


def beginning(call: Call, place: int, batch_first: bool) -> Placed | None:
    """An initial state, with features [directions, hidden] per sequence; None for zeros."""
    value = call.optional(place)
    if value is None or (value.is_constant and not np.any(value.value)):
        return None
    letters = "N__" if batch_first else "_N_"
    if value.letters == "___":
        value = expand(value, [Size((SEQUENCES,)) if letter == "N" else 1 for letter in letters])
    if value.letters != letters:
        raise AxesError(f"an initial state is [{words(value.letters)}], and should be [{words(letters)}]")
    return value


def state(value: Placed | None, number: int) -> Any:
    """The part of an initial state for one direction; None for zeros."""
    if value is None:
        return None
    return value.value[:, number] if isinstance(value.value, Traced) else value.value[number]


def direction(
    call: Call,
    x: Traced,
    arrays: Mapping[str, Array],
    attributes: Mapping[str, Any],
    number: int,
    initial: list[Any],
) -> tuple[Any, dict[str, Any]]:
    """The outputs and final memories of one direction.

    number: the number of the direction.
    initial: the initial state of each memory; None for zeros.
    """
    hidden, way = attributes["hidden_size"], attributes["direction"]
    count = len(attributes["activations"]) // DIRECTIONS[way]
    chosen = slice(number * count, (number + 1) * count)
    names = "activations", "activation_alpha", "activation_beta"
    check_numbers(attributes)
    step = OnnxStep(
        call.op,
        tuple(zip(*(attributes[name][chosen] for name in names), strict=True)),
        attributes["clip"],
        bool(attributes.get("linear_before_reset")),
        bool(attributes.get("input_forget")),
    )
    wide = GATES[call.op] * hidden
    biases = arrays["B"][number] if "B" in arrays else np.zeros(2 * wide, arrays["W"].dtype)
    params = {"W": arrays["W"][number].T, "R": arrays["R"][number].T, "b": biases[:wide], "d": biases[wide:]}
    if "P" in arrays:
        params["p"] = tuple(arrays["P"][number].reshape(3, hidden))
    slots = SLOTS[call.op]
    rnn = RNN(step, params, memory=dict.fromkeys(slots, hidden), reverse=way == "reverse" or number == 1)
    beginnings = {
        slot: value if isinstance(value, Traced) else rows_of(x, value, hidden)
        for slot, value in zip(slots, initial, strict=True)
    }
    return rnn(x, initial=beginnings if any(value is not None for value in initial) else None)


def check_numbers(attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` if an activation lacks an alpha or beta for which ONNX has no default."""
    for key, defaults in (("activation_alpha", ALPHAS), ("activation_beta", BETAS)):
        for name, number in zip(attributes["activations"], attributes[key], strict=True):
            if name in defaults and number is None:
                raise ModelError(f"its activation {name} needs a number in {key}")


def rows_of(x: Traced, value: Array | None, hidden: int) -> Traced:
    """A constant, or zeros, expanded to a value per sequence."""
    array = np.zeros(hidden, x.dtype) if value is None else value
    literal = Traced(x.builder, x.builder.constant(np.asarray(array, x.dtype)))
    return apply("expand", literal, extent=("rows",))


def outputs(
    call: Call, x: Placed, directions: list[tuple[Any, dict[str, Any]]], batch_first: bool
) -> list[Placed]:
    """The outputs of the operator, with the directions joined.

    directions: for each direction, its outputs and final memories.
    """

    def joined(values: list[Any], letters: str) -> Placed:
        wide = [reshaped(value, (1, *value.type.shape)) for value in values]
        return x.lettered(wide[0] if len(wide) == 1 else np.concatenate(wide, axis=-2), letters)

    step_axes, state_axes = ("NT__", "N__") if batch_first else ("T_N_", "_N_")
    results: list[Placed] = [joined([output for output, _ in directions], step_axes)]
    results += [joined([memory[slot] for _, memory in directions], state_axes) for slot in SLOTS[call.op]]
    return results


RECURRENT = dict.fromkeys(GATES, recurrence)
"""The rule of each operator."""
