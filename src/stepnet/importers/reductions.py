"""Computes operators over features, or over the steps of each sequence.

An operator over steps is one over a sequence's own steps, because values of a net have no axis of steps. In a
model with padding, `padded`, it is refused unless the values in padding are known not to change it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.errors import ModelError
from stepnet.importers.axes import (
    BATCH,
    ONE,
    Axes,
    axis_error,
    extent_of,
    feature_error,
    features_of,
    innermost,
    is_feature,
    is_time,
    symbols_in,
    text_of,
)
from stepnet.importers.broadcasting import applied
from stepnet.importers.facts import ArrayInPadding
from stepnet.importers.padding import check_idle, padding_values
from stepnet.importers.placed import Placed, constant
from stepnet.importers.sizes import SEQUENCES
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


def reduce(
    x: Placed, axes: Sequence[int], how: str, keep: bool, like: Traced | None = None, padded: bool = False
) -> Placed:
    """Reduces a value over features, over the steps of each sequence, or over both, in the operand's dtype.
    In a model whose file fixes the number of sequences at one, it may be over the sequences too: each is
    alone.

    axes: the axes that are reduced. how: the name of a reduction, such as "sum". keep: whether features of
    size one take the place of the axes. like: a value per step, at whose steps a constant is repeated.
    padded: whether the model has padding (steps after sequences' ends); its numbers must then leave the
        reduction unchanged, and are the maximum or minimum of empty sequences.
    """
    axes = sorted(x.axis(axis) for axis in axes)
    alone = [axis for axis in axes if x.axes[axis] == BATCH and dict(x.stated).get(SEQUENCES) == 1]
    check_reducible(x, [axis for axis in axes if axis not in alone])
    over_time = [axis for axis in axes if is_over_steps(x, axis)]
    if over_time:
        check_idle(x, how, padded)
    features = tuple(x.feature(axis) for axis in axes if axis not in (*over_time, *alone))
    value = REDUCTIONS[how](x.value, axis=features, keepdims=keep) if features else x.value
    if over_time:
        value = over_steps(at_steps(value, like, x.axes), how)
    result_axes = [
        ONE if axis in axes else kept_axis
        for axis, kept_axis in enumerate(x.axes)
        if keep or axis not in axes
    ]
    value = as_dtype(value, np.dtype(x.value.dtype))
    result = x.with_value(reshaped(value, features_of(tuple(result_axes))), tuple(result_axes))
    padding = padding_values(x) if over_time and padded and how != "sum" else None
    if padding is None:
        return result
    padding = REDUCTIONS[how](padding, axis=features, keepdims=True) if features else padding
    padding = as_dtype(padding.reshape(result.features), result.value.dtype)
    return result.with_value(for_empty(result.value, padding, like))


def variance(x: Placed, axes: Sequence[int], keep: bool) -> Placed:
    """Computes the mean of the squared distances from the mean, over features, steps or both. axes: the axes
    that are reduced. keep: whether features of size one take the place of the axes.
    """
    axes = [x.axis(axis) for axis in axes]
    centred = applied(np.subtract, x, reduce(x, axes, "mean", True))
    return reduce(applied(np.multiply, centred, centred), axes, "mean", keep)


def for_empty(value: Traced, others: Array, like: Any) -> Any:
    """Returns `value`, the result of a reduction over the steps of each sequence, with the numbers `others`
    where a sequence is empty. stepnet gives 0 there; the runtime of the file's format, which also reduces
    padding, gives `others`. like: a value per step of the same sequences.
    """
    has_steps = reshaped(length_of(like) > 0, (1,) * len(value.type.shape))
    return np.where(has_steps, value, others)


def check_reducible(x: Placed, axes: Sequence[int]) -> None:
    """Raises `ModelError` for a reduction over sequences, or steps joined with others. axes: of x."""
    for axis in axes:
        symbols = symbols_in((x.axes[axis],))
        if symbols and not is_over_steps(x, axis):
            raise axis_error(min(symbols), x.axes)


def is_over_steps(x: Placed, axis: int) -> bool:
    """Tells whether a reduction is over steps, or over the keys of each query at pairs of steps."""
    return not is_feature(x.axes[axis]) and x.axes[axis] == innermost(x.axes)


def at_steps(value: Any, like: Traced | None, axes: Axes) -> Any:
    """Repeats a constant at the steps of another value, for a reduction over steps; a traced value stays as
    it is.

    axes: the axes of the constant, which name its steps.
    like: a value per step; None in the body of a Scan or Loop, for which `ModelError` is raised.
    """
    if isinstance(value, Traced):
        return value
    if like is None:
        raise ModelError("it reduces a constant over steps, in a body, which has no axis of steps")
    return repeated_at(value, like, extent_of(axes))


def over_steps(value: Any, how: str) -> Any:
    """Reduces a value over the steps of each sequence; 0 for an empty one. how: the name of a reduction, such
    as "max". Minima are computed as maxima of `mirrored` values, maxima of booleans as maxima of integers.
    """
    if how == "min":
        least = mirrored(over_steps(mirrored(value), "max"))
        zero = np.zeros((), value.dtype)
        return least if kind_of_dtype(value.dtype) == "float" else for_empty(least, zero, value)
    if value.dtype == np.bool_ and how == "max":
        return reduced_steps(value.astype(np.int64), "max") > 0
    return reduced_steps(value, how)


def mirrored(value: Any) -> Any:
    """Maps a value to one of its dtype in reverse order, so that its minimum becomes a maximum; mapped twice,
    it is the value itself. The negative of the least integer is no integer, so integers map to their
    complement.
    """
    kind = kind_of_dtype(value.dtype)
    return np.logical_not(value) if kind == "bool" else -1 - value if kind == "integer" else -value


def softmax(x: Placed, axis: int, padded: bool = False) -> Placed:
    """Computes the softmax along an axis: a feature, or the steps of each sequence.

    padded: whether the model has padding; values there must then be low enough to change nothing, and the
    result there is known to be 0.
    """
    check_reducible(x, [axis])
    if is_over_steps(x, axis):
        check_idle(x, "max", padded)
        result = x.with_value(softmax_over_steps(x.value))
        return replace(result, fact=ArrayInPadding(np.zeros((), result.value.dtype))) if padded else result
    return x.with_value(functions.softmax(x.value, axis=x.feature(axis)))


def log_softmax(x: Placed, axis: int, padded: bool = False) -> Placed:
    """Computes the logarithm of the softmax along an axis: a feature, or the steps of each sequence.

    padded: whether the model has padding; values there must then be low enough to change nothing.
    """
    check_reducible(x, [axis])
    if is_over_steps(x, axis):
        check_idle(x, "max", padded)
        shifted = x.value - expand(reduced_steps(x.value, "max"), x.value)
        return x.with_value(shifted - expand(np.log(reduced_steps(np.exp(shifted), "sum")), x.value))
    feature = x.feature(axis)
    shifted = x.value - np.max(x.value, axis=feature, keepdims=True)
    return x.with_value(shifted - np.log(np.sum(np.exp(shifted), axis=feature, keepdims=True)))


def cumulate(
    x: Placed,
    axis: int,
    reverse: bool = False,
    exclusive: bool = False,
    like: Traced | None = None,
    padded: bool = False,
) -> Placed:
    """Computes the sum of each number and all before it, over a feature or over the steps of each sequence.

    reverse: whether it sums from the end.
    exclusive: whether each sum leaves out its own number.
    like: a value per step, at whose steps a constant is repeated.
    padded: whether the model has padding; its numbers must then be 0 in a reverse sum.
    """
    check_reducible(x, [axis])
    if is_time(x.axes[axis]):
        check_idle(x, "sum", padded and reverse)
        x = (
            x
            if like is None or not x.is_constant
            else x.with_value(repeated_at(x.value, like, extent_of(x.axes)))
        )
        return x.with_value(running_total(x.value, reverse, exclusive))
    last, feature = x.feature(axis), x.feature(axis) + len(x.features)
    backward = slice(None, None, -1)
    value = part_of(x.value, feature, backward) if reverse else x.value
    sums = as_dtype(np.cumsum(value, axis=last), x.value.dtype)
    if exclusive and x.features[feature]:
        zeros = filled(x, last, 1, np.zeros((), sums.dtype))
        sums = np.concatenate([zeros, part_of(sums, feature, slice(0, -1))], axis=last)
    return x.with_value(part_of(sums, feature, backward) if reverse else sums)


def filled(x: Placed, feature: int, count: int, number: Any) -> Any:
    """Makes a value filled with one number, to be concatenated with `x`: with the sizes of the features of
    `x`, except for one, and repeated at each step or sequence of `x`.

    feature: the index of the feature with another size. count: that size; a negative one counts as 0.
    """
    features = list(x.features)
    features[feature] = max(count, 0)
    array = np.full(features, number)
    return repeated_at(array, x.value) if isinstance(x.value, Traced) else array


def argmax(x: Placed, axis: int, keep: bool) -> Placed:
    """Computes the index of the largest number along a feature. keep: keep the axis with size one."""
    indices = np.argmax(x.value, axis=x.feature(axis))
    axes = (*x.axes[:axis], *([ONE] * keep), *x.axes[axis + 1 :])
    return x.with_value(reshaped(indices, features_of(axes)), axes)


# ---- normalisation -----------------------------------------------------------------------------------------


def layer_norm(
    x: Placed, axis: int, epsilon: float, scale: Placed | None = None, shift: Placed | None = None
) -> Placed:
    """Normalises a value to mean 0 and variance 1 over the features from an axis on, then scales and shifts
    it.

    epsilon: added to the variance. scale, shift: None for none.
    """
    joint = tuple(part for own in x.axes[axis:] for part in own)
    if not is_feature(joint):
        raise feature_error(joint, "it normalises over sequences or steps: only features can be normalised")
    features = tuple(range(x.feature(axis), 0))
    centred = x.value - np.mean(x.value, axis=features, keepdims=True)
    variance = np.mean(centred * centred, axis=features, keepdims=True)
    result = x.with_value(centred / np.sqrt(variance + epsilon))
    result = result if scale is None else applied(np.multiply, result, scale)
    return result if shift is None else applied(np.add, result, shift)


def batch_norm(
    x: Placed, axis: int, scale: Array, shift: Array, mean: Array, variance: Array, epsilon: float
) -> Placed:
    """Normalises the channels of a value by constants, as at inference: (x - mean) / sqrt(variance +
    epsilon), scaled and shifted.

    axis: the axis of the channels. scale, shift, mean, variance: a number for each channel.
    """
    x.feature(axis)
    factor = scale / np.sqrt(variance + np.asarray(epsilon, variance.dtype))
    scaled = applied(np.multiply, x, per_channel(x, factor, axis))
    return applied(np.add, scaled, per_channel(x, shift - mean * factor, axis))


def per_channel(x: Placed, array: Array, axis: int = 1) -> Placed:
    """Returns an array of a number for each channel of x, its axis `axis`, so that it broadcasts."""
    return constant(array.reshape(-1, *[1] * (len(x.axes) - axis - 1)))


def group_norm(
    x: Placed,
    groups: int,
    epsilon: float,
    scale: Array | None = None,
    shift: Array | None = None,
    *,
    axis: int = 1,
    padded: bool = False,
) -> Placed:
    """Normalises a value to mean 0 and variance 1 over the channels of each group and all other axes of one
    sequence (its features and its steps). Then scales and shifts it.

    groups: the number of groups, which divides the number of channels. epsilon: added to the variance. scale,
    shift: a number for each channel; None for none. axis: the axis of the channels. padded: whether the model
    has padding, for which `ModelError` is raised.
    """
    (channels,) = features_of(x.axes[axis : axis + 1]) or (0,)
    if groups < 1 or channels % groups or not is_feature(x.axes[axis]):
        raise ModelError(f"{groups} groups of channels of {text_of(x.axes)} are not of one size")
    before, after = (
        [(part,) for each in further for part in each] for further in (x.axes[1:axis], x.axes[axis + 1 :])
    )
    grouped = x.shaped((x.axes[0], *before, (groups,), (channels // groups,), *after))
    over = [place for place in range(1, len(grouped.axes)) if place != 1 + len(before)]

    def centre(value: Placed) -> Placed:
        """Computes the mean of each group, repeated for each number of the group."""
        return reduce(value, over, "mean", keep=True, padded=padded)

    centred = applied(np.subtract, grouped, centre(grouped))
    variance = centre(applied(np.multiply, centred, centred))
    deviation = variance.with_value(np.sqrt(variance.value + epsilon))
    made = applied(np.divide, centred, deviation).shaped(x.axes)
    made = made if scale is None else applied(np.multiply, made, per_channel(x, scale, axis))
    return made if shift is None else applied(np.add, made, per_channel(x, shift, axis))
