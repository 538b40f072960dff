"""NumPy's sums, extremes, scans and orders over features of a step's values."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.trace.indexing import feature_axes, feature_axis
from stepnet.compiler.trace.traced import Traced, apply, refuse, reshaped, transposed
from stepnet.compiler.values.arguments import is_integer, short_repr

# NumPy returns a traced value for a traced value, which its stubs do not know.
numpy: Any = np

MOST_SORTED = 256
"""The largest size of an axis that is sorted, as each two of its numbers are compared."""


def restored(x: Traced, result: Traced, axes: tuple[int, ...], keepdims: bool) -> Traced:
    """Puts the reduced axes back into the result of a reduction, with size 1, if `keepdims` is true."""
    if not keepdims:
        return result
    rank = len(x.type.shape)
    return reshaped(result, tuple(1 if i - rank in axes else size for i, size in enumerate(x.type.shape)))


def total(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """Computes np.sum in a step, over feature axes."""
    axes = feature_axes(x, axis, "np.sum")
    return restored(x, apply("sum", x, axes=axes), axes, keepdims)


def extreme(operation: str) -> Callable[..., Traced]:
    """Makes the rule for np.max or np.min in a step. operation: "max" or "min"."""

    def rule(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
        """Computes the extreme over feature axes."""
        axes = nonempty_axes(x, feature_axes(x, axis, f"np.{operation}"), f"np.{operation}")
        return restored(x, apply(operation, x, axes=axes), axes, keepdims)

    return rule


def nonempty_axes(x: Traced, axes: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Returns the axes unchanged; raises `StepError` if one has size 0, where there is no maximum."""
    if any(x.type.shape[axis] == 0 for axis in axes):
        raise refuse(f"{name} of {x.type.element} over axis {axes}: there are no numbers to choose from")
    return axes


def argmax(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """Computes np.argmax in a step: the index of the maximum along a feature axis, which must be given."""
    if axis is None:
        raise refuse("np.argmax over all axes mixes rows; give axis=-1")
    axes = nonempty_axes(x, (feature_axis(x, axis, "np.argmax"),), "np.argmax")
    return restored(x, apply("argmax", x, axes=axes), axes, keepdims)


def argmin(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """Computes np.argmin in a step: the index of the minimum along a feature axis, which is that of the
    maximum of -x; of -1 - x for integers, where the least one has no negative. Raises `StepError` without an
    axis.
    """
    if axis is None:
        raise refuse("np.argmin over all axes mixes rows; give axis=-1")
    axes = nonempty_axes(x, (feature_axis(x, axis, "np.argmin"),), "np.argmin")
    reversed_ = -x if x.type.is_float else -1 - x.astype(np.int64)
    return restored(x, apply("argmax", reversed_, axes=axes), axes, keepdims)


def product(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """Computes np.prod in a step, over feature axes: along each the last of the prefix products."""
    axes = feature_axes(x, axis, "np.prod")
    result = x if x.type.is_float else x.astype(np.int64)
    for axis in axes:
        ends = tuple(slice(-1, None) if place == axis else slice(None) for place in range(-x.ndim, 0))
        if not result.type.shape[axis]:
            ahead = [(int(place == axis), 0) for place in range(-x.ndim, 0)]
            result = numpy.pad(result, ahead, constant_values=1)
        result = apply("cumprod", result, axis=axis)[ends]
    return result if keepdims else numpy.squeeze(result, axis=axes)


def truth(name: str, least: bool) -> Callable[..., Traced]:
    """Makes the rule for np.all or np.any in a step. name: "np.all" or "np.any".

    least: whether all numbers must be true, and not only one of them.
    """

    def rule(a: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
        """Tells, over feature axes, whether all numbers are true (none is 0), or whether one is: it counts
        those that decide. Raises `StepError` without an axis, unless `a` is a parameter.
        """
        if axis is None and not a.is_constant:
            raise refuse(f"{name} over all axes: a step cannot branch on a value; as a value, give axis=-1")
        counted = (a == 0) if least else (a != 0)
        number = total(counted.astype(np.float32), feature_axes(a, axis, name), keepdims=keepdims)
        return number == 0 if least else number > 0

    return rule


def count_nonzero(a: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """Computes np.count_nonzero in a step, over feature axes."""
    return total(a != 0, feature_axes(a, axis, "np.count_nonzero"), keepdims=keepdims)


def difference(a: Traced, n: int = 1, axis: int = -1) -> Traced:
    """Computes np.diff in a step: the differences of neighbours along a feature axis, n times. Raises
    `StepError` for an n that is no whole number from 0 on.
    """
    feature = feature_axis(a, axis, "np.diff")
    if not is_integer(n) or n < 0:
        raise refuse(f"np.diff takes differences a number of times from 0, not {short_repr(n)}")
    later, earlier = (
        tuple(part if place == feature else slice(None) for place in range(-a.ndim, 0))
        for part in (slice(1, None), slice(None, -1))
    )
    for _ in range(min(int(n), a.type.shape[feature])):
        a = (a[later] != a[earlier]) if a.dtype == np.bool_ else a[later] - a[earlier]
    return a


def scan(operation: str) -> Callable[..., Traced]:
    """Makes the rule for np.cumsum or np.cumprod in a step. operation: "cumsum" or "cumprod"."""

    def rule(a: Traced, axis: Any = None) -> Traced:
        """Computes np.cumsum or np.cumprod in a step, along a feature axis; without an axis, over a flattened
        parameter. Raises `StepError` for another value without an axis.
        """
        if axis is None and not a.is_constant:
            raise refuse(f"np.{operation} over all axes mixes rows; give axis=-1")
        x = reshaped(a, (a.type.size,)) if axis is None else a
        return apply(operation, x, axis=feature_axis(x, 0 if axis is None else axis, f"np.{operation}"))

    return rule


def mean(x: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    """Computes np.mean in a step, over feature axes; in float64 for integers, as NumPy does."""
    axes = feature_axes(x, axis, "np.mean")
    count = math.prod(x.type.shape[axis] for axis in axes)
    values = x if x.type.is_float else x.astype(np.float64)
    return restored(x, apply("divide", apply("sum", values, axes=axes), count), axes, keepdims)


def variance(x: Traced, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Traced:
    """Computes np.var in a step, over feature axes. ddof: as in NumPy, subtracted from the count."""
    axes = feature_axes(x, axis, "np.var")
    count = math.prod(x.type.shape[axis] for axis in axes)
    away = x - mean(x, axes, keepdims=True)
    degrees = max(count - ddof, 0)
    return restored(x, apply("divide", apply("sum", away * away, axes=axes), degrees), axes, keepdims)


def deviation(x: Traced, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Traced:
    """Computes np.std in a step, over feature axes. ddof: as in NumPy, subtracted from the count."""
    return apply("sqrt", variance(x, axis, ddof=ddof, keepdims=keepdims))


def norm(x: Traced, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Traced:  # noqa: A002 - NumPy's name
    """Computes np.linalg.norm of vectors in a step, along one feature axis: `ord` is 1, 2 (the default) or
    infinity; raises `StepError` for others.
    """
    if not is_integer(axis):
        raise refuse("np.linalg.norm in a step is that of vectors along one axis; give axis=-1")
    axes = (feature_axis(x, axis, "np.linalg.norm"),)
    values = x if x.type.is_float else x.astype(np.float64)
    if ord in (None, 2):
        result = apply("sqrt", apply("sum", values * values, axes=axes))
    elif ord == 1:
        result = apply("sum", apply("absolute", values), axes=axes)
    elif ord == math.inf:
        result = apply("max", apply("absolute", values), axes=nonempty_axes(x, axes, "np.linalg.norm"))
    else:
        raise refuse(f"np.linalg.norm in a step has ord 1, 2 or np.inf, not {short_repr(ord)}")
    return restored(x, result, axes, keepdims)


# ---- orders ------------------------------------------------------------------------------------------------


def sort(a: Traced, axis: Any = -1, kind: Any = None, *, stable: Any = None) -> Traced:
    """Computes np.sort in a step, along a feature axis. kind, stable: have no effect. The gradient of a
    sorted number goes to the place that it came from.
    """
    x, last = sorted_last(a, axis, "np.sort")
    numbers = x.astype(np.int64) if x.dtype == np.bool_ else x
    return back_from_last(in_places(x, numbers).astype(x.dtype), last)


def argsort(a: Traced, axis: Any = -1, kind: Any = None, *, stable: Any = None) -> Traced:
    """Computes np.argsort in a step: of equal numbers the first comes first, as with stable=True. kind,
    stable: have no effect.
    """
    x, last = sorted_last(a, axis, "np.argsort")
    return back_from_last(in_places(x, np.arange(x.type.shape[-1])), last)


def sorted_last(a: Traced, axis: Any, name: str) -> tuple[Traced, int]:
    """Returns a value with a feature axis moved to the end, to sort along it, and the place of the axis among
    the features; raises `StepError` for no axis, and for one that is too large. name: of the function.
    """
    if axis is None:
        raise refuse(f"{name} over all axes mixes rows; give axis=-1")
    count = len(a.type.shape)
    place = feature_axis(a, axis, name) + count
    if a.type.shape[place] > MOST_SORTED:
        raise refuse(
            f"{name} in a step compares each two numbers of an axis, which has at most {MOST_SORTED}, not "
            f"{a.type.shape[place]}"
        )
    return transposed(a, (*(axis for axis in range(count) if axis != place), place)), place


def back_from_last(x: Traced, place: int) -> Traced:
    """Returns a value with its last feature axis moved back to a place among the features."""
    order = [*range(len(x.type.shape) - 1)]
    order.insert(place, len(order))
    return transposed(x, tuple(order))


def in_places(x: Traced, numbers: Any) -> Traced:
    """Returns numbers in the order that sorts x along its last axis: NaN comes last, as in NumPy.

    numbers: as many as x has along this axis. A number's place is how many of x come before its own.
    """
    *ahead, size = x.type.shape
    mine, other = reshaped(x, (*ahead, size, 1)), reshaped(x, (*ahead, 1, size))
    less, same = other < mine, other == mine
    if x.type.is_float:
        mine_is_nan, other_is_nan = mine != mine, other != other
        less, same = less | (mine_is_nan & ~other_is_nan), same | (mine_is_nan & other_is_nan)
    is_before = less | (same & np.tri(size, k=-1, dtype=bool))
    places = apply("sum", is_before.astype(np.float32), axes=(-1,))
    is_here = reshaped(places, (*ahead, 1, size)) == np.arange(size, dtype=np.float32)[:, None]
    of_all = reshaped(numbers, (*ahead, 1, size)) if isinstance(numbers, Traced) else numbers
    return apply("sum", numpy.where(is_here, of_all, 0), axes=(-1,))
