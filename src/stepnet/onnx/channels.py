"""ONNX's operators over channels and all steps of each sequence: norms, pooling and Einsum."""

from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.importers import reductions
from stepnet.importers.einsum import einsum
from stepnet.importers.placed import Placed
from stepnet.importers.products import multiplied
from stepnet.onnx.call import OnnxCall


def channels_normalised(call: OnnxCall, groups: int) -> Placed:
    """Normalises the channels of a node's first operand to mean 0 and variance 1 group by group, over the
    steps of each sequence, then scales and shifts them by its further operands. groups: the number of groups.
    """
    x, epsilon = call.x, float(call.attributes.get("epsilon", 1e-5))
    arrays = (call.operand(index).array for index in (1, 2))
    each = (np.repeat(own, x.sizes[1] // own.size) if own.size == groups else own for own in arrays)
    return reductions.group_norm(x, groups, epsilon, *each, padded=call.padded)


def layer_norm(call: OnnxCall) -> Placed:
    """Computes the result of a LayerNormalization node, over the last features."""
    epsilon = float(call.attributes.get("epsilon", 1e-5))
    return reductions.layer_norm(call.x, call.axis(-1), epsilon, call.operand(1), call.optional(2))


def batch_norm(call: OnnxCall) -> Placed:
    """Computes the result of a BatchNormalization node at inference: each channel is scaled and shifted."""
    if call.flag("training_mode"):
        raise ModelError(
            "it trains (training_mode=1), with the statistics of the batch: export the model for inference"
        )
    scale, shift, mean, variance = (call.operand(index).array for index in range(1, 5))
    epsilon = float(call.attributes.get("epsilon", 1e-5))
    return reductions.batch_norm(call.x, 1, scale, shift, mean, variance, epsilon)


def over_places(call: OnnxCall, how: str) -> Placed:
    """Reduces all axes behind the axes of sequences and channels. how: "mean" or "max"."""
    axes = range(2, len(call.x.axes))
    return reductions.reduce(call.x, axes, how, True, call.like, call.padded)


def einsummed(call: OnnxCall) -> Placed:
    """Computes the result of an Einsum node: products of operands, summed over letters of its equation."""
    equation: Any = call.attributes.get("equation", "")
    return einsum(str(equation), call.present, multiplied, call.padded)
