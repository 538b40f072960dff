"""ONNX's operators that select parts of values and join them: Concat, Split, Slice, Pad and Gather.

Any part of the features can be selected; of the steps all, the first or the last; of the sequences only all.
"""

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.graph.operators.call import Call, Rules
from stepnet.graph.operators.padding import check_no_padding
from stepnet.graph.operators.placed import (
    AxesError,
    Placed,
    at_one_extent,
    check_room,
    constant,
    filled,
    repeated_at,
    without_ones,
    words,
)
from stepnet.graph.operators.reductions import with_one
from stepnet.graph.operators.sizes import FEATURE, STEPS, Last, Size
from stepnet.rnn.nested import reduce as over_steps
from stepnet.trace.traced import Traced

Array = np.ndarray
HIGHEST = (2**31 - 1, 2**63 - 1)
"""The largest int32 and int64, which in ONNX stand for the end of an axis."""


def concat(call: Call) -> Placed:
    """The result of Concat, of features or of shapes."""
    values = call.present
    check_room([sum(prod(value.features) for value in values)])
    if all(value.is_constant and not value.axes.strip(FEATURE) for value in values):
        axis = int(call.attributes.get("axis", 0))
        try:
            return constant(np.concatenate([value.array for value in values], axis=axis))
        except ValueError as error:
            raise ModelError(f"it concatenates constants whose shapes do not fit: {error}") from None
    x = next((value for value in values if not value.is_constant), values[0])
    axis = x.axis(int(call.attributes["axis"]))
    place = x.feature(axis)
    others = [value if value.axes == x.axes else spread(value, x) for value in values]
    return x.with_value(np.concatenate([value.value for value in others], axis=place))


def spread(value: Placed, like: Placed) -> Placed:
    """A constant or a value per sequence, broadcast to the axes of another value."""
    inside, deep = without_ones(value, like.axes), like.value
    if like.is_constant:
        raise AxesError(f"[{words(value.axes)}] and [{words(like.axes)}] do not fit")
    if isinstance(inside, Traced):
        return like.with_value(at_one_extent([inside, deep])[0])
    return like.with_value(repeated_at(inside, deep))


def pad(call: Call) -> Placed:
    """The result of Pad: features padded with one number, or, for a negative pad, cut off."""
    x, mode = call.x, call.attributes.get("mode", "constant")
    pads = call.whole(1, "pads") or []
    number = np.asarray(call.number(2, "value", 0)).astype(x.value.dtype)
    axes = [x.axis(axis) for axis in call.whole(3, "axes", list(range(len(x.axes)))) or []]
    if mode != "constant" or len(pads) != 2 * len(axes):
        raise ModelError(
            f"its mode is {mode!r} with {len(pads)} pads for {len(axes)} axes: only the mode 'constant' is "
            "supported, with two pads per axis"
        )
    for place, axis in enumerate(axes):
        before, after = pads[place], pads[len(axes) + place]
        if (before, after) == (0, 0):
            continue
        x = sliced(x, axis, slice(max(0, -before), min(0, after) or None))
        at = x.feature(axis)
        check_room([*x.features, max(before, 0) + max(after, 0)])
        parts = [filled(x, at, before, number), x.value, filled(x, at, after, number)]
        x = x.with_value(np.concatenate(parts, axis=at))
    return x


def split(call: Call) -> list[Placed]:
    """The results of Split, of features."""
    x = call.x
    axis = x.axis(int(call.attributes.get("axis", 0)))
    parts = call.whole(1, "split")
    size = x.sizes[axis]
    if parts is None:
        count = call.attributes.get("num_outputs", call.outputs)
        if count != call.outputs:
            raise ModelError(f"its num_outputs is {count}, but it has {call.outputs} outputs")
        part = -(-size // count)
        parts = [min(part, size - part * place) for place in range(count)]
    ends = [int(end) for end in np.cumsum([0, *parts])]
    return [sliced(x, axis, slice(begin, end)) for begin, end in pairwise(ends)]


def sliced(x: Placed, axis: int, chosen: slice) -> Placed:
    """A value sliced along one feature."""
    if x.is_constant and not x.axes.strip(FEATURE):
        return constant(x.array[(slice(None),) * axis + (chosen,)])
    place = x.feature(axis) + len(x.features)
    rows = (slice(None),) if isinstance(x.value, Traced) else ()
    return x.with_value(x.value[(*rows, *(slice(None),) * place, chosen)])


def slice_(call: Call) -> Placed:
    """The result of Slice: of features, of shapes, or the first or last step."""
    x = call.x
    starts, ends = (call.numbers(at, name) for at, name in ((1, "starts"), (2, "ends")))
    axes = call.whole(3, "axes", list(range(len(starts)))) or []
    steps = call.whole(4, "steps", [1] * len(starts)) or []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = x.axis(axis)
        if x.axes[axis] == FEATURE:
            if step < 0 and bound(end) in HIGHEST:
                raise ModelError(
                    f"it slices backwards to the end {bound(end)}, which runtimes interpret differently"
                )
            x = sliced(x, axis, clamped(bound(start), bound(end), step, x.sizes[axis]))
        elif is_whole_axis(start, end, step, x.axes[axis]):
            continue
        elif x.axes[axis] == STEPS and (how := step_of(start, end, step)):
            x = one_step(call, x, axis, how)
        else:
            selected = f"{words(x.axes[axis])} {start} to {end} in steps of {step}"
            raise ModelError(
                f"it selects {selected}: of sequences only all can be selected; of steps all, the first or "
                "the last"
            )
    return x


def clamped(start: int, end: int, step: int, size: int) -> slice:
    """The Python slice for a feature of `size` elements. ONNX clamps the bounds of a backward slice: one that
    starts before the first element begins with the first.
    """
    if step > 0:
        return slice(start, end, step)
    begin = min(max(start + size if start < 0 else start, 0), size - 1)
    stop = max(end + size if end < 0 else end, -1)
    return slice(begin, None if stop < 0 else stop, step)


def bound(number: Any) -> int:
    """The bound of a slice of features as an integer; raises `ModelError` for one that is not known."""
    if isinstance(number, Size | Last):
        raise ModelError("a bound of its slice of features is the number of sequences or of steps")
    return int(number)


def is_end(end: Any, letter: str) -> bool:
    """Whether a bound of a slice is the end of the axis of sequences, or of steps."""
    if isinstance(end, Size):
        return end.letters == letter
    return not isinstance(end, Last) and int(end) >= 2**31 - 1


def is_whole_axis(start: Any, end: Any, step: int, letter: str) -> bool:
    """Whether a slice selects all sequences, or all steps."""
    return step == 1 and not isinstance(start, Last) and start == 0 and is_end(end, letter)


def step_of(start: Any, end: Any, step: int) -> str | None:
    """The name of the single step that a slice selects, "first" or "last"; None for other slices."""
    if step == 1 and start == 0 and end == 1:
        return "first"
    if step == 1 and (start in (-1, Last(1))) and is_end(end, STEPS):
        return "last"
    return None


def one_step(call: Call, x: Placed, axis: int, how: str, kept: bool = True) -> Placed:
    """The first or the last step of each sequence.

    how: "first" or "last".
    kept: whether a feature of size one takes the place of the axis of steps.
    """
    if how == "last":
        check_no_padding(call)
    letters = x.axes[:axis] + (FEATURE if kept else "") + x.axes[axis + 1 :]
    value = over_steps(x.value, how)
    return x.with_value(with_one(value, letters, axis) if kept else value, letters)


def gather(call: Call) -> Placed:
    """The result of Gather: rows of a constant (an embedding), parts of a feature, the first or last step."""
    x, at = call.operand(0), call.operand(1)
    axis = x.axis(int(call.attributes.get("axis", 0)))
    if not at.is_constant:
        if axis or not x.is_constant:
            raise ModelError(
                f"it gathers at computed indices from [{words(x.axes)}]: that is supported only for the rows "
                "of a constant"
            )
        return at.with_value(embedded(x.array, at.value), at.axes + FEATURE * (len(x.axes) - 1))
    places = at.value
    check_room(
        [
            places.size,
            *(size for place, size in enumerate(x.sizes) if x.axes[place] == FEATURE and place != axis),
        ]
    )
    if x.axes[axis] == STEPS:
        number = places.item() if places.ndim == 0 else None
        how = "first" if number == 0 else "last" if number in (-1, Last(1)) else None
        if how is None:
            raise ModelError(f"it selects step {number}: only the first or the last can be selected")
        return one_step(call, x, axis, how, kept=False)
    if x.is_constant and not x.axes.strip(FEATURE):
        return constant(np.take(x.array, places.astype(np.int64), axis=axis))
    place = x.feature(axis)
    letters = x.axes[:axis] + FEATURE * places.ndim + x.axes[axis + 1 :]
    return x.with_value(np.take(x.value, places.astype(np.int64), axis=place), letters)


def embedded(table: Array, places: Traced) -> Any:
    """The rows of a table at traced indices."""
    return Traced(places.builder, places.builder.constant(table, "table"))[places]


SELECTING: dict[str, Rules] = {
    "Concat": concat,
    "Gather": gather,
    "Pad": pad,
    "Slice": slice_,
    "Split": split,
}
"""The rule of each operator."""
