"""Operators over features, or over the steps of each sequence, and the rows of the table.

An operator over steps is one over a sequence's own steps, because values of a net have no axis of steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import Traced
from stepnet.errors import ModelError
from stepnet.importers.axes import ONE, TIME, AxesError, features_of, mixes, symbols_in
from stepnet.importers.call import Call, Rule
from stepnet.importers.facts import Behind
from stepnet.importers.padding import behind, check_idle
from stepnet.importers.placed import Placed, applied, constant
from stepnet.importers.values import Array, as_dtype, part_of, repeated_at, reshaped
from stepnet.model.counting import length_of, running_total
from stepnet.model.nested import expand, softmax_over_steps
from stepnet.model.nested import reduce as reduced_steps

# NumPy's functions return values of a net for such arguments, which its type stubs do not express.
numpy: Any = np
REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": numpy.sum,
    "mean": numpy.mean,
    "max": numpy.max,
    "min": numpy.min,
}


def reduce(x: Placed, axes: Sequence[int], how: str, keep: bool, like: Traced | None = None) -> Placed:
    """A reduction over features, over the steps of each sequence, or over both, in the dtype of the operand.

    how: the name of a reduction.
    keep: whether features of size one take the place of the axes.
    like: a value per step, at whose steps a constant is repeated.
    """
    check_own(x, axes)
    over_time = [axis for axis in axes if x.axes[axis] == TIME]
    places = tuple(x.feature(axis) for axis in axes if axis not in over_time)
    value = REDUCTIONS[how](x.value, axis=places, keepdims=keep) if places else x.value
    if over_time:
        value = over_steps(at_steps(value, like), how)
    left = [ONE if axis in axes else own for axis, own in enumerate(x.axes) if keep or axis not in axes]
    value = as_dtype(value, np.dtype(x.value.dtype))
    return x.with_value(reshaped(value, features_of(tuple(left))), tuple(left))


def check_own(x: Placed, axes: Sequence[int]) -> None:
    """Raises `ModelError` for axes that have the sequences, or the steps joined with others."""
    for axis in axes:
        symbols = symbols_in((x.axes[axis],))
        if symbols and x.axes[axis] != TIME:
            raise mixes(min(symbols), x.axes)


def at_steps(value: Any, like: Traced | None) -> Any:
    """A value per step: a constant is repeated at the steps of another value."""
    if isinstance(value, Traced):
        return value
    if like is None:
        raise ModelError("it reduces a constant over steps, in a body, which has no axis of steps")
    return repeated_at(value, like)


def over_steps(value: Any, how: str) -> Any:
    """A reduction over the steps of each sequence."""
    if how == "min":
        return -reduced_steps(-value, "max")
    if value.dtype == np.bool_ and how == "max":
        return reduced_steps(value.astype(np.int64), "max") > 0
    return reduced_steps(value, how)


def softmax(x: Placed, axis: int) -> Placed:
    """The softmax over a feature, or over the steps of each sequence."""
    check_own(x, [axis])
    if x.axes[axis] == TIME:
        return x.with_value(softmax_over_steps(x.value))
    return x.with_value(functions.softmax(x.value, axis=x.feature(axis)))


def log_softmax(x: Placed, axis: int) -> Placed:
    """The logarithm of the softmax over a feature, or over the steps of each sequence."""
    check_own(x, [axis])
    if x.axes[axis] == TIME:
        away = x.value - expand(reduced_steps(x.value, "max"), x.value)
        return x.with_value(away - expand(np.log(reduced_steps(np.exp(away), "sum")), x.value))
    place = x.feature(axis)
    away = x.value - np.max(x.value, axis=place, keepdims=True)
    return x.with_value(away - np.log(np.sum(np.exp(away), axis=place, keepdims=True)))


def cumulate(x: Placed, axis: int, reverse: bool = False, exclusive: bool = False) -> Placed:
    """The sum of each number and all before it, over a feature or over the steps of each sequence.

    reverse: whether it sums from the end.
    exclusive: whether each sum leaves out its own number.
    """
    check_own(x, [axis])
    if x.axes[axis] == TIME:
        return x.with_value(running_total(x.value, reverse, exclusive))
    last, place = x.feature(axis), x.feature(axis) + len(x.features)
    backward = slice(None, None, -1)
    value = part_of(x.value, place, backward) if reverse else x.value
    sums = as_dtype(np.cumsum(value, axis=last), x.value.dtype)
    if exclusive and x.features[place]:
        zeros = filled(x, last, 1, np.zeros((), sums.dtype))
        sums = np.concatenate([zeros, part_of(sums, place, slice(0, -1))], axis=last)
    return x.with_value(part_of(sums, place, backward) if reverse else sums)


def filled(x: Placed, place: int, count: int, number: Any) -> Any:
    """A value filled with one number, with the features of `x` except that one has size `count`.

    A negative count is taken as 0.
    """
    features = list(x.features)
    features[place] = max(count, 0)
    array = np.full(features, number)
    return repeated_at(array, x.value) if isinstance(x.value, Traced) else array


def argmax(x: Placed, axis: int, keep: bool) -> Placed:
    """The index of the largest number over a feature."""
    indices = np.argmax(x.value, axis=x.feature(axis))
    axes = (*x.axes[:axis], *([ONE] * keep), *x.axes[axis + 1 :])
    return x.with_value(reshaped(indices, features_of(axes)), axes)


# ---- rows --------------------------------------------------------------------------------------------------


def softmax_row(call: Call) -> Placed:
    """The result of Softmax, over a feature or over the steps of each sequence."""
    axis = softmax_axis(call)
    if call.x.axes[axis] != TIME:
        return over_one_feature(call, softmax)
    check_idle(call, call.x, "max")
    result = softmax(call.x, axis)
    return replace(result, fact=Behind(np.zeros((), result.value.dtype))) if call.padded else result


def softmax_axis(call: Call) -> int:
    """The first axis of a softmax. Before opset 13 it is over this and all following axes, which must then be
    features.
    """
    axis = call.x.axis(int(call.attributes.get("axis", -1 if call.opset >= 13 else 1)))
    if call.opset < 13 and axis != len(call.x.axes) - 1 and symbols_in(call.x.axes[axis:]):
        raise ModelError(f"a softmax of opset {call.opset} over several axes is not supported")
    return axis


def over_one_feature(call: Call, function: Callable[[Placed, int], Placed]) -> Placed:
    """A softmax over a feature; before opset 13 over that and all following features together."""
    x, axis = call.x, softmax_axis(call)
    if call.opset >= 13:
        return function(x, axis)
    x.feature(axis)
    together = x.shaped((*x.axes[:axis], (prod(features_of(x.axes[axis:])),)))
    return function(together, axis).shaped(x.axes)


def log_softmax_row(call: Call) -> Placed:
    """The result of LogSoftmax, over a feature or over the steps of each sequence."""
    if call.x.axes[softmax_axis(call)] == TIME:
        check_idle(call, call.x, "max")
    return over_one_feature(call, log_softmax)


def with_others(call: Call, value: Traced, others: Array) -> Any:
    """A value per sequence, replaced by `others` for empty sequences."""
    has_steps = reshaped(length_of(call.like) > 0, (1,) * len(value.type.shape))
    return np.where(has_steps, value, others)


REDUCING = {f"Reduce{how.title()}": how for how in REDUCTIONS}
"""The reduction of each operator."""


def reduction_row(call: Call) -> Placed:
    """The result of an operator of `REDUCING`, over features or over the steps of each sequence."""
    x, how = call.x, REDUCING[call.op]
    stated = call.whole(1, "axes")
    if stated is None and call.attributes.get("noop_with_empty_axes"):
        return x
    axes = sorted(x.axis(axis) for axis in (range(len(x.axes)) if stated is None else stated))
    keep = bool(call.attributes.get("keepdims", 1))
    check_own(x, axes)
    is_over_steps = any(x.axes[axis] == TIME for axis in axes)
    if is_over_steps:
        check_idle(call, x, how)
    result = reduce(x, axes, how, keep, call.like)
    others = behind(x) if is_over_steps and call.padded and how != "sum" else None
    if others is None:
        return result
    places = tuple(x.feature(axis) for axis in axes if x.axes[axis] != TIME)
    others = REDUCTIONS[how](others, axis=places, keepdims=True) if places else others
    others = as_dtype(others.reshape(result.features), result.value.dtype)
    return result.with_value(with_others(call, result.value, others))


def cumsum_row(call: Call) -> Placed:
    """The result of CumSum, over a feature or over the steps of each sequence."""
    x, (axis,) = call.x, call.whole(1, "axis") or [0]
    reverse, exclusive = (bool(call.attributes.get(name)) for name in ("reverse", "exclusive"))
    axis = x.axis(axis)
    if x.axes[axis] == TIME:
        if reverse:
            check_idle(call, x, "sum")
        x = x.with_value(repeated_at(x.value, call.like)) if x.is_constant and call.like is not None else x
    return cumulate(x, axis, reverse, exclusive)


def argmax_row(call: Call) -> Placed:
    """The result of ArgMax, over a feature."""
    if call.attributes.get("select_last_index"):
        raise ModelError("of equal numbers it takes the last (select_last_index=1), which is not supported")
    axis = call.x.axis(int(call.attributes.get("axis", 0)))
    return argmax(call.x, axis, bool(call.attributes.get("keepdims", 1)))


def layer_normalization_row(call: Call) -> Placed:
    """The result of LayerNormalization, over the last features."""
    x, axis = call.x, call.x.axis(int(call.attributes.get("axis", -1)))
    if symbols_in(x.axes[axis:]):
        raise AxesError("it normalises over sequences or steps: only features can be normalised")
    places = tuple(range(x.feature(axis), 0))
    centred = x.value - np.mean(x.value, axis=places, keepdims=True)
    variance = np.mean(centred * centred, axis=places, keepdims=True)
    normalised = x.with_value(centred / np.sqrt(variance + float(call.attributes.get("epsilon", 1e-5))))
    scaled = applied(np.multiply, normalised, call.operand(1))
    shift = call.optional(2)
    return scaled if shift is None else applied(np.add, scaled, shift)


def batch_normalization_row(call: Call) -> Placed:
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
    "ArgMax": argmax_row,
    "BatchNormalization": batch_normalization_row,
    "CumSum": cumsum_row,
    "LayerNormalization": layer_normalization_row,
    "LogSoftmax": log_softmax_row,
    "Softmax": softmax_row,
    **dict.fromkeys(REDUCING, reduction_row),
}
"""The rule of each operator."""
