"""ONNX's operators over features, or over the steps of each sequence: sums, softmax, normalisations.

A reduction over steps is one of `sn.reduce`, because traced values have no axis of steps.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.graph.operators.call import Call, Rule
from stepnet.graph.operators.facts import Behind
from stepnet.graph.operators.padding import behind, check_idle
from stepnet.graph.operators.placed import (
    AxesError,
    Placed,
    applied,
    as_dtype,
    constant,
    filled,
    repeated_at,
    reshaped,
)
from stepnet.graph.operators.sizes import FEATURE, SEQUENCES, STEPS, TOKENS
from stepnet.rnn.counting import length_of, running_total
from stepnet.rnn.nested import reduce as over_steps
from stepnet.rnn.nested import softmax_over_steps
from stepnet.trace import functions
from stepnet.trace.traced import Traced

Array = np.ndarray


def softmax(call: Call) -> Placed:
    """The result of Softmax, over a feature or over the steps of each sequence."""
    axis = softmax_axis(call)
    if call.x.axes[axis] == STEPS:
        check_idle(call, call.x, "max")
        result = call.x.with_value(softmax_over_steps(call.x.value))
        return replace(result, fact=Behind(np.zeros((), result.value.dtype))) if call.padded else result
    return over_one_feature(call, functions.softmax)


def softmax_axis(call: Call) -> int:
    """The first axis of a softmax. Before opset 13 it is over this and all following axes, which must then be
    features.
    """
    axis = call.x.axis(int(call.attributes.get("axis", -1 if call.opset >= 13 else 1)))
    if call.opset < 13 and axis != len(call.x.axes) - 1 and call.x.axes[axis:].strip(FEATURE):
        raise ModelError(f"a softmax of opset {call.opset} over several axes is not supported")
    return axis


def over_one_feature(call: Call, function: Callable[..., Any]) -> Placed:
    """A softmax over a feature; before opset 13 over that and all following features together."""
    x, place = call.x, call.x.feature(softmax_axis(call))
    if call.opset >= 13:
        return x.with_value(function(x.value, axis=place))
    joined = reshaped(x.value, (*x.features[:place], prod(x.features[place:])))
    return x.with_value(reshaped(function(joined, axis=-1), x.features))


def log_softmax(call: Call) -> Placed:
    """The result of LogSoftmax, over a feature."""

    def function(x: Any, axis: int) -> Any:
        shifted = x - np.max(x, axis=axis, keepdims=True)
        return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))

    return over_one_feature(call, function)


def reduced_over_steps(call: Call, value: Any, how: str) -> Any:
    """A reduction over the steps of each sequence."""
    if not isinstance(value, Traced):
        if call.like is None:
            raise ModelError("it reduces a constant over steps, in a body, which has no axis of steps")
        value = repeated_at(value, call.like)
    return -over_steps(-value, "max") if how == "min" else over_steps(value, how)


def with_others(call: Call, value: Traced, others: Array) -> Any:
    """A value per sequence, replaced by `others` for empty sequences."""
    has_steps = reshaped(length_of(call.like) > 0, (1,) * len(value.type.shape))
    return np.where(has_steps, value, others)


REDUCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "ReduceSum": ("sum", np.sum),
    "ReduceMean": ("mean", np.mean),
    "ReduceMax": ("max", np.max),
    "ReduceMin": ("min", np.min),
}


def reduction(call: Call) -> Placed:
    """The result of an operator of `REDUCTIONS`, over features or over the steps of each sequence."""
    x, (how, function) = call.x, REDUCTIONS[call.op]
    stated = call.whole(1, "axes")
    if stated is None and call.attributes.get("noop_with_empty_axes"):
        return x
    axes = sorted(x.axis(axis) for axis in (range(len(x.axes)) if stated is None else stated))
    kept = bool(call.attributes.get("keepdims", 1))
    if {SEQUENCES, TOKENS} & {x.axes[axis] for axis in axes}:
        raise ModelError("it is over all sequences: each sequence is computed independently of the others")
    value, places = x.value, tuple(x.feature(axis) for axis in axes if x.axes[axis] == FEATURE)
    if places:
        value = function(value, axis=places, keepdims=kept)
    reduced = FEATURE if kept else ""
    letters = [reduced if axis in axes else letter for axis, letter in enumerate(x.axes)]
    if STEPS in [x.axes[axis] for axis in axes]:
        check_idle(call, x, how)
        value = reduced_over_steps(call, value, how)
        if how != "sum" and (others := behind(x)) is not None and call.padded:
            others = function(others, axis=places, keepdims=kept) if places else others
            value = with_others(call, value, others)
        if kept:
            value = with_one(value, "".join(letters), x.axes.index(STEPS))
    return x.with_value(as_dtype(value, np.dtype(x.value.dtype)), "".join(letters))


def with_one(value: Any, axes: str, axis: int) -> Any:
    """A value with a new feature of size one.

    axes: the axes of the result, in which the feature is at `axis`.
    """
    place, features = axes[:axis].count(FEATURE), list(value.type.shape)
    return reshaped(value, (*features[:place], 1, *features[place:]))


def cumsum(call: Call) -> Placed:
    """The result of CumSum, over a feature or over the steps of each sequence."""
    x, (axis,) = call.x, call.whole(1, "axis") or [0]
    reverse, exclusive = (bool(call.attributes.get(name)) for name in ("reverse", "exclusive"))
    axis = x.axis(axis)
    if x.axes[axis] == STEPS:
        if reverse:
            check_idle(call, x, "sum")
        value = repeated_at(x.value, call.like) if x.is_constant and call.like is not None else x.value
        return x.with_value(running_total(value, reverse, exclusive))
    place = x.feature(axis) + len(x.features)
    lead = () if x.is_constant else (slice(None),)
    reversal = (*lead, *(slice(None),) * place, slice(None, None, -1))
    value = x.value[reversal] if reverse else x.value
    sums = as_dtype(np.cumsum(value, axis=place - len(x.features)), x.value.dtype)
    if exclusive and x.features[place]:
        shifted = sums[(*lead, *(slice(None),) * place, slice(0, -1))]
        zeros = filled(x, x.feature(axis), 1, np.zeros((), sums.dtype))
        sums = np.concatenate([zeros, shifted], axis=x.feature(axis))
    return x.with_value(sums[reversal] if reverse else sums)


def argmax(call: Call) -> Placed:
    """The result of ArgMax, over a feature."""
    if call.attributes.get("select_last_index"):
        raise ModelError("of equal numbers it takes the last (select_last_index=1), which is not supported")
    x, axis = call.x, call.x.axis(int(call.attributes.get("axis", 0)))
    indices = np.argmax(x.value, axis=x.feature(axis))
    if not call.attributes.get("keepdims", 1):
        return x.with_value(indices, x.axes[:axis] + x.axes[axis + 1 :])
    features = [1 if at - len(x.features) == x.feature(axis) else size for at, size in enumerate(x.features)]
    return x.with_value(reshaped(indices, features))


def layer_normalization(call: Call) -> Placed:
    """The result of LayerNormalization, over the last features."""
    x, axis = call.x, call.x.axis(int(call.attributes.get("axis", -1)))
    places = tuple(range(x.feature(axis), 0))
    if STEPS in x.axes[axis:] or SEQUENCES in x.axes[axis:]:
        raise AxesError("it normalises over sequences or steps: only features can be normalised")
    centred = x.value - np.mean(x.value, axis=places, keepdims=True)
    variance = np.mean(centred * centred, axis=places, keepdims=True)
    normalised = x.with_value(centred / np.sqrt(variance + float(call.attributes.get("epsilon", 1e-5))))
    scaled = applied(np.multiply, normalised, call.operand(1))
    shift = call.optional(2)
    return scaled if shift is None else applied(np.add, scaled, shift)


def batch_normalization(call: Call) -> Placed:
    """The result of BatchNormalization at inference: each channel is scaled and shifted."""
    if call.attributes.get("training_mode"):
        raise ModelError(
            "it trains (training_mode=1), with the statistics of the batch: export the model for inference"
        )
    scale, shift, mean, variance = (call.operand(place).array for place in range(1, 5))
    factor = scale / np.sqrt(variance + np.asarray(call.attributes.get("epsilon", 1e-5), variance.dtype))
    x = call.x
    x.feature(1)
    ones = (1,) * (len(x.axes) - 2)
    scaled = applied(np.multiply, x, constant(factor.reshape(-1, *ones)))
    return applied(np.add, scaled, constant((shift - mean * factor).reshape(-1, *ones)))


OVER_AXES: dict[str, Rule] = {
    "ArgMax": argmax,
    "CumSum": cumsum,
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "Softmax": softmax,
    **dict.fromkeys(REDUCTIONS, reduction),
}
"""The rule of each operator."""
