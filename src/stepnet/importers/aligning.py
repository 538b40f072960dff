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

from stepnet.compiler.net.windows import Lengths, Window, derived_axis, is_own_axis, split
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.importers.axes import extent_of, features_of, is_feature, is_time, size_of, stated_number
from stepnet.importers.convolving import steps_as_feature
from stepnet.importers.placed import Placed, constant
from stepnet.importers.sizes import Size
from stepnet.importers.values import to_extent


def aligned(values: Sequence[Placed]) -> list[Placed]:
    """Returns the operands of an elementwise operator at the same steps. Where numbers of steps differ, as of
    values before and after a stride of 2, those of one operand may be reached from all others, by joining
    steps and taking them apart; else the operands are returned as they are.
    """
    names = dict.fromkeys(str(value.axes[place][0]) for value in values for place in steps_of(value))
    others = [name for name in names if not is_own_axis(name)]
    if len(names) > 1 and len(others) < len(names):
        values, names = [at_steps_of(value, [*others, *names][0]) for value in values], dict.fromkeys(others)
    if len(names) <= 1:
        return as_features(values)
    for target in names:
        ways = [way_to(value, target) for value in values]
        if None not in ways:
            return [brought(value, way or ()) for value, way in zip(values, ways, strict=True)]
    return [*values]


def at_steps_of(x: Placed, target: str) -> Placed:
    """Returns a value at the steps of an input's own at other steps, of which a call must have as many."""
    places = steps_of(x)
    if not places or not is_own_axis(str(x.axes[places[0]][0])):
        return x
    value = apply("arrange", to_extent(x.value, extent_of(x.axes)), steps=target, reverse=False)
    return x.with_value(value, (*x.axes[: places[0]], (target,), *x.axes[places[0] + 1 :]))


def as_features(values: Sequence[Placed]) -> list[Placed]:
    """Returns the operands of an elementwise operator, where one has steps and another a feature in their
    place: if the file states the number of steps, and it is the size of that feature, the steps become a
    feature too; else the operands as they are.
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
    """Returns the operands of an elementwise operator, in which an array has an axis of one number in place
    of an axis with one number for each step that the file's fixed sizes say, if these are all the same; other
    operands as they are. So the model runs over any number of steps.
    """
    like = next((value for value in values if steps_of(value)), None)
    return [value if like is None or not value.is_array else once(value, like) for value in values]


def once(x: Placed, like: Placed) -> Placed:
    """Returns an array with an axis of size one in place of that which lies at the steps of another value,
    `like`, if it has the same numbers along that axis; else the array.
    """
    array, (place,) = x.array, steps_of(like)
    axis = place - len(like.axes)
    if -axis > array.ndim or array.shape[axis] < 2 or like.sizes[place] != array.shape[axis]:
        return x
    first = np.take(array, [0], axis=axis)
    return constant(first) if np.array_equal(np.broadcast_to(first, array.shape), array) else x


def within_features(x: Placed, target: Sequence[Any]) -> Placed:
    """Returns the operand of a reshape with its steps as an axis of features, if the file states their number
    and the reshape joins them with the features; else the operand.

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
    """Returns windows, by each of which several steps become one. Joined by them one after the other, and
    taken apart again, the steps of x become those of the axis named `target`.

    Empty for a value that has these steps already or none; None if there is no way.
    """
    places = steps_of(x)
    source = str(x.axes[places[0]][0]) if places else target
    if source == target:
        return ()
    return next((way for way in ways_of(target) if name_after(source, way) == target), None)


def ways_of(target: str) -> Iterator[tuple[Window, ...]]:
    """Yields the windows to try for `way_to`: those that join as many steps as the last factors by which the
    number of steps is multiplied in the axis named `target`.
    """
    factors = list[int]()
    for lengths in reversed(split(target)[1]):
        if not lengths.multiplies or lengths.more:
            return
        factors.append(lengths.factor)
        for lost in (1, 0):  # windows without the steps that are left over, or with zeros behind them
            yield tuple(Window(size, 1, 0, size, (size - 1) * lost) for size in factors)


def name_after(axis: str, way: Sequence[Window]) -> str:
    """Returns the name that an axis of steps has after its steps were joined by these windows, one after the
    other, and taken apart again.
    """
    for window in way:
        axis = window.axis(axis)
    for window in reversed(way):
        axis = derived_axis(axis, Lengths(0, window.stride, multiplies=True))
    return axis


def brought(x: Placed, way: Sequence[Window]) -> Placed:
    """Returns a value at other steps, to combine it with values at those: joined by the windows of `way`, one
    after the other, and then taken apart again.
    """
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
