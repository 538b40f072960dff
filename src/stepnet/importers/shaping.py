"""Operators that move and reshape axes, and those that compute shapes; behind them the rows of the table.

A shape is a constant whose elements may be a `Size`, so shapes are computed by the rules of constants.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.errors import ModelError
from stepnet.importers.axes import (
    ONE,
    TIME,
    Axes,
    AxesError,
    extent_of,
    features_of,
    is_feature,
    regrouped,
    size_of,
    text_of,
)
from stepnet.importers.call import Call, Rules
from stepnet.importers.facts import STEP
from stepnet.importers.placed import Placed, beside, constant
from stepnet.importers.sizes import STEPS, Last, Size, is_number, product
from stepnet.importers.values import Array, broadcast, check_room, to_extent, transposed
from stepnet.model.counting import index_of


def sizes_array(sizes: Sequence[Any]) -> Array:
    """Sizes as an array: of int64 if all are known, else of objects."""
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, np.int64)
    array = np.empty(len(sizes), object)
    array[:] = list(sizes)
    return array


def transpose(x: Placed, order: Sequence[int]) -> Placed:
    """The axes in another order."""
    counts = [len(features_of((axis,))) for axis in x.axes]
    features = [sum(counts[:dim]) + place for dim in order for place in range(counts[dim])]
    return x.with_value(transposed(x.value, features), tuple(x.axes[dim] for dim in order))


def swapped(x: Placed) -> Placed:
    """The last two axes exchanged."""
    rank = len(x.axes)
    return transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def unsqueeze(x: Placed, places: Sequence[int]) -> Placed:
    """New features of size one. places: the axes of the result at which they stand."""
    axes = list(x.axes)
    for place in sorted(places):
        axes.insert(place, ONE)
    return x.shaped(tuple(axes))


def squeeze(x: Placed, places: Sequence[int] | None = None) -> Placed:
    """The value without features of size one, by default without any of them."""
    dropped = range(len(x.axes)) if places is None else places
    for place in dropped if places is not None else ():
        if not is_feature(x.axes[place]):
            what = text_of((x.axes[place],)).strip("[]")
            raise AxesError(f"it removes the axis of the {what}: only features can be removed")
        if x.axes[place] != ONE:
            raise ModelError(f"it removes an axis of size {x.sizes[place]}: only size 1 can be removed")
    dropped = {place for place in dropped if x.axes[place] == ONE}
    return x.shaped(tuple(axis for place, axis in enumerate(x.axes) if place not in dropped))


def reshape(x: Placed, target: Sequence[Any]) -> Placed:
    """The numbers in another shape.

    target: the sizes of the new axes; -1 for one that follows from the others.
    """
    sizes = list(target)
    unknown = [place for place, size in enumerate(sizes) if is_number(size, -1)]
    if len(unknown) > 1:
        raise ModelError(f"its shape {target} has several sizes of -1: only one can be inferred")
    if unknown:
        known = product(size for size in sizes if not is_number(size, -1))
        sizes[unknown[0]] = product(x.sizes) // known
    if x.is_array:
        return constant(x.array.reshape([int(size) for size in sizes]))
    return x.shaped(regrouped(x.axes, sizes, dict(x.stated)))


def expand(x: Placed, target: Sequence[Any]) -> Placed:
    """The value broadcast to a shape, in which a `Size` is the axis of sequences or steps."""
    rank = max(len(target), len(x.axes))
    own = (ONE,) * (rank - len(x.axes)) + x.axes
    sizes = [1] * (rank - len(target)) + list(target)
    axes = tuple(widened(axis, size, x) for axis, size in zip(own, sizes, strict=True))
    return broadcast_to(x, axes)


def widened(axis: tuple[int | str, ...], size: Any, x: Placed) -> Any:
    """An axis of a value that is broadcast to a size."""
    if is_feature(axis) and not isinstance(size, Size):
        return axis if is_number(size, 1) else (int(size),)
    if not is_feature(axis):
        if not (is_number(size, 1) or size_of(axis, dict(x.stated)) == size):
            raise AxesError(f"it broadcasts the axis of the {text_of((axis,))} to the size {size}")
        return axis
    if axis != ONE:
        raise AxesError(f"it broadcasts an axis of size {axis[0]} to that of the {size}")
    return (*size.symbols, *([size.times] * (size.times != 1)))


def step_numbers(like: Traced, dtype: Any) -> Placed:
    """The number of each step, from 0. like: a value per step."""
    return Placed(index_of(like).astype(dtype), (TIME,))


def broadcast_to(x: Placed, axes: Axes) -> Placed:
    """The value repeated until it has these axes."""
    value = broadcast(beside(x, axes), features_of(axes))
    if isinstance(value, Traced):
        value = to_extent(value, extent_of(axes))
    return x.with_value(value, axes)


# ---- rows --------------------------------------------------------------------------------------------------


def shape_row(call: Call) -> Placed:
    """The result of Shape: the sizes of the axes."""
    sizes = call.x.sizes[call.attributes.get("start", 0) : call.attributes.get("end")]
    return constant(sizes_array(sizes))


def transpose_row(call: Call) -> Placed:
    """The result of Transpose."""
    x = call.x
    order = [x.axis(axis) for axis in call.attributes.get("perm", range(len(x.axes))[::-1])]
    if sorted(order) != list(range(len(x.axes))):
        raise ModelError(f"its perm {order} is not a permutation of {len(x.axes)} axes")
    return transpose(x, order)


def unsqueeze_row(call: Call) -> Placed:
    """The result of Unsqueeze."""
    places = call.whole(1, "axes") or []
    return unsqueeze(call.x, [call.x.axis(place, len(places)) for place in places])


def squeeze_row(call: Call) -> Placed:
    """The result of Squeeze."""
    places = call.whole(1, "axes")
    return squeeze(call.x, None if places is None else [call.x.axis(place) for place in places])


def reshape_row(call: Call) -> Placed:
    """The result of Reshape, in which a size of 0 is that of the operand."""
    target = list(np.ravel(call.operand(1).array)) if call.optional(1) else list(call.attributes["shape"])
    if not call.attributes.get("allowzero"):
        target = [call.x.sizes[place] if is_number(size, 0) else size for place, size in enumerate(target)]
    return reshape(call.x, target)


def flatten_row(call: Call) -> Placed:
    """The result of Flatten: the axes before `axis` become the first of two axes, the others the second."""
    x = call.x
    axis = x.axis(int(call.attributes.get("axis", 1)), 1)
    return reshape(x, [product(x.sizes[:axis]), product(x.sizes[axis:])])


def expand_row(call: Call) -> Placed:
    """The result of Expand."""
    return expand(call.x, list(np.ravel(call.operand(1).array)))


def constant_of_shape_row(call: Call) -> Placed:
    """The result of ConstantOfShape: an array filled with one number."""
    number = np.asarray(call.attributes.get("value", np.zeros(1, "float32"))).reshape(())
    return expand(constant(number), list(np.ravel(call.x.array)))


def range_row(call: Call) -> Placed:
    """The result of Range: a constant if its bounds are known, or the index of each step if it ends at the
    number of steps.
    """
    numbers = [call.operand(place) for place in range(3)]
    begin, end, step = (number.array.item() for number in numbers)
    if isinstance(end, Size) and (begin, step) == (0, 1) and end.times == 1 and call.like is not None:
        if end.symbols != (STEPS,):
            raise AxesError("it is a range over the sequences, whose number differs between calls")
        dtype = np.result_type(numbers[0].value, numbers[2].value)
        return replace(step_numbers(call.like, dtype), fact=STEP if call.padded else None)
    if isinstance(begin, Size | Last) or isinstance(end, Size | Last) or isinstance(step, Size | Last):
        raise ModelError(
            "its bounds include the number of sequences or steps, which differs between calls; a range over "
            "steps is supported from 0 to their number in steps of 1"
        )
    check_room([int(abs((end - begin) / step))])
    return constant(np.arange(begin, end, step))


def constant_row(call: Call) -> Placed:
    """The result of Constant."""
    kinds = {
        "value": None,
        "value_float": "float32",
        "value_floats": "float32",
        "value_int": "int64",
        "value_ints": "int64",
    }
    for name, dtype in kinds.items():
        if name in call.attributes:
            return constant(np.asarray(call.attributes[name], dtype))
    raise ModelError(
        f"this constant is not an array of numbers: it has {', '.join(call.attributes) or 'none'}"
    )


SHAPING: dict[str, Rules] = {
    "Constant": constant_row,
    "ConstantOfShape": constant_of_shape_row,
    "Expand": expand_row,
    "Flatten": flatten_row,
    "Range": range_row,
    "Reshape": reshape_row,
    "Shape": shape_row,
    "Squeeze": squeeze_row,
    "Transpose": transpose_row,
    "Unsqueeze": unsqueeze_row,
}
"""The rule of each operator."""
