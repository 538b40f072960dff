"""Computes convolutions and pooling over several axes: the steps of sequences, and features.

    a spectrogram [sequences, steps, 80, 1]     steps and frequencies
    pictures [sequences steps, 28, 28, 3]       features alone, such as of one picture at each step

Each axis has windows of its own. The entries of a window become features, so that a convolution is one
product of matrices at each place.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from stepnet.compiler.net.windows import Window
from stepnet.compiler.trace.traced import apply
from stepnet.errors import ModelError
from stepnet.importers import pointwise, selecting, shaping
from stepnet.importers.axes import features_of, is_feature, is_time, text_of
from stepnet.importers.convolving import traced_steps, zero_steps
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.importers.values import check_room, reshaped
from stepnet.model.convolution import windowed_max, windowed_mean

Array = np.ndarray


def windowed(x: Placed, axis: int, window: Window) -> Placed:
    """Returns the windows (the entries that a kernel reads at once) along an axis, of steps or of features.
    The axis keeps its place and has an entry for each window; a new last axis has the entries of each window.
    Entries outside of the operand are zeros.
    """
    if is_feature(x.axes[axis]):
        indices, zeros = entries_of(x.sizes[axis], window)
        x = selecting.pad(x, [(axis, *zeros)], 0)
        made = selecting.take_constant(x, axis, indices)
        return moved(made, axis + 1, len(made.axes) - 1)
    value = apply("windows", traced_steps(x, axis), **window.attributes)
    axes = ((window.size,), *x.axes[:axis], (value.type.extent[-1],), *x.axes[axis + 1 :])
    return moved(x.with_value(value, axes), 0, len(axes) - 1)


def entries_of(size: int, window: Window) -> tuple[Array, tuple[int, int]]:
    """Returns the indices [windows, entries] that windows along an axis of features of this size read, and
    the numbers of zeros to put ahead of the axis and behind it; the indices count from the first of these
    zeros.
    """
    count = int(window.lengths.of(np.array([size]))[0])
    before = int(window.befores(np.array([size]))[0])
    indices = np.arange(count)[:, None] * window.stride + np.arange(window.size) * window.dilation
    if not count:
        raise ModelError(f"its kernel reaches over {window.reach + 1} of {size} features")
    return indices, (before, max(0, int(indices.max()) + 1 - size - before))


def moved(x: Placed, axis: int, place: int) -> Placed:
    """Returns a value with its axis `axis` moved to the position `place`; the others keep their order."""
    order = [each for each in range(len(x.axes)) if each != axis]
    order.insert(place, axis)
    return shaping.transpose(x, order)


def convolve_grid(
    x: Placed, kernel: Array, bias: Array | None, windows: Sequence[Window], groups: int = 1
) -> Placed:
    """Convolves a value [sequences, places ..., features] over all its places, the axes between the first and
    the last.

    kernel, bias: arrays [sizes ..., features / groups, results] and [results]. windows: the windows of each
    axis of places. groups: the number of groups of features.
    """
    check_places(x, len(windows))
    for axis, window in enumerate(windows, 1):
        x = windowed(x, axis, window)
        x = moved(x, len(x.axes) - 1, len(windows) + axis)
    places, features = len(windows) + 1, x.sizes[-1]
    size = prod(window.size for window in windows)
    check_room([*features_of(x.axes[1:])])
    own, results = features // groups, kernel.shape[-1]
    x = x.shaped((*x.axes[:places], (size,), (groups,), (own,)))
    parts = kernel.reshape(size, own, groups, results // groups)
    if own == 1:
        made = by_feature(x, parts[:, 0])
    else:
        taken = [
            shaping.squeeze(selecting.sliced(x, places + 1, slice(at, at + 1)), [places + 1])
            for at in range(groups)
        ]
        rows = [one.shaped((*one.axes[:places], (size * own,))) for one in taken]
        matrices = [constant(parts[:, :, at].reshape(size * own, -1)) for at in range(groups)]
        products = [matmul(row, matrix, padded=False) for row, matrix in zip(rows, matrices, strict=True)]
        made = products[0] if groups == 1 else selecting.concatenate(products, -1)
    return made if bias is None else pointwise.elementwise("add", made, constant(bias))


def by_feature(x: Placed, kernel: Array) -> Placed:
    """Convolves each feature by itself: multiplies windows [..., size, features, 1] by a kernel [size,
    features, own], and sums over the window; returns [..., features x own].
    """
    _, features, own = kernel.shape
    products = pointwise.elementwise("multiply", x, constant(kernel))
    value = np.sum(products.value, axis=-3)
    return products.with_value(
        reshaped(value, (*products.features[:-3], features * own)), (*products.axes[:-3], (features * own,))
    )


def pad_axis(x: Placed, axis: int, before: int, after: int, number: float = 0) -> Placed:
    """Adds entries of one number at both ends of an axis, or leaves entries out there for negative counts.
    Raises `ModelError` for other numbers than zeros around steps.
    """
    if is_feature(x.axes[axis]):
        return selecting.pad(x, [(axis, before, after)], number)
    if number:
        raise ModelError(f"it puts {number:g} around steps: only zeros are supported there")
    x = selecting.cut(x, axis, max(0, -before), max(0, -after)) if min(before, after) < 0 else x
    return zero_steps(x, axis, max(0, before), max(0, after)) if max(before, after) > 0 else x


def pool_grid(x: Placed, windows: Sequence[Window], how: str) -> Placed:
    """Pools a value [sequences, places..., features] over windows of all axes of places, which are steps or
    features. Entries outside of the operand do not count.

    windows: the windows of each axis of places. how: "max" or "mean".
    """
    check_places(x, len(windows))
    for axis, window in enumerate(windows, 1):
        x = pool_axis(x, axis, window, how)
    return x


def pool_axis(x: Placed, axis: int, window: Window, how: str, counts_zeros: bool = False) -> Placed:
    """Pools a value over windows along one axis, of steps or of a feature.

    how: "max" or "mean". counts_zeros: whether entries outside of the operand count in a mean, as zeros.
    """
    if is_time(x.axes[axis]):
        value = traced_steps(x, axis)
        value = windowed_max(value, window) if how == "max" else windowed_mean(value, window, counts_zeros)
        return x.with_value(value, (*x.axes[:axis], (value.type.extent[-1],), *x.axes[axis + 1 :]))
    size = x.sizes[axis]
    indices, zeros = entries_of(size, window)
    least = np.finfo(pointwise.dtype_of(x)).min if how == "max" else 0
    made = selecting.take_constant(selecting.pad(x, [(axis, *zeros)], least), axis, indices)
    feature = made.feature(axis + 1)
    if how == "max":
        value = np.max(made.value, axis=feature)
    else:
        inside = counts_zeros | ((indices >= zeros[0]) & (indices < zeros[0] + size))
        counts = inside.sum(1).astype(pointwise.dtype_of(x))
        value = np.sum(made.value, axis=feature)
        value = value / counts.reshape(-1, *[1] * (len(features_of(x.axes[axis + 1 :]))))
    return made.with_value(value, (*x.axes[:axis], (len(indices),), *x.axes[axis + 1 :]))


def check_places(x: Placed, places: int) -> None:
    """Raises `ModelError` unless a value is [sequences, places ..., features] with `places` axes, each of
    steps or a feature, between the first and the last.
    """
    rank = places + 2
    if len(x.axes) != rank or not is_feature(x.axes[-1]) or is_feature(x.axes[0]) or is_time(x.axes[0]):
        raise ModelError(
            f"it goes over {places} axes of a tensor [sequences, ..., features], not of {text_of(x.axes)}"
        )


def convolve_channels(
    x: Placed, weight: Array, bias: Array | None, windows: Sequence[Window], groups: int = 1
) -> Placed:
    """Convolves a value [sequences, channels, places ...] over all its places (the axes behind the channels).

    weight, bias: arrays [results, channels / groups, sizes ...] and [results]. windows: which entries the
    kernel reads along each axis of places. groups: the number of groups of channels.
    """
    kernel = np.moveaxis(weight, (1, 0), (-2, -1))
    return moved(
        convolve_grid(moved(x, 1, len(x.axes) - 1), kernel, bias, windows, groups), len(x.axes) - 1, 1
    )


def pool_channels(x: Placed, windows: Sequence[Window], how: str) -> Placed:
    """Pools a value [sequences, channels, places ...] over windows of all its places; see `pool_grid`."""
    return moved(pool_grid(moved(x, 1, len(x.axes) - 1), windows, how), len(x.axes) - 1, 1)
