"""Selects parts of values and joins them.

Any part of the features can be selected; of the steps all, the first or the last, or all but some at the
ends; of the sequences only all.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import split as split_name
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers.axes import (
    ONE,
    Axes,
    AxesError,
    Axis,
    MixingError,
    features_of,
    is_feature,
    is_time,
    size_of,
    text_of,
)
from stepnet.importers.convolving import at_steps, window_of, with_zeros, zero_steps
from stepnet.importers.padding import check_no_padding
from stepnet.importers.placed import Placed, constant, stated_by
from stepnet.importers.reductions import filled
from stepnet.importers.shaping import broadcast_to, transpose
from stepnet.importers.sizes import STEPS, Last, Size
from stepnet.importers.values import (
    Array,
    at_one_extent,
    check_room,
    first_feature,
    part_of,
    repeated_at,
    reshaped,
    shape_of,
    to_extent,
)
from stepnet.model.counting import index_of
from stepnet.model.nested import reduce as over_steps

HIGHEST = (2**31 - 1, 2**63 - 1)
"""The largest int32 and int64, which stand for the end of an axis."""


def concatenate(values: Sequence[Placed], axis: int) -> Placed:
    """Concatenates values along an axis, of features, of sequences or of steps. If n values are concatenated
    along their steps or sequences, the result has the joined axis (n, steps), which only a reshape may
    separate again. A feature in front of steps becomes further steps.
    """
    check_room([sum(prod(value.features) for value in values)])
    if all(value.is_array for value in values):
        try:
            return constant(np.concatenate([value.array for value in values], axis=axis))
        except ValueError as error:
            raise ModelError(f"it concatenates constants whose shapes do not fit: {error}") from None
    like = next((value for value in values if not value.is_constant), values[0])
    axis = like.axis(axis)
    joined_axis = like.axes[axis]
    if not is_feature(joined_axis) and all(x.axes[axis : axis + 1] == (joined_axis,) for x in values):
        stacked = [x.shaped((*x.axes[:axis], ONE, *x.axes[axis:])) for x in values]
        stacked_value = concatenate(stacked, axis)
        return stacked_value.shaped(
            (*stacked_value.axes[:axis], (len(stacked), *joined_axis), *stacked_value.axes[axis + 2 :])
        )
    if is_time(joined_axis) or any(is_time(x.axes[axis]) for x in values[1:]):
        return ahead_of_steps(values, axis)
    pairs = [pair for x in values for pair in zip(x.axes, like.axes, strict=False)]
    repeated = [own for own, theirs in pairs if not is_feature(theirs) and own != ONE]
    if is_feature(joined_axis) and any(map(is_feature, repeated)):
        raise joining_error(values, axis)
    sizes = [x.features[x.feature(axis)] for x in values]
    parts = [broadcast_to(x, with_axis(like.axes, axis, size)) for x, size in zip(values, sizes, strict=True)]
    return Placed(
        joined([part.value for part in parts], len(features_of(like.axes[:axis]))),
        with_axis(like.axes, axis, sum(sizes)),
        stated_by(values),
    )


def joining_error(values: Sequence[Placed], axis: int) -> AxesError:
    """Makes the error for values whose axes do not fit, to be joined along an axis."""
    return AxesError(f"it joins {' and '.join(text_of(value.axes) for value in values)} along axis {axis}")


def ahead_of_steps(values: Sequence[Placed], axis: int) -> Placed:
    """Puts the entries of an axis of features, as further steps, ahead of the steps of each sequence. Models
    that run a sequence chunk by chunk do so with the last steps of the chunk before. Raises `ModelError` for
    other values than one of a feature and one of steps.
    """
    first, x = values if len(values) == 2 else (values[0], values[0])
    if not is_feature(first.axes[axis]) or not is_time(x.axes[axis]):
        raise joining_error(values, axis)
    (steps,) = x.axes[axis]
    _, changes = split_name(str(steps))
    if any(change.more < 0 and not change.multiplies for change in changes):
        raise ModelError(
            "it puts entries ahead of steps of which some were left out, so that a sequence of which no step "
            "is left would have none of either"
        )
    count = first.axes[axis][0]
    made = zero_steps(x, axis, int(count), 0)
    place = index_of(made.value)
    for number in range(int(count)):
        own = part_of(first.value, len(features_of(first.axes[:axis])), number)
        own = to_extent(own, made.value.type.extent) if isinstance(own, Traced) else own
        at = reshaped(place == number, (1,) * len(made.features))
        made = made.with_value(np.where(at, own, made.value))
    return made


def with_axis(axes: Axes, axis: int, size: int) -> Axes:
    """Returns axes with the one at index `axis` replaced by a feature of this size, as a slice leaves it."""
    return (*axes[:axis], (size,), *axes[axis + 1 :])


def joined(values: Sequence[Any], feature: int) -> Any:
    """Concatenates arrays or traced values along the feature with index `feature`.

    Values with fewer entries than another are repeated first: at each step if any of them has a value per
    step.
    """
    like = max(values, key=lambda value: len(value.type.extent) if isinstance(value, Traced) else 0)
    if isinstance(like, Traced):
        values = [value if isinstance(value, Traced) else repeated_at(value, like) for value in values]
    return np.concatenate(at_one_extent(values), axis=first_feature(like) + feature)


def sliced(x: Placed, axis: int, chosen: slice) -> Placed:
    """Slices a value along the feature at an axis. chosen: the Python slice."""
    value = part_of(x.value, x.feature(axis) + len(x.features), chosen)
    return x.with_value(value, with_axis(x.axes, axis, shape_of(value)[x.feature(axis)]))


def step_at(x: Placed, axis: int, how: str, keep: bool, padded: bool = False) -> Placed:
    """Takes one step of each sequence. axis: the axis of the steps. how: "first" or "last".

    keep: whether a feature of size one takes the place of the axis. padded: whether the model has padding, so
    that the last step may be padding: then "last" is a `ModelError`.
    """
    if how == "last":
        check_no_padding(padded)
    axes = x.axes[:axis] + ((ONE,) if keep else ()) + x.axes[axis + 1 :]
    return x.with_value(reshaped(over_steps(x.value, how), features_of(axes)), axes)


def take_constant(x: Placed, axis: int, indices: Array) -> Placed:
    """Takes elements of the feature at an axis, at constant indices, whose axes replace the feature."""
    value = np.take(x.value, indices, axis=x.feature(axis))
    value = np.asarray(value) if x.is_constant else value
    return x.with_value(value, x.axes[:axis] + tuple((n,) for n in indices.shape) + x.axes[axis + 1 :])


def take_computed(table: Placed, at: Placed) -> Placed:
    """Takes rows of a constant table at indices that are computed, as an embedding does. table: the constant.
    at: the indices. The result has their axes, then the axes of a row.
    """
    array = table.array
    if array.dtype.kind in "iu" and array.dtype.itemsize < np.dtype("int32").itemsize:
        array = array.astype("int32")  # a net has no integers of fewer bits
    literal = Traced(at.value.builder, at.value.builder.constant(array, "table"))
    return at.with_value(literal[at.value], at.axes + table.axes[1:])


def pad(x: Placed, pads: Sequence[tuple[int, int, int]], number: Any) -> Placed:
    """Pads features of a value with one number, or, for a negative pad, cuts them off. If only zeros are put
    around steps, the result is a placeholder which only a convolution may read.

    pads: for each, (axis, number of elements before, number after).
    """
    pads = [each for each in pads if any(each[1:])]
    if len(pads) == 1 and is_time(x.axes[pads[0][0]]) and min(pads[0][1:]) >= 0 and number == 0:
        return with_zeros(x, *pads[0][1:])
    number = np.asarray(number).astype(x.value.dtype)
    for axis, before, after in pads:
        if is_feature(x.axes[axis]) and min(before, 0) + min(after, 0) < -x.features[x.feature(axis)]:
            raise ModelError(
                f"its pads {before} and {after} cut more off {text_of(x.axes)} than axis {axis} has"
            )
        x = sliced(x, axis, slice(max(0, -before), min(0, after) or None))
        feature = x.feature(axis)
        check_room([*x.features, max(before, 0) + max(after, 0)])
        parts = [filled(x, feature, before, number), x.value, filled(x, feature, after, number)]
        value = np.concatenate(parts, axis=feature)
        x = x.with_value(value, with_axis(x.axes, axis, shape_of(value)[feature]))
    return x


def split(x: Placed, axis: int, sizes: Sequence[int]) -> list[Placed]:
    """Splits a value along the feature at an axis into parts of these sizes."""
    ends = [int(end) for end in np.cumsum([0, *sizes])]
    return [sliced(x, axis, slice(start, end)) for start, end in pairwise(ends)]


def slice_axis(x: Placed, axis: int, start: Any, end: Any, step: int = 1, padded: bool = False) -> Placed:
    """Slices a value along an axis: a feature, or the axis of steps, of which all, the first or the last can
    be selected. Raises `ModelError` for other slices. start, end: integers or symbolic sizes.

    padded: whether the model has padding (steps after sequences' ends), so that the last step may be padding.
    """
    axis = x.axis(axis)
    sliced_axis = x.axes[axis]
    if is_feature(sliced_axis):
        if step < 0 and bound(end) in HIGHEST:
            raise ModelError(
                f"it slices backwards to the end {bound(end)}, which runtimes interpret differently"
            )
        return sliced(x, axis, clamped(bound(start), bound(end), step, x.sizes[axis]))
    if is_whole_axis(start, end, step, sliced_axis):
        return x
    if is_time(sliced_axis) and (how := step_of(start, end, step, sliced_axis)):
        return step_at(x, axis, how, True, padded)
    if is_time(sliced_axis) and step == 1 and (count := last_steps(start, end, sliced_axis)):
        check_no_padding(padded)
        window = window_of(count, 1, 1, count - 1, 0)
        made = over_steps(apply("windows", x.value, **window.attributes), "last")
        entries = x.with_value(made, ((count,), *x.axes[:axis], *x.axes[axis + 1 :]))
        return transpose(entries, [*range(1, axis + 1), 0, *range(axis + 1, len(x.axes))])
    if is_time(sliced_axis) and (cuts := cuts_of(start, end, sliced_axis)) and step > 0:
        check_no_padding(padded)
        return cut(x, axis, *cuts, step)
    selected = f"{text_of((sliced_axis,)).strip('[]')} {start} to {end} in steps of {step}"
    raise (ModelError if is_time(sliced_axis) else MixingError)(
        f"it selects {selected}: of sequences only all can be selected; of steps all, the first or the last, "
        "or all but some at the ends"
    )


def slices(
    x: Placed,
    starts: Sequence[Any],
    ends: Sequence[Any],
    axes: Sequence[int],
    steps: Sequence[int],
    padded: bool = False,
) -> Placed:
    """Slices a value along several axes: features, or the first or last step of each sequence.

    starts, ends, axes, steps: one entry per slice. padded: whether the model has padding (steps after
    sequences' ends), so that the last step may be padding.
    """
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = slice_axis(x, axis, start, end, step, padded)
    return x


def clamped(start: int, end: int, step: int, size: int) -> slice:
    """Returns the Python slice that selects what a slice of a model file does, for a feature of `size`
    elements.

    Bounds of a backward slice are clamped: one that starts before the first element begins with it.
    """
    if step > 0:
        return slice(start, end, step)
    first = min(max(start + size if start < 0 else start, 0), size - 1)
    stop = max(end + size if end < 0 else end, -1)
    return slice(first, None if stop < 0 else stop, step)


def bound(number: Any) -> int:
    """Returns a bound of a slice of features as an integer; raises `ModelError` for one that is not known."""
    if isinstance(number, Size | Last):
        raise ModelError("a bound of its slice of features is the number of sequences or of steps")
    return int(number)


MORE_STEPS = re.compile(STEPS + r"\[[+](\d+)/1\]")
"""The name of an axis of more steps than the inputs have, by a fixed number."""


def last_steps(start: Any, end: Any, axis: Axis) -> int | None:
    """Returns the number of last steps of each sequence that a slice takes, if every sequence is known to
    have as many; None for other slices.

    An axis that has n steps more than the inputs, as after n further steps were put in front, has at least n.
    """
    more = MORE_STEPS.fullmatch(str(axis[0]))
    if more is None or not is_end(end, axis) or isinstance(start, Size):
        return None
    count = start.back if isinstance(start, Last) else -int(start)
    return count if 0 < count <= int(more[1]) else None


def cuts_of(start: Any, end: Any, axis: Axis) -> tuple[int, int] | None:
    """Returns the numbers of steps that a slice from `start` to `end` leaves out ahead and behind; None for a
    slice that keeps a fixed number of steps, such as x[:, :3].
    """
    if isinstance(start, Last | Size) or start < 0:
        return None
    if is_end(end, axis):
        return int(start), 0
    behind = end.back if isinstance(end, Last) else None if isinstance(end, Size) else -int(end)
    return (int(start), behind) if behind is not None and behind > 0 else None


def cut(x: Placed, axis: int, before: int, after: int, step: int = 1) -> Placed:
    """Cuts entries of an axis of steps or features off at both ends, and takes each `step`-th other one."""
    if is_feature(x.axes[axis]):
        return sliced(x, axis, slice(before, max(x.sizes[axis] - after, before), step))
    if before and after:
        x, after = cut(x, axis, 0, after), 0
    ends = max(before, after)  # then a step is kept if there is one so many steps later, or earlier
    window = window_of(2 if ends else 1, step, max(ends, 1), 0, 0)
    return at_steps(x, axis, window, 1 if before else 0)


def is_end(end: Any, axis: Axis) -> bool:
    """Tells whether the bound `end` of a slice is the end of the axis: its size, or from 2**31 - 1 on."""
    if isinstance(end, Size):
        return end == size_of(axis)
    return not isinstance(end, Last) and int(end) >= 2**31 - 1


def is_whole_axis(start: Any, end: Any, step: int, axis: Axis) -> bool:
    """Tells whether a slice from `start` to `end` selects all sequences or steps of an axis."""
    return step == 1 and not isinstance(start, Last) and start == 0 and is_end(end, axis)


def step_of(start: Any, end: Any, step: int, axis: Axis) -> str | None:
    """Names the step that a slice from `start` to `end` selects, "first" or "last"; else None."""
    if step == 1 and start == 0 and end == 1:
        return "first"
    if step == 1 and (start in (-1, Last(1))) and is_end(end, axis):
        return "last"
    return None


def gather(x: Placed, at: Placed, axis: int, padded: bool = False) -> Placed:
    """Takes elements at indices: rows of a constant (an embedding), parts of a feature, or one step.

    at: the indices. axis: the axis of x that they index; of steps, only the first and the last can be taken.
    padded: whether the model has padding, so that the last step may be padding.
    """
    if not at.is_constant:
        if axis or not x.is_constant:
            raise ModelError(
                f"it gathers at computed indices from {text_of(x.axes)}: that is supported only for the rows "
                "of a constant"
            )
        return take_computed(x, at)
    indices = at.value
    others = [size for index, size in enumerate(x.sizes) if is_feature(x.axes[index]) and index != axis]
    check_room([indices.size, *others])
    if is_time(x.axes[axis]):
        number = indices.item() if indices.ndim == 0 else None
        how = "first" if number == 0 else "last" if number in (-1, Last(1)) else None
        if how is None:
            several = f"the steps {short_repr(indices.ravel().tolist())}"
            which = f"step {number}" if indices.ndim == 0 else several
            raise ModelError(
                f"it selects {which}: only the first or the last can be selected; where an "
                "exporter wrote out a loop over the steps, load the model from the file of its own framework"
            )
        return step_at(x, axis, how, False, padded)
    return take_constant(x, axis, indices.astype(np.int64))
