"""Keras' layers that normalise."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions
from stepnet.importers.placed import Placed, constant
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.nodes import rows

Array = np.ndarray


def layer_norm(call: KerasCall) -> Placed:
    """Computes the result of Keras' LayerNormalization over the last axes, with its scale and shift; with the
    setting "rms_scaling", the operand is only divided by its standard deviation and scaled.
    """
    names = ["gamma"] if call.setting("rms_scaling", False) else used_arrays(call)
    first, shape = last_features(call)
    arrays = dict(zip(names, map(constant, call.arrays(dict.fromkeys(names, shape))), strict=True))
    epsilon = float(call.setting("epsilon", 1e-3))
    if call.setting("rms_scaling", False):
        return scaled_by_deviation(call.x, first, epsilon, arrays["gamma"])
    return reductions.layer_norm(call.x, first, epsilon, arrays.get("gamma"), arrays.get("beta"))


def used_arrays(call: KerasCall) -> list[str]:
    """Returns the names of the arrays that scale and shift, of which a layer may have both, one or none."""
    return [name for name, use in (("gamma", "scale"), ("beta", "center")) if call.setting(use, True)]


def scaled_by_deviation(x: Placed, first: int, epsilon: float, scale: Placed) -> Placed:
    """Divides x by its standard deviation over the axes from `first` on, and multiplies it by `scale`, as
    Keras does with `rms_scaling`: the mean is not subtracted. epsilon: a number that is added to the
    variance.
    """
    axes = range(first, len(x.axes))
    mean = reductions.reduce(x, axes, "mean", True)
    square = pointwise.elementwise("square", pointwise.elementwise("subtract", x, mean))
    return divided_by_root(x, reductions.reduce(square, axes, "mean", True), epsilon, scale)


def rms_norm(call: KerasCall) -> Placed:
    """Computes the result of Keras' RMSNormalization over the last axes: the mean is not subtracted."""
    first, shape = last_features(call)
    (scale,) = call.arrays({"scale": shape})
    square = pointwise.elementwise("square", call.x)
    means = reductions.reduce(square, range(first, len(call.x.axes)), "mean", True)
    return divided_by_root(call.x, means, float(call.setting("epsilon", 1e-6)), constant(scale))


def divided_by_root(x: Placed, square: Placed, epsilon: float, scale: Placed) -> Placed:
    """Computes x / sqrt(square + epsilon) * scale. square: the mean square or the variance of x."""
    small = constant(np.asarray(epsilon, pointwise.dtype_of(x)))
    root = pointwise.elementwise("sqrt", pointwise.elementwise("add", square, small))
    return pointwise.elementwise("multiply", pointwise.elementwise("divide", x, root), scale)


def last_features(call: KerasCall) -> tuple[int, tuple[int, ...]]:
    """Returns the first axis that a layer normalises over, and the sizes from there on; raises `ModelError`
    unless its setting "axis" states the last axes, and these are features.
    """
    rank, count = len(call.x.axes), len(rows(call.config.get("axis"))) or 1
    axes = sorted(call.x.axis(axis) for axis in call.wholes("axis", count, -1))
    if axes != [*range(rank - count, rank)]:
        raise ModelError("it normalises over other axes than the last")
    return axes[0], tuple(map(call.width, axes))


def group_norm(call: KerasCall) -> Placed:
    """Computes the result of Keras' GroupNormalization: each group of features is normalised over itself and
    all steps of the sequence. Raises `ModelError` for groups of another axis than the last.
    """
    axis, width = call.axis(), call.width()
    if axis != len(call.x.axes) - 1:
        raise ModelError("it normalises groups of another axis than the last")
    groups = width if call.setting("groups", 32) == -1 else call.setting("groups", 32)
    names = used_arrays(call)
    arrays = dict(zip(names, call.arrays(dict.fromkeys(names, (width,))), strict=True))
    epsilon = float(call.setting("epsilon", 1e-3))
    return reductions.group_norm(call.x, groups, epsilon, arrays.get("gamma"), arrays.get("beta"), axis=axis)


def unit_norm(call: KerasCall) -> Placed:
    """Computes the result of Keras' UnitNormalization: the operand divided by its length along axes."""
    axes = call.wholes("axis", len(rows(call.config.get("axis"))) or 1, -1)
    return of_length_one(call.x, axes, 1e-12)


def of_length_one(x: Placed, axes: Sequence[int], epsilon: float) -> Placed:
    """Divides the vectors along some axes by their Euclidean lengths, or by `epsilon` if shorter."""
    square = reductions.reduce(pointwise.elementwise("square", x), axes, "sum", True)
    most = constant(np.asarray(1 / epsilon, pointwise.dtype_of(x)))
    factor = pointwise.elementwise("minimum", pointwise.elementwise("rsqrt", square), most)
    return pointwise.elementwise("multiply", x, factor)


def batch_norm(call: KerasCall) -> Placed:
    """Computes the result of Keras' BatchNormalization in inference: the moving mean and variance, which are
    stored in the file, replace the mean and variance of the batch.
    """
    names = (*used_arrays(call), "moving_mean", "moving_variance")
    found = call.arrays(dict.fromkeys(names, (call.width(call.axis()),)))
    arrays = dict(zip(names, found, strict=True))
    mean, variance = arrays["moving_mean"], arrays["moving_variance"]
    scale, shift = arrays.get("gamma", np.ones_like(variance)), arrays.get("beta", np.zeros_like(variance))
    epsilon = float(call.setting("epsilon", 1e-3))
    return reductions.batch_norm(call.x, call.axis(), scale, shift, mean, variance, epsilon)


LEAST = 1e-7
"""The least deviation by which Normalization divides: Keras' epsilon."""


def normalization(call: KerasCall) -> Placed:
    """Computes the result of Keras' Normalization over the last axis, by the mean and variance of its
    configuration or of its arrays; with the setting "invert", its inverse. Raises `ModelError` for another
    axis, and for numbers that do not fit the features.
    """
    if call.axis() != len(call.x.axes) - 1:
        raise ModelError("it normalises over another axis than the last")
    stated = [call.config.get(name) for name in ("mean", "variance")]
    if None in stated:
        shape = (call.width(),)
        mean, variance, *_ = replace(call, stored=without_count(call)).arrays(
            {"mean": shape, "variance": shape}
        )
    else:
        mean, variance = (numbers(value) for value in stated)
        for array in (mean, variance):
            if array.size not in (1, call.width()):
                raise ModelError(f"its configuration has {array.size} numbers for {call.width()} features")
    deviation = np.maximum(np.sqrt(variance), np.float32(LEAST))
    if call.setting("invert", False):
        scaled = pointwise.elementwise("multiply", call.x, constant(deviation.ravel()))
        return pointwise.elementwise("add", scaled, constant(mean.ravel()))
    centred = pointwise.elementwise("subtract", call.x, constant(mean.ravel()))
    return pointwise.elementwise("divide", centred, constant(deviation.ravel()))


def without_count(call: KerasCall) -> Mapping[str, Array]:
    """Returns the arrays of a Normalization without its unused count; `ModelError` if there is none."""
    count = "2" if "2" in call.stored else "count"
    if count not in call.stored:
        raise ModelError(f"its arrays are {', '.join(call.stored) or 'none'}, not mean, variance, count")
    return {name: array for name, array in call.stored.items() if name != count}


def numbers(value: Any) -> Array:
    """Returns a configuration's number or list of numbers as an array, or raises `ModelError`."""
    array = np.asarray(value, object).ravel()
    if not all(type(number) in (int, float) for number in array):
        raise ModelError(f"its configuration has {short_repr(value)}, where numbers are expected")
    return array.astype(np.float32)


def rescaling(call: KerasCall) -> Placed:
    """Computes the result of Keras' Rescaling: the operand times a scale, plus an offset."""
    scale, offset = (constant(numbers(call.config.get(name, 0.0))) for name in ("scale", "offset"))
    return pointwise.elementwise("add", pointwise.elementwise("multiply", call.x, scale), offset)
