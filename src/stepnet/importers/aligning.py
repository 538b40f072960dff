"""Brings values to the same steps that frameworks combine because their lengths happen to be equal.

    x           n steps
    y           n // 2 * 2 steps       x pooled by two, and repeated
    x + y       a framework adds them where n is even, and has an error for other lengths

Here the steps of x that y has none for are left out, so that both have the same steps in every call in which
the framework combines them. U-Nets do so at each of their levels.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import Lengths, Window, derived_axis, split
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.importers.axes import features_of, is_feature, is_time, size_of, stated_number
from stepnet.importers.convolving import steps_as_feature
from stepnet.importers.placed import Placed, constant
from stepnet.importers.sizes import Size


def aligned(values: Sequence[Placed]) -> list[Placed]:
    """Returns values at the same steps, if one of them has steps to which all others can be brought; else the
    values as they are.
    """
    names = dict.fromkeys(str(value.axes[place][0]) for value in values for place in steps_of(value))
    if len(names) == 1:
        return as_features(values)
    for target in names:
        ways = [way_to(value, target) for value in values]
        if None not in ways:
            return [brought(value, way or ()) for value, way in zip(values, ways, strict=True)]
    return [*values]


def as_features(values: Sequence[Placed]) -> list[Placed]:
    """Returns values in which steps, whose number the file states, are a feature where another value has a
    feature of this size instead; else the values as they are.
    """
    if len({len(value.axes) for value in values}) > 1:
        return [*values]
    made = list[Placed]()
    for value in values:
        places = steps_of(value)
        beside = {other.axes[place] for other in values for place in places}
        turns = any(value.sizes[places[0]] == size_of(axis) for axis in beside if is_feature(axis))
        made.append(steps_as_feature(value, places[0]) if turns else value)
    return made


def of_all_steps(values: Sequence[Placed]) -> list[Placed]:
    """Returns operands of an elementwise operator in which an array with a number for each of the steps that
    the file states has that number once, if it is the same at all of them; other operands as they are.
    """
    like = next((value for value in values if steps_of(value)), None)
    return [value if like is None or not value.is_array else once(value, like) for value in values]


def once(x: Placed, like: Placed) -> Placed:
    """Returns an array whose numbers are the same along the axis of the steps of another value with one of
    them.
    """
    array, (place,) = x.array, steps_of(like)
    axis = place - len(like.axes)
    if -axis > array.ndim or array.shape[axis] < 2 or like.sizes[place] != array.shape[axis]:
        return x
    first = np.take(array, [0], axis=axis)
    return constant(first) if np.array_equal(np.broadcast_to(first, array.shape), array) else x


def within_features(x: Placed, target: Sequence[Any]) -> Placed:
    """Returns the operand of a reshape with its steps as a feature, if the file states their number and the
    reshape joins them with the features; else the operand.

    target: the sizes of the result; symbolic ones and -1 are left open.
    """
    for place in steps_of(x):
        count, kept = stated_number(str(x.axes[place][0]), dict(x.stated)), prod(features_of(x.axes))
        sizes = [int(size) for size in target[1:] if not isinstance(size, Size) and int(size) > 0]
        if count and kept > 1 and count not in sizes and prod(sizes) == count * kept:
            return steps_as_feature(x, place)
    return x


def steps_of(x: Placed) -> list[int]:
    """Returns the axes of steps of a value that the net computes: one, or none."""
    return [place for place, axis in enumerate(x.axes) if is_time(axis) and isinstance(x.value, Traced)]


def way_to(x: Placed, target: str) -> tuple[Window, ...] | None:
    """Returns the windows by which the steps of a value become those called `target`: the steps are joined by
    them one after the other, and taken apart again.

    Empty for a value that is at these steps or has none; None if there is no way.
    """
    places = steps_of(x)
    source = str(x.axes[places[0]][0]) if places else target
    if source == target:
        return ()
    return next((way for way in ways_of(target) if name_after(source, way) == target), None)


def ways_of(target: str) -> Iterator[tuple[Window, ...]]:
    """Yields windows that the last multiplications of steps may undo, by the name of the axis."""
    factors = list[int]()
    for lengths in reversed(split(target)[1]):
        if not lengths.multiplies or lengths.more:
            return
        factors.append(lengths.factor)
        for lost in (1, 0):  # windows without the steps that are left over, or with zeros behind them
            yield tuple(Window(size, 1, 0, size, (size - 1) * lost) for size in factors)


def name_after(axis: str, way: Sequence[Window]) -> str:
    """Returns the name of an axis of steps after these windows were joined and taken apart again."""
    for window in way:
        axis = window.axis(axis)
    for window in reversed(way):
        axis = derived_axis(axis, Lengths(0, window.stride, multiplies=True))
    return axis


def brought(x: Placed, way: Sequence[Window]) -> Placed:
    """Returns a value at the steps to which these windows lead."""
    if not way:
        return x
    value = x.value
    for window in way:
        value = apply("windows", value, **window.attributes)
    for window in reversed(way):
        steps = derived_axis(value.type.extent[-1], Lengths(0, window.stride, multiplies=True))
        value = apply("overlap", value, **window.attributes, steps=steps)
    (place,) = steps_of(x)
    return x.with_value(value, (*x.axes[:place], (value.type.extent[-1],), *x.axes[place + 1 :]))
