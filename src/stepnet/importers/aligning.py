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
    """Brings the operands of an elementwise operator to the same steps, where their numbers of steps differ
    in general but are equal in the calls for which a framework combines them: such as x, and x after a
    pooling by 2 and a repetition by 2. Steps that one operand does not have are left out of the others.
    Returns the operands as they are if there is no way.
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
    """Moves a value at the steps of an input with steps of its own to the steps named `target`; returns any
    other value unchanged. Each sequence must have equally many of both steps in a call.
    """
    places = steps_of(x)
    if not places or not is_own_axis(str(x.axes[places[0]][0])):
        return x
    value = apply("arrange", to_extent(x.value, extent_of(x.axes)), steps=target, reverse=False)
    return x.with_value(value, (*x.axes[: places[0]], (target,), *x.axes[places[0] + 1 :]))


def as_features(values: Sequence[Placed]) -> list[Placed]:
    """Returns the operands of an elementwise operator after a fixed number of steps became an axis of
    features where another operand has features: if the file states the number of steps of one operand, and
    another operand has a feature axis of that size in the same place. Other operands are returned as they
    are.
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
    """Returns the operands of an elementwise operator. An array that repeats one number for every step that
    the file fixes gets an axis of size one there, so that the model runs over any number of steps; other
    operands are unchanged.
    """
    like = next((value for value in values if steps_of(value)), None)
    return [value if like is None or not value.is_array else once(value, like) for value in values]


def once(x: Placed, like: Placed) -> Placed:
    """Shortens an axis of an array to size one, if it lies at the steps of another value, `like`, and all its
    numbers are the same; else returns the array as it is.
    """
    array, (place,) = x.array, steps_of(like)
    axis = place - len(like.axes)
    if -axis > array.ndim or array.shape[axis] < 2 or like.sizes[place] != array.shape[axis]:
        return x
    first = np.take(array, [0], axis=axis)
    return constant(first) if np.array_equal(np.broadcast_to(first, array.shape), array) else x


def within_features(x: Placed, target: Sequence[Any]) -> Placed:
    """Turns the steps of a reshape's operand into an axis of features, if the file states their number and
    the reshape joins them with the features; else returns the operand as it is.

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
    """Finds the windows that lead from the steps of x to the axis named `target`: each window joins several
    neighbouring steps into one. x has the steps of `target` after joining its steps by all windows in turn
    and taking them apart again.

    Returns () for a value that has the steps of `target` already or none; None if there is no way.
    """
    places = steps_of(x)
    source = str(x.axes[places[0]][0]) if places else target
    if source == target:
        return ()
    return next((way for way in ways_of(target) if name_after(source, way) == target), None)


def ways_of(target: str) -> Iterator[tuple[Window, ...]]:
    """Yields the ways to try to reach the steps of the axis named `target`, each a tuple of windows that make
    several neighbouring steps one: as many as the last factors by which the number of steps is multiplied in
    that axis.
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
    """Returns a value at other steps, to combine it with values at those: neighbouring steps are joined by
    the windows of `way`, one after the other, and then taken apart again.
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
