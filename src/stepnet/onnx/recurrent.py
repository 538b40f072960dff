"""Reads ONNX's operators RNN, GRU and LSTM, version 22, as recurrent layers of `importers`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.errors import ModelError, StepnetError
from stepnet.importers.placed import Placed
from stepnet.importers.recurrent import SLOTS, Activation, PlacedCellStep, PlacedLayer, run_layer
from stepnet.layout.files.onnx.node import (
    ALPHAS,
    BETAS,
    DIRECTIONS,
    FUNCTIONS,
    INPUTS,
    STATES,
    WEIGHTS,
    filled,
    misfit,
)
from stepnet.onnx.call import OnnxCall


def recurrence(call: OnnxCall) -> list[Placed]:
    """Computes the results of an RNN, GRU or LSTM node of ONNX: [Y, Y_h, Y_c], the outputs of each step and
    the final memories h and, of an LSTM, c.
    """
    operands = dict(zip(INPUTS[call.op], call.operands, strict=False))
    arrays = {name: value.array for name in WEIGHTS if (value := operands.get(name)) is not None}
    attributes = filled_attributes(call.op, arrays, call.attributes)
    cell, batch_first = call.op.lower(), bool(attributes["layout"])
    initial = [operands.get(name) for name in STATES[: len(SLOTS[cell])]]
    layer = PlacedLayer(arrays, *steps_of(cell, attributes))
    return run_layer(layer, call.x, initial, operands.get("sequence_lens"), batch_first, call.padded)


def filled_attributes(op: str, arrays: Mapping[str, np.ndarray], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all attributes of a recurrent node, with ONNX's defaults; raises `ModelError` for arrays that
    do not fit.

    op: RNN, GRU or LSTM. arrays: its weights by ONNX's names. stated: the attributes in the model.
    """
    try:
        attributes = filled(op, stated, arrays["R"].shape[-1])
    except StepnetError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(str(error)) from None
    if problem := misfit(op, arrays, attributes):
        raise ModelError(problem)
    return attributes


def steps_of(cell: str, attributes: Mapping[str, Any]) -> tuple[tuple[PlacedCellStep, ...], tuple[bool, ...]]:
    """Makes the step function of each direction of a recurrent node.

    cell: "rnn", "gru" or "lstm". attributes: the attributes of the node, with defaults; activations are
    listed direction by direction. Returns (steps, whether each direction runs backwards).
    """
    activations, directions = activations_of(attributes), DIRECTIONS[attributes["direction"]]
    count = len(activations) // directions
    steps = tuple(
        PlacedCellStep(
            cell,
            activations[count * number : count * (number + 1)],
            attributes["clip"],
            bool(attributes.get("linear_before_reset")),
            bool(attributes.get("input_forget")),
        )
        for number in range(directions)
    )
    return steps, (attributes["direction"] == "reverse", True)[:directions]


def activations_of(attributes: Mapping[str, Any]) -> tuple[Activation, ...]:
    """Returns the activations of all directions of a recurrent node, each as (name of the function, its
    numbers alpha and beta as far as it has them).

    attributes: the attributes of the node. Raises `ModelError` for an activation without an alpha or beta for
    which ONNX has no default.
    """
    names = attributes["activations"]
    numbers = {key: attributes[key] for key in ("activation_alpha", "activation_beta")}
    for (key, stated), defaults in zip(numbers.items(), (ALPHAS, BETAS), strict=True):
        for name, number in zip(names, stated, strict=True):
            if name in defaults and number is None:
                raise ModelError(f"its activation {name} needs a number in {key}")
    pairs = zip(*numbers.values(), strict=True)
    return tuple(
        (FUNCTIONS[name], tuple(number for number in pair if number is not None))
        for name, pair in zip(names, pairs, strict=True)
    )
