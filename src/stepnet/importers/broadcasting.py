"""Broadcasting of values with named axes, for elementwise operators, and values that meet at pairs of steps.

    x [N, T, 1] + y [N, 1, T]               [N, T, keys]    x at queries, y at keys
    products [N, T, keys] + mask [N, 1, T]  [N, T, keys]    the mask at keys

A value whose steps stand where others have keys is one at keys, and where steps stand at two places, those of
the later one are keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.types import ROWS, Extent
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.errors import ModelError
from stepnet.importers.axes import (
    ONE,
    Axes,
    AxesError,
    Axis,
    extent_of,
    features_of,
    is_feature,
    is_keys,
    is_time,
    keys_axis,
    keys_of,
    size_of,
    stated_number,
    symbols_in,
    text_of,
)
from stepnet.importers.facts import UNKNOWN
from stepnet.importers.placed import Placed, check_unpaired, stated_by
from stepnet.importers.values import at_one_extent, check_room, reshaped
from stepnet.model.attention import spread


def joint_axes(values: Sequence[Placed]) -> Axes:
    """Returns the axes that values are broadcast to, by NumPy's rules, or raises `AxesError`."""
    values = at_pairs(values)
    rank = max((len(value.axes) for value in values), default=0)
    columns = zip(*((ONE,) * (rank - len(value.axes)) + value.axes for value in values), strict=True)
    axes = tuple(joint_axis(column, values) for column in columns)
    check_unpaired(axes)
    return axes


def joint_axis(column: Sequence[Axis], values: Sequence[Placed]) -> Axis:
    """Returns the axis to which the axes of several values are broadcast, at one position.

    column: the axis of each value at this position. values: the values, for the message of the `AxesError`
    that is raised if they do not fit.
    """
    others = list(dict.fromkeys(axis for axis in column if axis != ONE))
    if all(map(is_feature, others)):
        return np.broadcast_shapes(*(features_of((axis,)) for axis in others)) if others else ONE
    if len(others) == 1:
        return others[0]
    for axis in filter(is_feature, others):
        what = " x ".join(symbols_in(tuple(other for other in others if not is_feature(other))))
        numbers = [stated_number(what, dict(value.stated)) for value in values]
        if axis[0] in numbers:
            raise AxesError(
                f"an array has a number for each of the {axis[0]} steps that the file fixes: stepnet runs "
                "models over any number of steps, so write the file with an open number of them"
            )
        raise AxesError(
            f"an axis of size {axis[0]} is combined with that of the {what}, which may have any size"
        )
    if len({size_of(axis) for axis in others}) == 1:
        raise order_error(*others[:2])
    raise AxesError(f"{' and '.join(text_of(value.axes) for value in values)} do not fit")


def order_error(first: Axis, second: Axis) -> AxesError:
    """Makes the error for combining axes that join sequences and steps in different orders."""
    return AxesError(
        "tensors are combined whose sequences and steps are joined in different orders: "
        f"{text_of((first,))} and {text_of((second,))}"
    )


def broadcastable(x: Placed, axes: Axes) -> Any:
    """Reshapes the array or traced value of x so that it broadcasts with values that have the axes `axes`,
    for an elementwise operation; returns it.

    A traced value gets as many axes of features as these, the new ones of size one. An array gets no more
    axes, as NumPy broadcasts it anyway.
    """
    padded_axes = ((1,),) * (len(axes) - len(x.axes)) + x.axes
    features = list[int]()
    for axis_of_x, axis in zip(padded_axes, axes, strict=True):
        if axis_of_x == ONE:
            features += [1] * len(features_of((axis,)))
        elif is_feature(axis_of_x) or axis_of_x == axis:
            features += features_of((axis_of_x,))
        else:
            raise order_error(axis_of_x, axis)
    if x.is_constant:
        features = features[len(features_of(axes[: len(axes) - len(x.axes)])) :]
    return reshaped(x.value, features) if tuple(features) != x.features else x.value


def applied(function: Callable[..., Any], *values: Placed) -> Placed:
    """Applies an elementwise function to values, broadcast to their joint axes; returns the result. Symbolic
    sizes can be computed with only by functions that Python's integers have; others are a `ModelError`.
    """
    values = tuple(at_pairs(values))
    axes = joint_axes(values)
    check_room(features_of(axes))
    operands = at_one_extent([broadcastable(value, axes) for value in values])
    has_sizes = any(value.is_constant and np.asarray(value.value).dtype.kind == "O" for value in values)
    if has_sizes and any(isinstance(value, Traced) for value in operands):
        raise ModelError(
            "it computes values with the number of sequences or steps, which neither the body of a loop nor "
            "a model with lengths knows"
        )
    with np.errstate(all="ignore"):
        try:
            result = function(*operands)
        except TypeError as error:
            if not has_sizes:
                raise
            raise ModelError(
                "it computes with the number of sequences or steps, but not for a shape"
            ) from error
    # A ufunc on objects may return a scalar.
    result = result if isinstance(result, Traced) else np.asarray(result)
    return Placed(result, axes, stated_by(values))


# ---- pairs of steps ----------------------------------------------------------------------------------------


def place_of(x: Placed, kind: Callable[[Axis], bool]) -> int | None:
    """Returns the position of the axis of a kind, `is_time` or `is_keys`, from the last, 1; or None."""
    return next((len(x.axes) - at for at, axis in enumerate(x.axes) if kind(axis)), None)


def has_keys(x: Placed) -> bool:
    """Tells whether a value is one at pairs of steps."""
    return place_of(x, is_keys) is not None


def keys_among(values: Sequence[Placed]) -> tuple[int, Axis] | None:
    """Finds whether an elementwise operator on these values gives a number for each pair of steps (query,
    key). Returns the position of the axis of the keys, counted from the last axis, and that axis: if one
    value is at pairs already, or if they have steps at two different positions. None if no pairs arise.
    """
    for x in values:
        at = place_of(x, is_keys)
        if at is not None:
            return at, x.axes[-at]
    places = {at: x.axes[-at] for x in values if (at := place_of(x, is_time)) is not None}
    if len(places) < 2:
        return None
    return min(places), keys_axis(places[min(places)], False)


def at_pairs(values: Sequence[Placed]) -> list[Placed]:
    """Returns the operands of an elementwise operator, whose result may have a value for each pair of steps
    (query, key): operands with a value per key are then repeated for each query; others, and operands without
    pairs, are unchanged.
    """
    found = keys_among(values)
    if found is None:
        return [*values]
    at, keys = found
    query = next(axis for x in values for axis in x.axes if is_time(axis) and place_of(x, is_time) != at)
    return [at_keys(x, at, keys, query) if place_of(x, is_time) == at else x for x in values]


def at_keys(x: Placed, at: int, keys: Axis, query: Axis) -> Placed:
    """Repeats a value per key for each query, so that it has a value at each pair of steps (query, key): that
    of the pair's key.

    at: the position of the keys, counted from the last axis. keys: the axis of the keys in the pairs. query:
    the axis of the steps that are the queries.

    Raises `ModelError` if the value has other steps than those of the keys, or is one at transposed pairs.
    """
    time = x.axes[-at]
    if has_keys(x):
        raise ModelError(
            "values at pairs of steps meet transposed ones: make both in one order, as "
            "q @ k.transpose(-1, -2) in place of (k @ q.transpose(-1, -2)).transpose(-1, -2)"
        )
    if keys_of(keys) != time:
        raise ModelError(f"values at {text_of((time,))} meet values at {text_of((keys,))}")
    axes = (*x.axes[: len(x.axes) - at], keys, *x.axes[len(x.axes) - at + 1 :])
    if not isinstance(x.value, Traced) or len(x.value.type.extent) <= len(ROWS):
        return replace(x, axes=axes)
    return replace(x, value=spread_any(x.value, extent_of((query, keys))), axes=axes)


def spread_any(value: Traced, extent: Extent) -> Traced:
    """Repeats a value per key, of any dtype, at each pair of a query and the key. extent: names the axes of
    the pairs. Integers are computed in float64, exact up to 2 ** 53.
    """
    kind = kind_of_dtype(value.dtype)
    if kind == "float":
        return spread(value, extent)
    wide = spread(value.astype(np.float32 if kind == "bool" else np.float64), extent)
    return apply("not_equal", wide, 0) if kind == "bool" else wide.astype(value.dtype)


def without_facts_of_queries(values: Sequence[Placed | None]) -> list[Placed | None]:
    """Returns the operands of an operator. Where some have a value per query and others a value per key,
    facts about the padding of the former are dropped: they are about queries, and facts of a result at pairs
    of steps (query, key) are about keys that are padding.
    """
    known = [x for x in values if x is not None]
    found = keys_among(known)
    if found is None:
        return [*values]

    def is_of_queries(x: Placed) -> bool:
        """Tells whether a value has steps, and these are queries."""
        return place_of(x, is_keys) is None and place_of(x, is_time) not in (None, found[0])

    return [replace(x, fact=UNKNOWN) if x is not None and is_of_queries(x) else x for x in values]
