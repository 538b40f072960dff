"""ONNX's operators over channels and all steps of each sequence: norms, pooling and Einsum."""

from typing import Any

import numpy as np

from stepnet.importers import pointwise, reductions
from stepnet.importers.einsum import einsum
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import multiplied
from stepnet.onnx.call import OnnxCall


def group_norm(call: OnnxCall) -> Placed:
    """Computes the result of a GroupNormalization node, whose scale and shift have a number for each group
    before opset 21, and for each channel since.
    """
    return channels_normalised(call, int(call.attributes.get("num_groups", 0)))


def instance_norm(call: OnnxCall) -> Placed:
    """Computes the result of an InstanceNormalization node: each channel is a group of its own."""
    return channels_normalised(call, call.x.sizes[1])


def channels_normalised(call: OnnxCall, groups: int) -> Placed:
    """Normalises groups of channels over the steps, then scales and shifts them by operands."""
    x, epsilon = call.x, float(call.attributes.get("epsilon", 1e-5))
    made, ones = reductions.group_norm(x, groups, epsilon, call.padded), (1,) * (len(x.axes) - 2)
    for operator, index in (("multiply", 1), ("add", 2)):
        array = call.operand(index).array
        each = np.repeat(array, x.sizes[1] // array.size) if array.size == groups else array
        made = pointwise.elementwise(operator, made, constant(each.reshape(-1, *ones)))
    return made


def average_of_steps(call: OnnxCall) -> Placed:
    """Computes the result of a GlobalAveragePool node: the mean of each channel."""
    return over_places(call, "mean")


def largest_of_steps(call: OnnxCall) -> Placed:
    """Computes the result of a GlobalMaxPool node: the maximum of each channel."""
    return over_places(call, "max")


def over_places(call: OnnxCall, how: str) -> Placed:
    """Reduces all axes behind those of sequences and channels. how: "mean" or "max"."""
    axes = range(2, len(call.x.axes))
    return reductions.reduce(call.x, axes, how, True, call.like, call.padded)


def einsummed(call: OnnxCall) -> Placed:
    """Computes the result of an Einsum node: products of operands, summed over letters of its equation."""
    equation: Any = call.attributes.get("equation", "")
    return einsum(str(equation), call.present, multiplied, call.padded)
