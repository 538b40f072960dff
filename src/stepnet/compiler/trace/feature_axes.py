"""The axis arguments of NumPy functions, as axes of features.

A step sees the rows as the first axis. No function may move this axis or reduce over it.
"""

from collections.abc import Sequence
from typing import Any, cast

from stepnet.compiler.trace.traced import ROWS_AXIS, Traced, refuse
from stepnet.compiler.values.arguments import is_integer, short_repr


def feature_axis(x: Traced, axis: Any, name: str) -> int:
    """Translates an axis as the step sees it to a feature axis, counted from the end; refuses the rows.

    name: the name of the function, for the message.
    """
    if not isinstance(cast("Any", x), Traced):
        raise refuse(f"{name} takes a value of the step, not {short_repr(x)}")
    rank = x.ndim
    if not is_integer(axis) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise refuse(f"{name}: axis {axis} does not exist; the value has {rank} axes")
    position = int(axis) % rank
    if not x.is_constant and position == 0:
        raise refuse(
            f"{name} over axis {axis} mixes rows: every row is a sequence of its own; use a feature axis"
        )
    return position - rank


def feature_axes(x: Traced, axis: Any, name: str) -> tuple[int, ...]:
    """Translates the axes of a reduction to feature axes, counted from the end; refuses the rows.

    axis: an axis, a tuple, or None for all. name: the name of the function, for the message.
    """
    if axis is None:
        if not x.is_constant:
            raise refuse(f"{name} over all axes mixes rows: every row is a sequence of its own; give axis=-1")
        return tuple(range(-x.ndim, 0))
    axes = listed(axis) if isinstance(axis, tuple) else [axis]
    normalized_axes = tuple(sorted(feature_axis(x, axis, name) for axis in axes))
    if len(set(normalized_axes)) < len(normalized_axes):
        raise refuse(f"{name}: {axis} names an axis twice")
    return normalized_axes


def listed(value: Any) -> list[Any]:
    """Returns the items of a tuple or list as a list; anything else as a list of one item."""
    return list(cast("Sequence[Any]", value)) if isinstance(value, tuple | list) else [value]


def without_rows(x: Traced, sizes: list[Any], advice: str) -> list[Any]:
    """Removes the size of the rows from a shape as the step writes it; raises `StepError` if it does not come
    first. advice: the message.
    """
    if x.is_constant:
        return sizes
    if not sizes or (sizes[0] is not ROWS_AXIS and sizes[0] != -1):
        raise refuse(advice)
    return sizes[1:]
