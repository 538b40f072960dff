"""Moves and reshapes axes, and computes shapes.

A shape is a constant whose elements may be a `Size`, so shapes are computed by the rules of constants.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import Lengths, derived_axis, split
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.errors import ModelError
from stepnet.importers.axes import (
    ONE,
    Axes,
    AxesError,
    Axis,
    MixingError,
    extent_of,
    feature_error,
    features_of,
    is_feature,
    is_steps,
    regrouped,
    size_of,
    stated_number,
    symbols_in,
    text_of,
    time_of,
)
from stepnet.importers.broadcasting import broadcastable
from stepnet.importers.facts import STEP, ArrayInPadding
from stepnet.importers.placed import Placed, ReversedSteps, constant
from stepnet.importers.sizes import SEQUENCES, Last, Size, is_number, product
from stepnet.importers.values import Array, broadcast, check_room, reshaped, to_extent, transposed
from stepnet.model.counting import at_axis, index_of, length_of
from stepnet.model.nested import reduce as over_steps


def sizes_array(sizes: Sequence[Any]) -> Array:
    """Makes an array of sizes: int64 if all are known, else of objects, where some are symbolic (`Size`)."""
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, np.int64)
    array = np.empty(len(sizes), object)
    array[:] = list(sizes)
    return array


def shape_of_axes(x: Placed, start: int = 0, end: int | None = None) -> Placed:
    """Returns the sizes (perhaps symbolic) of axes `start` to `end`, None for all, as a constant."""
    return constant(sizes_array(x.sizes[start:end]))


def transpose(x: Placed, order: Sequence[int]) -> Placed:
    """Transposes the axes of a value. order: for each axis of the result, the number of the axis in x.

    If a value is known to have one number in padding (steps after a sequence's end), so is the result.
    """
    order = [x.axis(dim) for dim in order]
    if sorted(order) != list(range(len(x.axes))):
        raise ModelError(f"its order {order} is not a permutation of {len(x.axes)} axes")
    counts = [len(features_of((axis,))) for axis in x.axes]
    features = [sum(counts[:dim]) + index for dim in order for index in range(counts[dim])]
    result = x.with_value(transposed(x.value, features), tuple(x.axes[dim] for dim in order))
    one_number = isinstance(x.fact, ArrayInPadding) and x.fact.array.ndim == 0
    return replace(result, fact=x.fact) if one_number else result


def swapped(x: Placed) -> Placed:
    """Exchanges the last two axes of a value, as for the transpose of matrices."""
    rank = len(x.axes)
    return transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def unsqueeze(x: Placed, indices: Sequence[int]) -> Placed:
    """Adds features of size one to a value. indices: the axes of the result at which they stand."""
    axes = list(x.axes)
    for index in sorted(x.axis(index, len(indices)) for index in indices):
        axes.insert(index, ONE)
    return x.shaped(tuple(axes))


def squeeze(x: Placed, indices: Sequence[int] | None = None) -> Placed:
    """Removes features of size one from a value. indices: their axes; None for all of size one."""
    chosen = [x.axis(index) for index in indices or ()]
    x = with_one_step(x) if indices is None or any(not is_feature(x.axes[each]) for each in chosen) else x
    for index in chosen:
        if not is_feature(x.axes[index]):
            what = text_of((x.axes[index],)).strip("[]")
            raise feature_error(
                x.axes[index], f"it removes the axis of the {what}: only features can be removed"
            )
        if x.axes[index] != ONE:
            raise ModelError(f"it removes an axis of size {x.sizes[index]}: only size 1 can be removed")
    ones = [index for index, axis in enumerate(x.axes) if axis == ONE]
    return squeeze_at(x, ones if indices is None else chosen)


def reshape(x: Placed, target: Sequence[Any], zero_keeps: bool = False) -> Placed:
    """Reshapes a value; its numbers keep their order. Raises `ModelError` if that would mix sequences or
    steps.

    target: the sizes of the new axes; -1 for one that follows from the others. zero_keeps: whether a size of
    0 stands for that of the same axis in x.
    """
    x = x if any(isinstance(size, Size) for size in target) else beside_one_step(x, target)
    sizes = [x.sizes[at] if zero_keeps and is_number(size, 0) else size for at, size in enumerate(target)]
    unknown = [index for index, size in enumerate(sizes) if is_number(size, -1)]
    if len(unknown) > 1:
        raise ModelError(f"its shape {sizes} has several sizes of -1: only one can be inferred")
    if unknown:
        sizes[unknown[0]] = size_beside(x, product(size for size in sizes if not is_number(size, -1)))
    if x.is_array:
        return constant(x.array.reshape([int(size) for size in sizes]))
    return x.shaped(regrouped(x.axes, sizes, dict(x.stated)))


def size_beside(x: Placed, known: Any) -> Any:
    """Returns the size of the axis that the target of a reshape of x leaves open (-1).

    known: the product of the other sizes. Numbers of sequences and of steps that the file states may be
    factors of it, as for [sequences, 13 steps, 4] read as [-1, 13, 2, 2].
    """
    stated = {symbol: stated_number(symbol, dict(x.stated)) for symbol in symbols_in(x.axes)}
    single = {str(part) for part in only_step_of(x) or ()}
    symbols = [symbol for symbol in symbols_in(x.axes) if symbol not in single]
    fixed = [symbol for symbol in dict.fromkeys(symbols) if stated[symbol]][::-1]
    ways = [way for count in range(len(fixed) + 1) for way in combinations(fixed, count)]
    for way in ways if isinstance(known, int | np.integer) and known else ():
        numbers = product([*features_of(x.axes), *(stated[symbol] for symbol in way)])
        if not numbers % known:
            rest = [size_of((symbol,), dict(x.stated)) for symbol in symbols if symbol not in way]
            return product([numbers // known, *rest])
    return product(x.sizes) // known


def only_step_of(x: Placed) -> Axis | None:
    """Returns the axis of the steps of a value if they follow from the steps of the inputs, as after a
    pooling, and the file states so many of these that there is one; None otherwise.
    """
    time = time_of(x.axes)
    if time is None or not isinstance(x.value, Traced) or not split(str(time[0]))[1]:
        return None
    return time if stated_number(str(time[0]), dict(x.stated)) == 1 else None


def with_one_step(x: Placed) -> Placed:
    """Returns a value with a feature of size one in place of its steps, if the file states that there is one
    step (`only_step_of`); other values as they are. It is NaN for a sequence with no step there, or several.
    """
    time = only_step_of(x)
    if time is None:
        return x
    axes = tuple(ONE if axis == time else axis for axis in x.axes)
    value = over_steps(x.value, "first")
    if np.issubdtype(value.type.dtype, np.floating):
        fits = reshaped(length_of(x.value) == 1, (1,) * len(value.type.shape))
        value = np.where(fits, value, np.asarray(np.nan, value.type.dtype))
    return x.with_value(reshaped(value, features_of(axes)), axes)


def beside_one_step(x: Placed, target: Sequence[Any]) -> Placed:
    """Prepares the operand of a reshape that has one step, as the file states (`only_step_of`): if the target
    has a size of one, it stands for the step; if not, the step becomes a feature. Other operands are returned
    unchanged.
    """
    ones = sum(is_number(size, 1) for size in target)
    if only_step_of(x) is None or not ones:
        return with_one_step(x)
    places = [place for place, axis in enumerate(x.axes) if axis == ONE]
    return squeeze_at(x, places[: max(len(places) - ones + 1, 0)])


def squeeze_at(x: Placed, places: Sequence[int]) -> Placed:
    """Returns a value without its axes at these places, features of size one."""
    return x.shaped(tuple(axis for place, axis in enumerate(x.axes) if place not in places))


def expand(x: Placed, target: Sequence[Any]) -> Placed:
    """Broadcasts a value to a shape. target: its sizes; a `Size` is the axis of sequences or steps."""
    x = with_one_sequence(x, target)
    rank = max(len(target), len(x.axes))
    padded_axes = (ONE,) * (rank - len(x.axes)) + x.axes
    sizes = [1] * (rank - len(target)) + list(target)
    axes = tuple(broadcast_axis(axis, size, x) for axis, size in zip(padded_axes, sizes, strict=True))
    return broadcast_to(x, axes)


def with_one_sequence(x: Placed, target: Sequence[Any]) -> Placed:
    """Returns a constant with a single entry along axes that are broadcast to the number of sequences, where
    all its entries along them are equal: the zeros that exporters write for a fixed batch. Other values are
    returned as they are.

    target: the sizes to which the value is broadcast.
    """
    if not x.is_array:
        return x
    array = x.array
    for at, size in enumerate(reversed(target), 1):
        if at <= array.ndim and array.shape[-at] and isinstance(size, Size) and size == Size((SEQUENCES,)):
            first = array.take([0], -at)
            array = first if (array == first).all() else array
    return x if array is x.array else constant(array)


def broadcast_axis(axis: tuple[int | str, ...], size: Any, x: Placed) -> Any:
    """Checks that the axis `axis` of x broadcasts to a size, and returns the axis that the result has there;
    raises `AxesError` if it does not broadcast.

    size: the new size: a whole number, or a `Size`, the symbolic number of sequences or steps.
    """
    if is_feature(axis) and not isinstance(size, Size):
        return axis if is_number(size, 1) else (int(size),)
    if not is_feature(axis):
        if not (is_number(size, 1) or size_of(axis, dict(x.stated)) == size):
            raise AxesError(f"it broadcasts the axis of the {text_of((axis,))} to the size {size}")
        return axis
    if axis != ONE:
        raise AxesError(f"it broadcasts an axis of size {axis[0]} to that of the {size}")
    if size.times != 1 and len(size.symbols) == 1 and split(size.symbols[0])[1]:
        return (derived_axis(size.symbols[0], Lengths(0, size.times, multiplies=True)),)
    return (*size.symbols, *([size.times] * (size.times != 1)))


def step_numbers(like: Traced, dtype: Any) -> Placed:
    """Returns the index of each step, counted from 0, as a value with the steps of `like` in a dtype."""
    return Placed(index_of(like).astype(dtype), (like.type.extent[-1:],))


def last_first(x: Placed) -> Placed:
    """Returns a value with the steps of each sequence in reverse order."""
    value = to_extent(x.value, extent_of(x.axes))
    return x.with_value(apply("arrange", value, steps=value.type.extent[-1], reverse=True))


def as_turned(x: Placed) -> Placed:
    """Computes the value that a placeholder for reversed steps stands for; returns others unchanged."""
    return last_first(x.value.source) if isinstance(x.value, ReversedSteps) else x


def broadcast_to(x: Placed, axes: Axes) -> Placed:
    """Repeats a value along axes of size one, and axes that it lacks, until it has these axes."""
    value = broadcast(broadcastable(x, axes), features_of(axes))
    if isinstance(value, Traced):
        value = to_extent(value, extent_of(axes))
    return x.with_value(value, axes)


def arange(begin: Placed, end: Placed, step: Placed, like: Traced | None) -> Placed:
    """Makes the numbers from `begin` up to but not including `end`, by `step`; these three are constants or
    sizes.

    The result is a constant if the bounds are known, or the index of each step if `end` is the number of
    steps. like: a value per step, whose steps are counted; None if there is none.
    """
    first, last, by = (number.array.item() for number in (begin, end, step))
    if isinstance(last, Size) and (first, by) == (0, 1) and last.times == 1 and like is not None:
        if len(last.symbols) != 1 or not is_steps(last.symbols[0]):
            raise MixingError("it is a range over the sequences, whose number differs between calls")
        counted = at_axis(like, last.symbols[0])
        return replace(step_numbers(counted, np.result_type(begin.value, step.value)), fact=STEP)
    if isinstance(first, Size | Last) or isinstance(last, Size | Last) or isinstance(by, Size | Last):
        raise ModelError(
            "its bounds include the number of sequences or steps, which differs between calls; a range over "
            "steps is supported from 0 to their number in steps of 1"
        )
    check_room([int(abs((last - first) / by))])
    return constant(np.arange(first, last, by))
