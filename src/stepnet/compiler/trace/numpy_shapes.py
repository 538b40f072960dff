"""NumPy's functions that rearrange a step's features: shapes, orders of axes, parts and concatenation."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.trace.indexing import feature_axes, feature_axis, listed, without_rows
from stepnet.compiler.trace.traced import (
    ROWS_AXIS,
    Traced,
    apply,
    array_of,
    builder_of,
    filled,
    lifted,
    refuse,
    reshaped,
    transposed,
)
from stepnet.compiler.values.arguments import is_integer, short_repr

MOST_PARTS = 2**12
"""The largest number of parts of np.array_split, most of which may be empty."""


def reshape(x: Traced, shape: Any, order: str = "C") -> Traced:
    """Computes np.reshape in a step, for features; the first size is the rows: x.shape[0], or -1. Raises
    `StepError` for other sizes, and for an order other than "C".
    """
    if order != "C":
        raise refuse("reshape in a step is in C order")
    advice = "reshape keeps the rows first: write x.reshape(x.shape[0], ...) or x.reshape(-1, ...)"
    requested_shape = listed(shape)
    sizes = without_rows(x, requested_shape, advice)
    if not x.is_constant and requested_shape[0] is not ROWS_AXIS and -1 in sizes:
        written = ", ".join(map(str, sizes))
        unknown = f"reshape(-1, {written}) leaves two sizes open, and NumPy takes one"
        raise refuse(f"{unknown}: write x.reshape(x.shape[0], {written})")
    known = math.prod(int(size) for size in sizes if size != -1)
    full = x.type.size
    if (
        sizes.count(-1) > 1
        or (-1 in sizes and (known == 0 or full % known))
        or (-1 not in sizes and known != full)
    ):
        raise refuse(f"{x.type.element} cannot be reshaped to features {tuple(sizes)}")
    return reshaped(x, tuple(full // known if size == -1 else int(size) for size in sizes))


def transpose(x: Traced, axes: Sequence[int] | None = None) -> Traced:
    """Computes np.transpose in a step, for feature axes. Raises `StepError` if the rows would not stay first,
    and unless each axis is given once.
    """
    rank = x.ndim
    requested = list(range(rank - 1, -1, -1)) if axes is None else listed(axes)
    order = [axis % rank for axis in requested if is_integer(axis) and -rank <= axis < rank]
    if len(requested) != rank or sorted(order) != list(range(rank)):
        raise refuse(f"transpose of {rank} axes wants each of them once, not {axes}")
    lead = 0 if x.is_constant else 1
    if lead and order[0] != 0:
        raise refuse("transpose would move the rows; keep axis 0 first")
    return transposed(x, tuple(axis - lead for axis in order[lead:]))


def swapaxes(x: Traced, first: int, second: int) -> Traced:
    """Computes np.swapaxes in a step: exchanges two feature axes."""
    order = list(range(x.ndim))
    a, b = (feature_axis(x, axis, "np.swapaxes") for axis in (first, second))
    order[a], order[b] = order[b], order[a]
    return transpose(x, order)


def moveaxis(x: Traced, source: Any, destination: Any) -> Traced:
    """Computes np.moveaxis in a step: moves feature axes to other positions. Raises `StepError` for the axis
    of the rows, and unless each axis has one position.
    """
    origins, targets = (
        [feature_axis(x, axis, "np.moveaxis") + x.ndim for axis in listed(axes)]
        for axes in (source, destination)
    )
    if not len(origins) == len(targets) == len(set(origins)) == len(set(targets)):
        raise refuse(f"np.moveaxis wants one place for each axis, each once, not {source} to {destination}")
    order = [axis for axis in range(x.ndim) if axis not in origins]
    for target, origin in sorted(zip(targets, origins, strict=True)):
        order.insert(target, origin)
    return transpose(x, order)


def flip(x: Traced, axis: Any = None) -> Traced:
    """Computes np.flip in a step: reverses the order along feature axes."""
    return x[indices_of(x, dict.fromkeys(feature_axes(x, axis, "np.flip"), slice(None, None, -1)))]


def roll(x: Traced, shift: Any, axis: Any = None) -> Traced:
    """Computes np.roll in a step: shifts features along axes; those beyond the end come back at the start.
    Raises `StepError` without an axis, for the axis of the rows, and for shifts that are no whole numbers.
    """
    if axis is None:
        raise refuse("np.roll over all axes mixes rows; give axis=-1")
    shifts, axes = np.broadcast_arrays(shift, axis)
    for by, where in zip(shifts.ravel().tolist(), axes.ravel().tolist(), strict=True):
        feature = feature_axis(x, where, "np.roll")
        if not is_integer(by):
            raise refuse(f"np.roll shifts by whole numbers, not {by!r}")
        if size := x.type.shape[feature]:
            parts = (slice(size - by % size, None), slice(None, size - by % size))
            x = concatenate([x[indices_of(x, {feature: part})] for part in parts], feature)
    return x


def pad(x: Traced, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Traced:
    """Computes np.pad in a step: adds one number before and after features; raises `StepError` if it would
    add rows, and for another mode.
    """
    if mode != "constant" or np.ndim(constant_values):
        raise refuse("np.pad in a step adds one number: mode='constant' and a number as constant_values")
    widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    if not x.is_constant and widths[0] != [0, 0]:
        raise refuse(f"np.pad would add rows; begin pad_width with (0, 0), not {tuple(widths[0])}")
    if any(not is_integer(width) or width < 0 for pair in widths for width in pair):
        raise refuse(f"np.pad takes whole numbers of features to add, not {pad_width}")
    for feature, pair in zip(range(-x.ndim, 0), widths, strict=True):
        if any(pair):
            before, after = (added(x, feature, width, constant_values) for width in pair)
            x = concatenate([before, x, after], feature)
    return x


def added(x: Traced, feature: int, width: int, number: Any) -> Traced:
    """Makes a constant of one number with x's shape but `width` entries along an axis, to be joined to x."""
    sizes = list(x.type.shape)
    sizes[feature] = width
    return Traced(x.builder, x.builder.constant(filled(tuple(sizes), number, x.dtype.name)))


def indices_of(x: Traced, chosen: Mapping[int, Any]) -> tuple[Any, ...]:
    """Makes the index of slices or indices along some axes, counted from the end, and all along others."""
    return tuple(chosen.get(axis, slice(None)) for axis in range(-x.ndim, 0))


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Traced:
    """Computes np.concatenate in a step, along a feature axis; parameters are repeated in every row."""
    builder = builder_of(tuple(arrays))
    values = [Traced(builder, lifted(builder, value, arrays)) for value in arrays]
    rows = next((value for value in values if not value.is_constant), values[0])
    normalized_axis = feature_axis(rows, axis, "np.concatenate")
    dtype = np.result_type(*(value.dtype for value in values))
    if any(value.is_constant != rows.is_constant for value in values):
        values = [in_every_row(value, len(rows.type.shape)) for value in values]
    return apply("concatenate", *(value.astype(dtype) for value in values), axis=normalized_axis)


def in_every_row(value: Traced, rank: int) -> Traced:
    """Repeats a parameter with `rank` feature axes in every row, so that it can be concatenated with values
    that have rows; any other value is returned unchanged. Raises `StepError` for a parameter with another
    number of axes.
    """
    if not value.is_constant:
        return value
    if len(value.type.shape) != rank:
        raise refuse(
            f"a parameter {value.type.element} cannot be concatenated with values of {rank} feature axes"
        )
    return apply("expand", value, extent=ROWS)


def broadcast_to_features(x: Traced, shape: tuple[int, ...]) -> Traced:
    """Broadcasts the features of a value to this shape; returns the value itself if they have it."""
    return x if x.type.shape == shape else apply("broadcast", x, rank=len(x.type.shape), shape=shape)


def stack(arrays: Sequence[Any], axis: int = 0) -> Traced:
    """Computes np.stack in a step along a new feature axis; `StepError` for values with rows at axis 0."""
    if axis == 0 and not all(isinstance(a, Traced) and a.is_constant for a in arrays):
        raise refuse("np.stack over axis 0 would move the rows; use axis=1 or axis=-1")
    return concatenate([np.expand_dims(value, axis) for value in arrays], axis)


def expand_dims(x: Traced, axis: Any) -> Traced:
    """Computes np.expand_dims in a step: adds feature axes of size one; raises `StepError` for one before the
    rows, and for one that occurs twice.
    """
    requested = listed(axis)
    rank = x.ndim + len(requested)
    new_axes = {axis % rank for axis in requested if is_integer(axis) and -rank <= axis < rank}
    if len(new_axes) < len(requested):
        raise refuse(f"np.expand_dims to {rank} axes wants places among them, each once, not {axis}")
    lead = 0 if x.is_constant else 1
    if lead and 0 in new_axes:
        raise refuse(f"np.expand_dims at axis {axis} would stand before the rows")
    sizes = iter(x.type.shape)
    return reshaped(x, tuple(1 if index in new_axes else next(sizes) for index in range(lead, rank)))


def squeeze(x: Traced, axis: Any = None) -> Traced:
    """Computes np.squeeze in a step: drops feature axes of size one, by default all; raises `StepError` for
    an axis of another size.
    """
    rank = len(x.type.shape)
    if axis is None:
        axes = tuple(index for index, size in enumerate(x.type.shape, -rank) if size == 1)
    else:
        axes = feature_axes(x, axis, "np.squeeze")
    if any(x.type.shape[axis] != 1 for axis in axes):
        raise refuse(f"np.squeeze of {x.type.element}: an axis to drop is not of size one")
    return reshaped(x, tuple(size for i, size in enumerate(x.type.shape) if i - rank not in axes))


def split(x: Traced, indices_or_sections: Any, axis: int = 0) -> list[Traced]:
    """Computes np.split in a step: parts along a feature axis, equal ones or between given indices; returns
    their list. Raises `StepError` for the axis of the rows, for features that do not divide into equal parts,
    and for invalid indices.
    """
    normalized_axis = feature_axis(x, axis, "np.split")
    size = x.type.shape[normalized_axis]
    if is_integer(indices_or_sections):
        if not 1 <= indices_or_sections <= max(size, MOST_PARTS) or size % int(indices_or_sections):
            raise refuse(f"np.split: {size} features do not divide into {indices_or_sections} equal parts")
        cuts = (
            list(range(0, size + 1, size // int(indices_or_sections)))
            if size
            else [0] * (int(indices_or_sections) + 1)
        )
    else:
        split_indices = array_of(indices_or_sections, "the places to cut at")
        if split_indices.ndim != 1 or (split_indices.dtype.kind not in "iu" and split_indices.size):
            raise refuse(
                f"np.split takes a number of parts, or the places to cut at, not "
                f"{short_repr(indices_or_sections)}"
            )
        cuts = [0, *split_indices.tolist(), size]
    index = [slice(None)] * x.ndim
    pieces: list[Traced] = []
    for start, stop in pairwise(cuts):
        index[normalized_axis] = slice(start, stop)
        pieces.append(x[tuple(index)])
    return pieces


def array_split(x: Traced, indices_or_sections: Any, axis: int = 0) -> list[Traced]:
    """Computes np.array_split in a step: parts along a feature axis, the first larger if sizes differ. Raises
    `StepError` for no parts, and for more than `MOST_PARTS`.
    """
    if not is_integer(indices_or_sections):
        return split(x, indices_or_sections, axis)
    size = x.type.shape[feature_axis(x, axis, "np.array_split")]
    if not 1 <= indices_or_sections <= MOST_PARTS:
        raise refuse(f"np.array_split makes from 1 to {MOST_PARTS} parts, not {indices_or_sections}")
    lengths = [
        size // int(indices_or_sections) + (index < size % int(indices_or_sections))
        for index in range(int(indices_or_sections))
    ]
    return split(x, [sum(lengths[:index]) for index in range(1, int(indices_or_sections))], axis)


def hstack(tup: Sequence[Any]) -> Traced:
    """Computes np.hstack in a step: concatenates values along their first feature axis."""
    return concatenate(tup, 0 if np.ndim(tup[0]) == 1 else 1)


def append(arr: Any, values: Any, axis: Any = None) -> Traced:
    """Computes np.append in a step: concatenates two values along a feature axis, which must be given."""
    if axis is None:
        raise refuse("np.append over all axes mixes rows; give axis=-1")
    return concatenate([arr, values], axis)


def repeat(a: Traced, repeats: Any, axis: Any = None) -> Traced:
    """Computes np.repeat in a step: each element along a feature axis a number of times; without an axis,
    each of a parameter, which is flattened. Raises `StepError` for another value without an axis.
    """
    if axis is None:
        a, axis = flat(a, "np.repeat"), 0
    feature = feature_axis(a, axis, "np.repeat")
    indices = np.repeat(np.arange(a.type.shape[feature]), repeats)
    return a[indices_of(a, {feature: indices})]


def tile(A: Traced, reps: Any) -> Traced:
    """Computes np.tile in a step: the features a number of times along each axis. Raises `StepError` if it
    would repeat the rows.
    """
    counts = [1] * (A.ndim - len(listed(reps))) + listed(reps)
    if not all(is_integer(count) and count >= 0 for count in counts):
        raise refuse(f"np.tile takes whole numbers of copies, not {short_repr(reps)}")
    if not A.is_constant and (len(counts) > A.ndim or counts[0] != 1):
        raise refuse(f"np.tile keeps the rows first, and once: write (1, n), not {short_repr(reps)}")
    x = reshaped(A, (1,) * (len(counts) - A.ndim) + A.type.shape)
    for feature, count in zip(range(-x.ndim, 0), counts, strict=True):
        if count != 1:
            x = x[indices_of(x, {feature: np.tile(np.arange(x.type.shape[feature]), count)})]
    return x


def ravel(a: Traced) -> Traced:
    """Computes np.ravel in a step, of a parameter."""
    return flat(a, "np.ravel")


def flat(a: Traced, name: str) -> Traced:
    """Returns a parameter with one axis; raises `StepError` for a value with rows. name: the function's."""
    if not a.is_constant:
        raise refuse(f"{name} over all axes would join the rows: write x.reshape(x.shape[0], -1), or axis=-1")
    return reshaped(a, (a.type.size,))


def fliplr(m: Traced) -> Traced:
    """Computes np.fliplr in a step: reverses the order along the first feature axis."""
    return flip(m, 1)


def matrix_transpose(x: Traced, /) -> Traced:
    """Computes np.matrix_transpose in a step: exchanges the last two axes, which are features."""
    return swapaxes(x, -1, -2)


def broadcast_to(x: Traced, shape: Sequence[Any]) -> Traced:
    """Computes np.broadcast_to in a step: repeats features until they have this shape; raises `StepError` if
    they do not fit it.
    """
    sizes = without_rows(x, list(shape), "np.broadcast_to keeps the rows first: (x.shape[0], ...)")
    try:
        fits = np.broadcast_shapes(x.type.shape, tuple(sizes)) == tuple(sizes)
    except ValueError:
        fits = False
    if not fits:
        raise refuse(f"{x.type.element} does not broadcast to features {tuple(sizes)}")
    return broadcast_to_features(x, tuple(sizes))


def take(x: Traced, indices: Any, axis: Any = None) -> Traced:
    """Computes np.take in a step: rows of a parameter at a step's integers, or features at constants. Raises
    `StepError` for features at a step's integers, and for all axes of a value with rows.
    """
    if isinstance(indices, Traced):
        if axis not in (None, 0) or not x.is_constant:
            raise refuse("np.take with a step's integers takes rows of a parameter (axis=0)")
        return apply("gather", x if axis == 0 else reshaped(x, (x.type.size,)), indices)
    if axis is None and not x.is_constant:
        raise refuse("np.take over all axes mixes rows; give axis=-1")
    if axis is None:
        return take(reshaped(x, (x.type.size,)), indices, 0)
    index: list[Any] = [slice(None)] * x.ndim
    index[feature_axis(x, axis, "np.take")] = indices
    return x[tuple(index)]
