"""NumPy's own functions on a step's values: which operations each one is.

Every rule takes the arguments of the NumPy function. Axes are the ones the step sees, rows first; an axis
that holds the rows is refused.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

from stepnet.arguments import is_integer, shown
from stepnet.dtypes import DTYPES
from stepnet.einsum import einsum, tensordot
from stepnet.trace import (
    ROWS_AXIS,
    Traced,
    apply,
    array_of,
    builder_of,
    filled,
    is_weak,
    kind_of,
    lifted,
    refuse,
    reshaped,
    transposed,
)
from stepnet.types import ROWS
from stepnet.ufuncs import dot

# What NumPy makes of a traced value is a traced value, which its stubs do not know.
numpy: Any = np

MOST_PARTS = 2**12
"""Into how many parts features are split where most of them may be empty."""


def feature_axis(x: Traced, axis: Any, doing: str) -> int:
    """An axis as the step sees it, counted from the end of the features; refuses the rows."""
    if not isinstance(cast("Any", x), Traced):
        raise refuse(f"{doing} takes a value of the step, not {shown(x)}")
    rank = x.ndim
    if not is_integer(axis) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise refuse(f"{doing}: axis {axis} is none of the {rank} axes")
    position = int(axis) % rank
    if not x.is_constant and position == 0:
        raise refuse(
            f"{doing} over axis {axis} mixes rows: every row is a sequence of its own; use a feature axis"
        )
    return position - rank


def feature_axes(x: Traced, axis: Any, doing: str) -> tuple[int, ...]:
    """The axes to reduce over, counted from the end."""
    if axis is None:
        if not x.is_constant:
            raise refuse(
                f"{doing} over all axes mixes rows: every row is a sequence of its own; give axis=-1"
            )
        return tuple(range(-x.ndim, 0))
    axes = listed(axis) if isinstance(axis, tuple) else [axis]
    found = tuple(sorted(feature_axis(x, one, doing) for one in axes))
    if len(set(found)) < len(found):
        raise refuse(f"{doing}: {axis} names an axis twice")
    return found


def listed(value: Any) -> list[Any]:
    """The items of a tuple or list; a list of one for anything else."""
    return list(cast("Sequence[Any]", value)) if isinstance(value, tuple | list) else [value]


def without_rows(x: Traced, sizes: list[Any], advice: str) -> list[Any]:
    """The features of a shape as the step writes it, rows first; refuses any other first size."""
    if x.is_constant:
        return sizes
    if not sizes or (sizes[0] is not ROWS_AXIS and sizes[0] != -1):
        raise refuse(advice)
    return sizes[1:]


def kept(x: Traced, result: Traced, axes: tuple[int, ...], keepdims: bool) -> Traced:
    """The result of a reduction, with the axes as ones where they are to stay."""
    if not keepdims:
        return result
    rank = len(x.type.shape)
    return reshaped(result, tuple(1 if i - rank in axes else size for i, size in enumerate(x.type.shape)))


def total(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """The sum over feature axes."""
    axes = feature_axes(x, axis, "np.sum")
    return kept(x, apply("sum", x, axes=axes), axes, keepdims)


def extreme(operation: str) -> Callable[..., Traced]:
    """A rule for np.max or np.min."""

    def rule(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
        axes = of_some(x, feature_axes(x, axis, f"np.{operation}"), f"np.{operation}")
        return kept(x, apply(operation, x, axes=axes), axes, keepdims)

    return rule


def of_some(x: Traced, axes: tuple[int, ...], doing: str) -> tuple[int, ...]:
    """The axes; refuses one of no features, none of which is the largest."""
    if any(x.type.shape[axis] == 0 for axis in axes):
        raise refuse(f"{doing} of {x.type.element} over axis {axes}: there are no numbers to choose from")
    return axes


def argmax(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """Where the largest is along one axis."""
    if axis is None:
        raise refuse("np.argmax over all axes mixes rows; give axis=-1")
    axes = of_some(x, (feature_axis(x, axis, "np.argmax"),), "np.argmax")
    return kept(x, apply("argmax", x, axes=axes), axes, keepdims)


def scan(operation: str) -> Callable[..., Traced]:
    """A rule for np.cumsum or np.cumprod."""

    def rule(a: Traced, axis: Any = None) -> Traced:
        if axis is None and not a.is_constant:
            raise refuse(f"np.{operation} over all axes mixes rows; give axis=-1")
        x = reshaped(a, (a.type.size,)) if axis is None else a
        return apply(operation, x, axis=feature_axis(x, 0 if axis is None else axis, f"np.{operation}"))

    return rule


def mean(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """The mean over feature axes."""
    axes = feature_axes(x, axis, "np.mean")
    count = math.prod(x.type.shape[one] for one in axes)
    values = x if x.type.is_float else x.astype(np.float64)
    return kept(x, apply("divide", apply("sum", values, axes=axes), count), axes, keepdims)


def variance(x: Traced, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Traced:
    """The variance over feature axes."""
    axes = feature_axes(x, axis, "np.var")
    count = math.prod(x.type.shape[one] for one in axes)
    away = x - mean(x, axes, keepdims=True)
    degrees = max(count - ddof, 0)
    return kept(x, apply("divide", apply("sum", away * away, axes=axes), degrees), axes, keepdims)


def deviation(x: Traced, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Traced:
    """The standard deviation over feature axes."""
    return apply("sqrt", variance(x, axis, ddof=ddof, keepdims=keepdims))


def where(condition: Any, chosen: Any, other: Any) -> Traced:
    """One of two values, by a condition."""
    values = tuple(value_or_number(value) for value in (chosen, other))
    dtype = np.result_type(*(value if is_weak(value) else kind_of(value) for value in values))
    builder = builder_of((condition, *values))
    numbers = [Traced(builder, lifted(builder, value, values)).astype(dtype) for value in values]
    if not isinstance(condition, Traced):
        condition = np.asarray(condition)
    if condition.dtype != np.bool_:
        condition = condition != 0
    return apply("where", condition, *numbers)


def value_or_number(value: Any) -> Any:
    """A step's value, or a number, which is weak, as they are; anything else as an array of numbers."""
    if isinstance(value, Traced | bool | int | float):
        return value
    array = array_of(value, "a constant")
    if array.dtype.name not in DTYPES:
        raise refuse(f"a constant of dtype {array.dtype} cannot enter a step; use one of {', '.join(DTYPES)}")
    return array


def clip(
    x: Any,
    a_min: Any = None,
    a_max: Any = None,
    *,
    min: Any = None,  # noqa: A002 - NumPy's name
    max: Any = None,  # noqa: A002 - NumPy's name
) -> Traced:
    """The value kept between two bounds."""
    if any(one is not None for one in (a_min, a_max)) and any(one is not None for one in (min, max)):
        raise refuse("np.clip takes two bounds by place or by the names min and max, not by both")
    low, high = a_min if min is None else min, a_max if max is None else max
    if (dtype := kind_of(x)).kind == "i":  # no bound is what lies beyond all integers of the dtype
        low = None if type(low) is int and low <= np.iinfo(dtype).min else low
        high = None if type(high) is int and high >= np.iinfo(dtype).max else high
    if low is None and high is None:
        return numpy.positive(x)
    above = x if low is None else apply("maximum", x, low)
    return above if high is None else apply("minimum", above, high)


def reshape(x: Traced, shape: Any, order: str = "C") -> Traced:
    """The features laid out anew; the first size is the rows: x.shape[0], or -1."""
    if order != "C":
        raise refuse("reshape in a step is in C order")
    advice = "reshape keeps the rows first: write x.reshape(x.shape[0], ...) or x.reshape(-1, ...)"
    sizes = without_rows(x, listed(shape), advice)
    known = math.prod(int(size) for size in sizes if size != -1)
    full = x.type.size
    if (
        sizes.count(-1) > 1
        or (-1 in sizes and (known == 0 or full % known))
        or (-1 not in sizes and known != full)
    ):
        raise refuse(f"{x.type.element} cannot be laid out as {tuple(sizes)}")
    return reshaped(x, tuple(full // known if size == -1 else int(size) for size in sizes))


def transpose(x: Traced, axes: Sequence[int] | None = None) -> Traced:
    """The axes in another order; the rows stay first."""
    rank = x.ndim
    given = list(range(rank - 1, -1, -1)) if axes is None else listed(axes)
    order = [axis % rank for axis in given if is_integer(axis) and -rank <= axis < rank]
    if len(given) != rank or sorted(order) != list(range(rank)):
        raise refuse(f"transpose of {rank} axes wants each of them once, not {axes}")
    lead = 0 if x.is_constant else 1
    if lead and order[0] != 0:
        raise refuse("transpose would move the rows; keep axis 0 first")
    return transposed(x, tuple(axis - lead for axis in order[lead:]))


def swapaxes(x: Traced, first: int, second: int) -> Traced:
    """Two feature axes exchanged."""
    order = list(range(x.ndim))
    a, b = (feature_axis(x, axis, "np.swapaxes") for axis in (first, second))
    order[a], order[b] = order[b], order[a]
    return transpose(x, order)


def moveaxis(x: Traced, source: Any, destination: Any) -> Traced:
    """Feature axes moved to other places."""
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


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Traced:
    """Features side by side."""
    builder = builder_of(tuple(arrays))
    values = [Traced(builder, lifted(builder, value, arrays)) for value in arrays]
    rows = next((value for value in values if not value.is_constant), values[0])
    place = feature_axis(rows, axis, "np.concatenate")
    dtype = np.result_type(*(value.dtype for value in values))
    if any(value.is_constant != rows.is_constant for value in values):
        values = [in_every_row(value, len(rows.type.shape)) for value in values]
    return apply("concatenate", *(value.astype(dtype) for value in values), axis=place)


def in_every_row(value: Traced, rank: int) -> Traced:
    """A parameter of `rank` feature axes as the same features in every row."""
    if not value.is_constant:
        return value
    if len(value.type.shape) != rank:
        raise refuse(f"a parameter {value.type.element} does not lie beside {rank} feature axes")
    return apply("expand", value, extent=ROWS)


def broadcast_to_features(x: Traced, shape: tuple[int, ...]) -> Traced:
    """The features repeated until they have `shape`."""
    return x if x.type.shape == shape else apply("broadcast", x, rank=len(x.type.shape), shape=shape)


def stack(arrays: Sequence[Any], axis: int = 0) -> Traced:
    """Values side by side along a new feature axis."""
    if axis == 0 and not all(isinstance(a, Traced) and a.is_constant for a in arrays):
        raise refuse("np.stack over axis 0 would move the rows; use axis=1 or axis=-1")
    return concatenate([np.expand_dims(value, axis) for value in arrays], axis)


def expand_dims(x: Traced, axis: Any) -> Traced:
    """The value with new feature axes of size one."""
    given = listed(axis)
    rank = x.ndim + len(given)
    places = {one % rank for one in given if is_integer(one) and -rank <= one < rank}
    if len(places) < len(given):
        raise refuse(f"np.expand_dims to {rank} axes wants places among them, each once, not {axis}")
    lead = 0 if x.is_constant else 1
    if lead and 0 in places:
        raise refuse(f"np.expand_dims at axis {axis} would stand before the rows")
    sizes = iter(x.type.shape)
    return reshaped(x, tuple(1 if place in places else next(sizes) for place in range(lead, rank)))


def squeeze(x: Traced, axis: Any = None) -> Traced:
    """The value without feature axes of size one."""
    rank = len(x.type.shape)
    if axis is None:
        axes = tuple(place for place, size in enumerate(x.type.shape, -rank) if size == 1)
    else:
        axes = feature_axes(x, axis, "np.squeeze")
    if any(x.type.shape[one] != 1 for one in axes):
        raise refuse(f"np.squeeze of {x.type.element}: an axis to drop is not of size one")
    return reshaped(x, tuple(size for i, size in enumerate(x.type.shape) if i - rank not in axes))


def split(x: Traced, parts: Any, axis: int = 0) -> list[Traced]:
    """The features in parts along one axis: a number of equal ones, or the places to cut at."""
    place = feature_axis(x, axis, "np.split")
    size = x.type.shape[place]
    if is_integer(parts):
        if not 1 <= parts <= max(size, MOST_PARTS) or size % int(parts):
            raise refuse(f"np.split: {size} features do not divide into {parts} equal parts")
        cuts = list(range(0, size + 1, size // int(parts))) if size else [0] * (int(parts) + 1)
    else:
        places = array_of(parts, "the places to cut at")
        if places.ndim != 1 or (places.dtype.kind not in "iu" and places.size):
            raise refuse(f"np.split takes a number of parts, or the places to cut at, not {shown(parts)}")
        cuts = [0, *places.tolist(), size]
    index = [slice(None)] * x.ndim
    pieces: list[Traced] = []
    for start, stop in pairwise(cuts):
        index[place] = slice(start, stop)
        pieces.append(x[tuple(index)])
    return pieces


def array_split(x: Traced, parts: Any, axis: int = 0) -> list[Traced]:
    """The features in parts along one axis, the first ones larger by one where they do not divide."""
    if not is_integer(parts):
        return split(x, parts, axis)
    size = x.type.shape[feature_axis(x, axis, "np.array_split")]
    if not 1 <= parts <= MOST_PARTS:
        raise refuse(f"np.array_split makes from 1 to {MOST_PARTS} parts, not {parts}")
    lengths = [size // int(parts) + (place < size % int(parts)) for place in range(int(parts))]
    return split(x, [sum(lengths[:place]) for place in range(1, int(parts))], axis)


def full_like(x: Traced, value: Any, dtype: Any = None) -> Traced:
    """A value of the same shape with one number everywhere."""
    wanted = np.dtype(dtype) if dtype is not None else x.dtype
    constant = Traced(x.builder, x.builder.constant(filled(x.type.shape, value, wanted)))
    return constant if x.is_constant else in_every_row(constant, len(x.type.shape))


def zeros_like(x: Traced, dtype: Any = None) -> Traced:
    """A value of the same shape with 0 everywhere."""
    return full_like(x, 0, dtype)


def ones_like(x: Traced, dtype: Any = None) -> Traced:
    """A value of the same shape with 1 everywhere."""
    return full_like(x, 1, dtype)


def ndim(x: Traced) -> int:
    """The number of axes that the step sees."""
    return x.ndim


def shape(x: Traced) -> tuple[Any, ...]:
    """The shape that the step sees."""
    return x.shape


def broadcast_to(x: Traced, shape: Sequence[Any]) -> Traced:
    """The features repeated until they have a shape."""
    sizes = without_rows(x, list(shape), "np.broadcast_to keeps the rows first: (x.shape[0], ...)")
    try:
        fits = np.broadcast_shapes(x.type.shape, tuple(sizes)) == tuple(sizes)
    except ValueError:
        fits = False
    if not fits:
        raise refuse(f"{x.type.element} does not broadcast to features {tuple(sizes)}")
    return broadcast_to_features(x, tuple(sizes))


def take(x: Traced, indices: Any, axis: Any = None) -> Traced:
    """Rows of a parameter at a step's integers, or features at constant places."""
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


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.sum: total,
    np.max: extreme("max"),
    np.amax: extreme("max"),
    np.min: extreme("min"),
    np.amin: extreme("min"),
    np.argmax: argmax,
    np.cumsum: scan("cumsum"),
    np.cumprod: scan("cumprod"),
    np.mean: mean,
    np.var: variance,
    np.std: deviation,
    np.where: where,
    np.clip: clip,
    np.reshape: reshape,
    np.transpose: transpose,
    np.swapaxes: swapaxes,
    np.moveaxis: moveaxis,
    np.concatenate: concatenate,
    np.stack: stack,
    np.expand_dims: expand_dims,
    np.squeeze: squeeze,
    np.split: split,
    np.array_split: array_split,
    np.zeros_like: zeros_like,
    np.ones_like: ones_like,
    np.full_like: full_like,
    np.broadcast_to: broadcast_to,
    np.take: take,
    np.dot: dot,
    np.einsum: einsum,
    np.tensordot: tensordot,
    np.copy: Traced.copy,
    np.ndim: ndim,
    np.shape: shape,
}
