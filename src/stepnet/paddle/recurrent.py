"""Computes Paddle's recurrent operators: rnn over padded arrays; gru, lstm and variants over ragged ones."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import recurrent
from stepnet.importers.axes import AxesError, axis_names
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.importers.selecting import concatenate, sliced
from stepnet.importers.values import reshaped
from stepnet.model.recurrence import RNN
from stepnet.paddle.call import PaddleCall
from stepnet.paddle.steps import ACTIVATIONS, GruStep, LstmStep

Array = np.ndarray
Results = dict[str, Any]
RAGGED, ROWS = "S_", "N_"


@dataclass(frozen=True)
class Mode:
    """Kind of cell that Paddle's operator rnn has, by its attribute `mode`.

    activations: the activations of the gates, of the candidate, and of an LSTM's output. gates: the letters
    of the gates in the order of the weights.
    """

    cell: str
    activations: tuple[recurrent.Activation, ...]
    gates: str


SIGMOID, TANH, RELU = ("sigmoid", ()), ("tanh", ()), ("relu", ())
MODES: Mapping[str, Mode] = {
    "GRU": Mode("gru", (SIGMOID, TANH), "rzn"),
    "LSTM": Mode("lstm", (SIGMOID, TANH, TANH), "ifgo"),
    "RNN_TANH": Mode("rnn", (TANH,), "n"),
    "RNN_RELU": Mode("rnn", (RELU,), "n"),
}


def rnn(call: PaddleCall) -> Results:
    """Computes the results of Paddle's operator rnn: layers of one or two directions, over arrays [time,
    batch, inputs]. "Out" is the output of the last layer, "State" the final memories of all.
    """
    mode = call.attribute("mode", "")
    if mode not in MODES:
        raise ModelError(f"its mode {mode!r} is none of {', '.join(MODES)}")
    if call.attribute("dropout_prob", 0.0) and not call.attribute("is_test", False):
        raise ModelError("its dropout is on: save the program for inference")
    layers, directions = call.attribute("num_layers", 1), 1 + bool(call.attribute("is_bidirec", False))
    weights = [floats(value.array, "WeightList") for value in call.operands_of("WeightList")]
    count = layers * directions
    if len(weights) != 4 * count:
        raise ModelError(
            f"it has {len(weights)} weights, and {count} layers and directions have {4 * count}: "
            "projections are not supported"
        )
    x, states = call.operand("Input"), call.operands_of("PreState")
    finals: list[list[Placed]] = [[] for _ in recurrent.SLOTS[MODES[mode].cell]]
    for layer in range(layers):
        indices = range(layer * directions, (layer + 1) * directions)
        initial = [sliced(state, 0, slice(indices.start, indices.stop)) for state in states]
        x, *final = rnn_layer(call, x, [weights_of(weights, index, count) for index in indices], initial)
        for memory, value in zip(finals, final, strict=True):
            memory.append(value)
    return {"Out": x, "State": [concatenate(values, 0) for values in finals]}


def weights_of(weights: list[Array], index: int, count: int) -> list[Array]:
    """Returns the two matrices and two biases of one direction of one layer of rnn.

    weights: all arrays, the matrices before the biases. index: the index of the direction, counted through
    all layers. count: the number of directions of all layers.
    """
    biases = 2 * (count + index)
    return [*weights[2 * index : 2 * index + 2], *weights[biases : biases + 2]]


def rnn_layer(call: PaddleCall, x: Placed, cells: list[list[Array]], initial: list[Placed]) -> list[Placed]:
    """Runs one layer of rnn; returns its output, followed by its final memories.

    call: the operation, with its mode. x: the input. cells: the weights of each direction, W, R and two
    biases. initial: the initial memories of this layer.
    """
    mode = MODES[call.attribute("mode", "")]
    W, R, *biases = (
        np.stack([reordered(array, mode) for array in arrays]) for arrays in zip(*cells, strict=True)
    )
    arrays, directions, hidden = (
        {"W": W, "R": R, "B": np.concatenate(biases, axis=1)},
        len(cells),
        R.shape[-1],
    )
    expected = recurrent.weight_shapes(mode.cell, directions, hidden)
    if problem := recurrent.wrong_shape(arrays, expected, f"{directions} x {hidden} units"):
        raise ModelError(problem)
    step = recurrent.PlacedCellStep(mode.cell, mode.activations, reset_after=mode.cell == "gru")
    layer = recurrent.PlacedLayer(arrays, (step,) * directions, (False, True)[:directions])
    outputs, *memories = recurrent.run_layer(
        layer, x, initial, call.optional("SequenceLength"), padded=call.padded
    )
    concatenated = outputs.lettered(reshaped(outputs.value, (directions * hidden,)), "TN_")
    return [replace(concatenated, fact=outputs.fact), *memories]


def reordered(array: Array, mode: Mode) -> Array:
    """Reorders the gates of a weight [gates * hidden, ...] from Paddle's order to stepnet's, in which
    `PlacedLayer` takes them. mode: the kind of cell, with Paddle's order of its gates.
    """
    gates = [mode.gates.index(gate) for gate in recurrent.GATES[mode.cell]]
    hidden = array.shape[0] // len(gates)
    return array.reshape(len(gates), hidden, *array.shape[1:])[gates].reshape(array.shape)


# ---- over sequences, end to end ----------------------------------------------------------------------------


def ragged(value: Placed) -> Placed:
    """Returns a recurrent operator's input if it is sequences of vectors of different lengths, end to end
    without padding; else raises `AxesError`.
    """
    if value.letters != RAGGED or not isinstance(value.value, Traced):
        raise AxesError(
            f"its input is [{axis_names(value.letters)}], and it runs over [{axis_names(RAGGED)}]"
        )
    return value


def weight(call: PaddleCall, slot: str, index: int = 0) -> Array:
    """Returns the array at index `index` in a slot of weights; `ModelError` if it is missing or quantised."""
    return floats((call.operands_of(slot) or (call.operand(slot),))[index].array, slot)


def floats(array: Array, slot: str) -> Array:
    """Returns the weights of input `slot`; raises `ModelError` unless they are floats."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise ModelError(f"its {slot} is of {array.dtype}: quantised weights are not supported")
    return array


def activation(call: PaddleCall, name: str, default: str) -> str:
    """Returns Paddle's name of an activation, the attribute `name` or `default`; `ModelError` if unknown."""
    named = call.attribute(name, default)
    if named not in ACTIVATIONS:
        raise ModelError(f"its {name} {named!r} is none of {', '.join(ACTIVATIONS)}")
    return named


def bias(value: Placed | None, blocks: tuple[int, ...], hidden: int, dtype: Any) -> Array:
    """Returns a bias as a vector, zeros if it is missing; raises `ModelError` for another size.

    blocks: the sizes that it may have, as multiples of `hidden`; zeros have the first of these. dtype: the
    dtype of the zeros.
    """
    array = np.zeros(blocks[0] * hidden, dtype) if value is None else floats(value.array, "Bias").ravel()
    if array.size not in [count * hidden for count in blocks]:
        sizes = " or ".join(str(count * hidden) for count in blocks)
        raise ModelError(f"its Bias has {array.size} numbers, and should have {sizes}")
    return array


def run(
    call: PaddleCall, step: Any, params: Mapping[str, Any], x: Placed, slots: Mapping[str, str], reverse: bool
) -> Any:
    """Runs a step function over sequences as a recurrence; returns its outputs. Its memories are zeros unless
    the operation has inputs with initial values.

    params: the weights of the step, by name. x: the inputs. slots: for each memory by name, the name of the
    operation's input (slot) with its initial value. reverse: whether it runs from the last step.
    """
    hidden = params["R"].shape[0]
    initial_memories = {name: initial_memory(call, slot, x, hidden) for name, slot in slots.items()}
    initial = initial_memories if any(call.operands_of(slot) for slot in slots.values()) else None
    if list(slots) == ["h"]:
        outputs, _ = RNN(step, params, memory=hidden, reverse=reverse)(
            x.value, initial=initial and initial_memories["h"]
        )
    else:
        outputs, _ = RNN(step, params, memory=dict.fromkeys(slots, hidden), reverse=reverse)(
            x.value, initial=initial
        )
    return outputs


def initial_memory(call: PaddleCall, slot: str, x: Placed, hidden: int) -> Any:
    """Returns the memory before the first step of a gru or lstm; zeros if the operation has no such input.

    slot: the name of the input with the initial value. x: the inputs, whose dtype and sequences the zeros
    have. hidden: the number of units.
    """
    value = call.optional(slot)
    if value is None or value.is_constant:
        array = None if value is None else value.array
        if array is not None and array.size != hidden:
            raise ModelError(f"its {slot} is a constant of {array.shape[0]} sequences")
        return recurrent.rows_of(x.value, None if array is None else array.reshape(hidden), hidden)
    if value.letters != ROWS:
        raise AxesError(f"its {slot} is [{axis_names(value.letters)}], and should be [{axis_names(ROWS)}]")
    return value.value


def gru_over(call: PaddleCall, x: Placed, weight_h: Array, biases: Placed | None, reverse: bool) -> Placed:
    """Runs a GRU over inputs that are projected to its gates already; returns its outputs.

    weight_h: declared as [hidden, 3 hidden]; its memory has an array [hidden, 2 hidden] for the gates u and
    r, then an array [hidden, hidden] for the candidate c. biases: added to the inputs; None for none.
    reverse: whether it runs from the last step.
    """
    hidden = weight_h.shape[0]
    if weight_h.shape != (hidden, 3 * hidden) or x.features != (3 * hidden,):
        raise ModelError(f"its input has features {list(x.features)}, its weight {list(weight_h.shape)}")
    gates, candidate = np.split(weight_h.ravel(), [2 * hidden * hidden])
    params = {
        "R": gates.reshape(hidden, 2 * hidden),
        "R_c": candidate.reshape(hidden, hidden),
        "b": bias(biases, (3,), hidden, weight_h.dtype),
    }
    step = GruStep(
        activation(call, "gate_activation", "sigmoid"),
        activation(call, "activation", "tanh"),
        bool(call.attribute("origin_mode", False)),
    )
    return x.lettered(run(call, step, params, x, {"h": "H0"}, reverse), RAGGED)


def gru(call: PaddleCall) -> Results:
    """Computes the result of Paddle's gru: a GRU over inputs that are projected to its gates already."""
    x, reverse = ragged(call.operand("Input")), bool(call.attribute("is_reverse", False))
    return {"Hidden": gru_over(call, x, weight(call, "Weight"), call.optional("Bias"), reverse)}


def projected(call: PaddleCall, x: Placed, index: int = 0) -> Placed:
    """Projects the inputs x to the gates, by the weight with index `index` in the slot WeightX."""
    return matmul(x, constant(weight(call, "WeightX", index)), call.padded)


def fusion_gru(call: PaddleCall) -> Results:
    """Computes Paddle's fusion_gru: projects inputs to gates, and runs a GRU on sequences without padding."""
    x, reverse = ragged(call.operand()), bool(call.attribute("is_reverse", False))
    weight_h = weight(call, "WeightH")
    return {"Hidden": gru_over(call, projected(call, x), weight_h, call.optional("Bias"), reverse)}


def multi_gru(call: PaddleCall) -> Results:
    """Computes the result of Paddle's operator multi_gru: bidirectional layers of GRUs over projected inputs;
    the outputs of both directions are concatenated, as the next layer's input.
    """
    x, layers = ragged(call.operand()), call.attribute("layers", 1)
    biases = call.operands_of("Bias")
    counts = {slot: len(call.operands_of(slot)) for slot in ("WeightX", "WeightH")} | (
        {"Bias": len(biases)} if biases else {}
    )
    if any(count != 2 * layers for count in counts.values()):
        raise ModelError(f"it has {layers} layers of two directions, and {counts}")
    for layer in range(layers):
        directions_of_layer = [
            gru_over(
                call,
                projected(call, x, index),
                weight(call, "WeightH", index),
                biases[index] if biases else None,
                bool(index % 2),
            )
            for index in (2 * layer, 2 * layer + 1)
        ]
        x = concatenate(directions_of_layer, -1)
    return {"Hidden": x}


def lstm_over(call: PaddleCall, x: Placed, weight_h: Array) -> Results:
    """Runs an LSTM over inputs that are projected to its gates already; returns h and c of each step under
    the names of the operator's outputs.

    weight_h: [hidden, 4 hidden], the gates c|i|f|o. The bias has 4 blocks of size hidden, and 3 more for
    peepholes, which are read only if the operation uses them.
    """
    hidden = weight_h.shape[0]
    if weight_h.shape != (hidden, 4 * hidden) or x.features != (4 * hidden,):
        raise ModelError(f"its input has features {list(x.features)}, its weight {list(weight_h.shape)}")
    peepholes = bool(call.attribute("use_peepholes", True))
    biases = bias(call.optional("Bias"), (7,) if peepholes else (4, 7), hidden, weight_h.dtype)
    params: dict[str, Any] = {"R": weight_h, "b": biases[: 4 * hidden]}
    if peepholes:
        params["p"] = tuple(biases[4 * hidden :].reshape(3, hidden))
    step = LstmStep(
        activation(call, "gate_activation", "sigmoid"),
        activation(call, "candidate_activation", "tanh"),
        activation(call, "cell_activation", "tanh"),
    )
    reverse = bool(call.attribute("is_reverse", False))
    outputs = run(call, step, params, x, {"h": "H0", "c": "C0"}, reverse)
    return {"Hidden": x.lettered(outputs["h"], RAGGED), "Cell": x.lettered(outputs["c"], RAGGED)}


SEQUENCE_OPERATORS: Mapping[str, Callable[[PaddleCall], Results]] = {
    "fusion_gru": fusion_gru,
    "fusion_lstm": lambda call: lstm_over(
        call, projected(call, ragged(call.operand())), weight(call, "WeightH")
    ),
    "gru": gru,
    "lstm": lambda call: lstm_over(call, ragged(call.operand("Input")), weight(call, "Weight")),
    "multi_gru": multi_gru,
    "rnn": rnn,
}
"""The rule of each operator."""
