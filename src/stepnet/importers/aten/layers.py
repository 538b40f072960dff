"""The rule for graph nodes of PyTorch's recurrent operators, such as `gru.input`, which run whole layers."""

from collections.abc import Sequence

import numpy as np

from stepnet.compiler.trace.traced import refuse
from stepnet.importers.aten.cells import CellSizes
from stepnet.importers.aten.module_sequences import run, source_of
from stepnet.importers.aten.replay import ReplayedNode
from stepnet.importers.axes import ONE, is_feature, is_rows
from stepnet.importers.placed import Placed, ReversedSteps, reversed_steps
from stepnet.importers.selecting import concatenate
from stepnet.importers.shaping import as_turned
from stepnet.importers.values import part_of

GATES = {"GRU": 3, "LSTM": 4, "RNN_TANH": 1, "RNN_RELU": 1}
"""The number of gates of each mode of torch.nn.RNNBase."""


def recurrent(name: str, call: ReplayedNode) -> list[Placed]:
    """Evaluates the node of a recurrent operator: returns the outputs and the last states, as PyTorch does.

    name: the name of the operator, such as "gru".
    """
    arguments = call.arguments
    layers, train = arguments["num_layers"], arguments["train"]
    if train and arguments["dropout"] and layers > 1:
        raise refuse("dropout draws random numbers: call .eval() on the module ahead of torch.export.export")
    weights: list[Placed] = arguments["params"]
    states = arguments["hx"] if name == "lstm" else [arguments["hx"]]
    sizes = sizes_of(name.upper(), weights, layers, arguments["has_biases"], arguments["bidirectional"])
    count = layers * sizes.directions
    states = [of_one_sequence(state) for state in states]
    first = (
        []
        if all(map(is_zeros, states))
        else [own for place in range(count) for own in states_at(states, place)]
    )
    data: Placed = as_turned(arguments["input"]) if sizes.bidirectional else arguments["input"]
    backwards = data.value if isinstance(data.value, ReversedSteps) else None
    layer = sizes.of([weight.value for weight in weights], reverse=backwards is not None)
    x = backwards.source if backwards else data
    outputs, *last = run(x, int(arguments["batch_first"]), layer, first, sizes.memories)
    kinds = len(states)
    outputs = reversed_steps(outputs) if backwards else outputs
    return [outputs, *(stacked(last[kind::kinds]) for kind in range(kinds))]


def sizes_of(mode: str, weights: Sequence[Placed], layers: int, bias: bool, bidirectional: bool) -> CellSizes:
    """Reads the sizes of recurrent layers from their weights (in PyTorch's order); mode: the kind of cell,
    such as "LSTM". It raises `StepError` if these are not those of a layer of torch.nn.
    """
    shapes = [weight.features for weight in weights]
    if len(shapes) < 2 or any(len(shape) != 2 for shape in shapes[:2]) or not 0 < layers <= len(shapes):
        raise refuse("its weights are not those of a layer of torch.nn")
    hidden, output = shapes[0][0] // GATES[mode], shapes[1][1]
    projected = output if output != hidden else 0
    dtype = weights[0].value.dtype.name
    sizes = CellSizes(mode, shapes[0][1], hidden, layers, bias, bidirectional, projected, dtype)
    if not hidden > 0 or dtype not in ("float32", "float64") or (projected and mode != "LSTM"):
        raise refuse("its weights are not those of a layer of torch.nn in float32 or float64")
    each = [sizes.single_layer(layer).shapes.values() for layer in range(layers)]
    if shapes != [shape for own in each for shape in [*own] * sizes.directions]:
        raise refuse("its weights are not those of a layer of torch.nn")
    return sizes


def is_zeros(state: Placed) -> bool:
    """Tells whether an initial state is known to be zeros."""
    return only_number(state) == 0


def only_number(state: Placed) -> float | None:
    """Returns the number that an initial state is known to consist of; None for other states."""
    node = state.value.builder.nodes[source_of(state.value)]
    if node.operation != "constant":
        return None
    array: np.ndarray = node.attributes["value"].value
    first = array.flat[0] if array.size else 0
    return float(first) if np.all(array == first) else None


def of_one_sequence(state: Placed) -> Placed:
    """Returns an initial state as one entry for all sequences, if it is one number and they are fixed."""
    if len(state.axes) != 3 or not is_feature(state.axes[1]) or only_number(state) is None:
        return state
    return state.with_value(part_of(state.value, 1, slice(0, 1)), (state.axes[0], ONE, state.axes[2]))


def states_at(states: Sequence[Placed], place: int) -> list[Placed]:
    """Takes the entry `place`, the state of one layer and direction, from each of the states [layers x
    directions, sequences, features]; raises `StepError` for other axes.
    """
    for state in states:
        if len(state.axes) != 3 or (state.axes[1] != ONE and not is_rows(state.axes[1][0])):
            raise refuse(
                "its initial states are not [layers, sequences, features] with as many sequences as its "
                "input: export the model with a dynamic number of sequences"
            )
    return [state.with_value(part_of(state.value, 0, place), state.axes[1:]) for state in states]


def stacked(values: Sequence[Placed]) -> Placed:
    """Stacks states of layers and directions along a new first axis."""
    return concatenate([value.shaped((ONE, *value.axes)) for value in values], 0)
