"""Rules for ATen operations that normalise, gate or scale features.

These are layer, batch and group norms, gated linear units and rectifiers with slopes.

In all of these but the layer norm the channels are the second axis, as in [sequences, channels, steps].
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import refuse
from stepnet.importers import reductions, selecting
from stepnet.importers.aten import rules
from stepnet.importers.aten.replay import ReplayedNode
from stepnet.importers.aten.rows import aligned
from stepnet.importers.axes import ONE, axis_error, features_of, is_feature, symbols_in
from stepnet.importers.placed import Placed

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


def feature_of(x: Placed, dim: int) -> int:
    """Returns the index `dim` of an axis of features of x, counted from the first axis; raises `ModelError`
    for an axis of sequences or steps, whose sizes vary.
    """
    dim = x.axis(dim)
    if not is_feature(x.axes[dim]):
        raise axis_error(max(symbols_in((x.axes[dim],))), x.axes)
    return dim


def along_channels(call: ReplayedNode, x: Placed, parameter: Placed | None) -> Any:
    """Reshapes a parameter with a number per channel of x to broadcast with x; None for none."""
    if parameter is None:
        return None
    feature_of(x, 1)
    return aligned(call, parameter.shaped((*parameter.axes, *[ONE] * (len(x.axes) - 2))), x.axes)


def layer_norm(
    x: Any, shape: Sequence[int], scale: Any = None, shift: Any = None, eps: float = 1e-5, *_: Any, **__: Any
) -> Any:
    """Computes ATen's `layer_norm`: x with mean 0 and variance 1 over its last axes, scaled and shifted."""
    return rules.layer_norm(x, shape, scale, shift, eps)[0]


def over_features(call: ReplayedNode) -> None:
    """Checks a layer norm node of a PyTorch graph: raises `StepError` if it normalises over sequences or
    steps; returns None otherwise, so that `layer_norm` evaluates it.
    """
    x, shape = call.operands[0], call.arguments["normalized_shape"]
    if symbols_in(x.axes[len(x.axes) - len(shape) :]):
        raise refuse("it normalises over sequences or steps: only features can be normalised")


def batch_norm(call: ReplayedNode) -> Placed:
    """Evaluates a batch norm node of a PyTorch graph with the mean and the deviation that the module keeps:
    (x - mean) / deviation, scaled and shifted. Raises `StepError` for training.
    """
    if call.arguments.get("training", False):
        raise refuse("it takes means over rows: call .eval() on the module, or use a LayerNorm")
    x = call.arguments["input"]
    names = ("running_mean", "running_var", "weight", "bias")
    mean, variance, scale, shift = (along_channels(call, x, call.arguments.get(name)) for name in names)
    inverse = 1 / np.sqrt(variance + call.arguments.get("eps", 1e-5))
    value = (x.value - mean) * (inverse if scale is None else inverse * scale)
    return x.with_value(value if shift is None else value + shift)


def group_norm(call: ReplayedNode) -> Placed:
    """Evaluates a `group_norm` node: each group of channels gets mean 0 and variance 1 over its channels and
    the steps of the sequence.
    """
    x = call.arguments["input"]
    made = reductions.group_norm(x, call.arguments["num_groups"], call.arguments.get("eps", 1e-5))
    scale, shift = (along_channels(call, x, call.arguments.get(name)) for name in ("weight", "bias"))
    value = made.value if scale is None else made.value * scale
    return made.with_value(value if shift is None else value + shift)


def instance_norm(call: ReplayedNode) -> Placed:
    """Evaluates an `instance_norm` node: each channel of a sequence gets mean 0 and variance 1 over its
    steps, or, without `use_input_stats`, the mean and the variance that the module keeps are used.
    """
    arguments = call.arguments
    if not arguments["use_input_stats"]:
        return batch_norm(call)
    if arguments.get("running_mean") is not None:
        raise refuse("it changes its running statistics: call .eval() on the module")
    return group_norm(replace(call, arguments={**arguments, "num_groups": feature_count(arguments["input"])}))


def feature_count(x: Placed) -> int:
    """Returns the number of channels of a value, which are its second axis."""
    (count,) = features_of(x.axes[feature_of(x, 1) : 2])
    return count


def gated(call: ReplayedNode) -> Placed:
    """Evaluates a `glu` node of PyTorch: the first half of a feature axis times the sigmoid of the second."""
    x = call.operands[0]
    dim = feature_of(x, call.arguments.get("dim", -1))
    (size,) = features_of(x.axes[dim : dim + 1])
    if size % 2:
        raise refuse(f"a gated linear unit halves an axis of {size} features")
    value, gate = selecting.split(x, dim, [size // 2, size // 2])
    return value.with_value(value.value * functions.sigmoid(gate.value))


def sloped(call: ReplayedNode) -> Placed:
    """Evaluates a `prelu` node of a PyTorch graph: x where it is positive, else x times the slope, of each
    channel or of all.
    """
    x, slope = call.arguments["self"], call.arguments["weight"]
    if slope.features == (1,):
        factor = aligned(call, slope.shaped(()), x.axes)
    else:
        factor = along_channels(call, x, slope)
    return x.with_value(numpy.where(x.value > 0, x.value, x.value * factor))
