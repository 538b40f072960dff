"""Indices and axes as a step writes them, with the rows first, as features: x[...], and the arguments `axis`.

x[...] takes slices of features, new axes, single features, and rows of a parameter at integers. An index has
one item per feature axis, and `None` for each new axis. Slices are applied first. Lists of integers, and
single integers next to lists, are paired as in NumPy: as one list of flat indices into their axes.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stepnet.compiler.trace.traced import ROWS_AXIS, Traced, apply, array_of, misfit, refuse, reshaped
from stepnet.compiler.values.arguments import is_integer, short_repr

Array = np.ndarray


def indexed(x: Traced, index: Any) -> Traced:
    """Computes x[index] in a step, as NumPy does; raises `StepError` if it would select rows. A parameter may
    be indexed by a value of the step: integers that select its rows.
    """
    items = list(cast("tuple[Any, ...]", index)) if isinstance(index, tuple) else [index]
    if isinstance(items[0], str):
        node = x.builder.nodes[x.number]
        title = f"`{node.name}`" if node.operation == "input" else "a value"
        raise refuse(
            f"{title} is an array, and has no {items[0]!r}, as a dict has; a step is called as (x, memory, "
            "params), in this order"
        )
    if isinstance(items[0], Traced) and items[0].dtype == bool:
        raise refuse(
            "an index is a condition, which selects another number of values in each row: write "
            "np.where(condition, x, 0)"
        )
    if x.is_constant and len(items) == 1 and isinstance(items[0], Traced):
        return apply("gather", x, items[0])
    if (
        x.ndim == 1
        and not x.is_constant
        and sum(item is not None and item is not Ellipsis for item in items) > 1
    ):
        raise misfit(
            "a value of one number in each row has no axis of features to index: read it whole, or give an "
            "input a last axis, x[..., None], and a memory features, memory=1",
            x.builder,
            [x.number],
        )
    items = without_ellipsis(items, x.ndim)
    if not x.is_constant:
        if not isinstance(items[0], slice) or items[0] != slice(None):
            raise misfit(
                "the first index selects rows, but a step treats all rows alike: write x[:, ...]",
                x.builder,
                [x.number],
            )
        items = items[1:]
    return select(x, items)


def without_ellipsis(items: list[Any], rank: int) -> list[Any]:
    """Replaces `...` and missing trailing axes of an index of an array with `rank` axes by full slices.
    Raises `StepError` for more indices than axes, and for several `...`.
    """
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > rank:
        raise refuse(f"{used} indices for {rank} axes")
    indices = [index for index, item in enumerate(items) if item is Ellipsis]
    if len(indices) > 1:
        raise refuse("an index has `...` once, not more often")
    index = indices[0] if indices else len(items)
    return items[:index] + [slice(None)] * (rank - used) + items[index + 1 :]


def select(x: Traced, items: list[Any]) -> Traced:
    """Computes x[:, items...] in a step, for an index with one item per feature axis and None per new axis.
    Slices are applied first, then lists of indices, then new axes. A single integer drops its axis.
    """
    sizes = iter(x.type.shape)
    entries = [None if item is None else entry(item, next(sizes)) for item in items]
    if any(isinstance(item, Array) and item.ndim for item in entries):
        chosen = [index for index, item in enumerate(entries) if isinstance(item, Array)]
        return paired(x, entries, chosen[0], chosen[-1] + 1)
    slices = [(int(item), int(item) + 1, 1) if isinstance(item, Array) else item for item in entries]
    shape = kept_sizes([item for item in entries if not isinstance(item, Array)])
    return reshaped(sliced(x, [bounds for bounds in slices if bounds is not None]), tuple(shape))


def paired(x: Traced, entries: list[Any], first: int, last: int) -> Traced:
    """Applies an index whose entries from `first` to before `last` are arrays of indices, which are broadcast
    against each other and paired, as in NumPy. Other entries are slices (start, stop, step), or None for a
    new axis. Raises `StepError` for arrays that do not broadcast, and if slices are among these entries.
    """
    between: list[Any] = entries[first:last]
    if not all(isinstance(item, Array) for item in between):
        raise refuse(
            "an index has lists, or a list and a number, on both sides of a slice, and NumPy would "
            "move the selected axis to the front; index one axis after the other: x[:, [0, 1]][:, :, "
            ":, 0]"
        )
    ahead, behind = entries[:first], entries[last:]
    before, after = ([item for item in group if item is not None] for group in (ahead, behind))
    axes = x.type.shape[len(before) : len(before) + len(between)]
    try:
        together = np.broadcast_arrays(*between)
    except ValueError:
        sizes = " and ".join(str(indices.shape) for indices in between)
        raise refuse(f"lists of indices of shapes {sizes} do not broadcast") from None
    positions = sum(math.prod(axes[axis + 1 :]) * indices for axis, indices in enumerate(together))
    result = sliced(x, [*before, *((0, size, 1) for size in axes), *after])
    result = reshaped(result, (*kept_sizes(before), math.prod(axes), *kept_sizes(after)))
    flat = tuple(int(index) for index in np.ravel(positions))
    result = apply("take", result, axis=-1 - len(after), indices=flat)
    return reshaped(result, (*kept_sizes(ahead), *np.shape(positions), *kept_sizes(behind)))


def kept_sizes(entries: list[Any]) -> list[int]:
    """Returns the sizes of axes after slices (start, stop, step); None, which adds an axis, counts 1."""
    return [1 if item is None else len(range(*item)) for item in entries]


def sliced(x: Traced, slices: list[tuple[int, int, int]]) -> Traced:
    """Applies a slice (start, stop, step) to each feature axis; returns x itself if nothing changes."""
    everything = [(0, size, 1) for size in x.type.shape]
    return x if slices == everything else apply("slice", x, slices=tuple(slices))


def entry(item: Any, size: int) -> tuple[int, int, int] | Array:
    """Reads the index of one axis of this size: a slice as (start, stop, step), or integers as an array of
    indices counted from 0. A single integer becomes an array without axes. Raises `StepError` for anything
    else.
    """
    if isinstance(item, slice):
        return slice_of(cast("slice", item), size)
    if is_integer(item) and not isinstance(item, bool):
        if not -size <= item < size:
            raise refuse(f"index {item} is outside {size} features")
        return np.array(item % size)
    if isinstance(item, list | tuple | range | Array):
        return checked_indices(item, size)
    if isinstance(item, Traced):
        raise refuse(
            "features cannot be indexed by a value of the step; use np.where, or "
            "stepnet.one_hot(index, size), a product and a sum"
        )
    raise refuse(f"a step's value cannot be indexed by {item!r}")


def slice_of(item: slice, size: int) -> tuple[int, int, int]:
    """Reads a slice of an axis as (start, stop, step); (0, 0, 1) if it is empty. Only a stop may be -1:
    before the first element. Raises `StepError` for bounds that are no integers, and for a step of 0.
    """
    try:
        start, stop, step = item.indices(size)
    except (TypeError, ValueError) as error:
        raise refuse(f"{item} is no slice of {size} features: {error}") from None
    return (start, stop, step) if len(range(start, stop, step)) else (0, 0, 1)


def checked_indices(item: Any, size: int) -> Array:
    """Reads a list of indices of an axis, as integers counted from its start; raises `StepError` for indices
    outside of an axis of `size` entries, or no integers.
    """
    nothing = not isinstance(item, Array) and not len(item)
    indices = np.empty(0, np.int64) if nothing else array_of(item, "an index")
    if indices.dtype.kind not in "iu" or np.any(indices < -size) or np.any(indices >= size):
        raise refuse(f"a list of features holds integers from {-size} to {size - 1}")
    return np.where(indices < 0, indices.astype(np.int64) + size, indices)


# ---- axes --------------------------------------------------------------------------------------------------


def feature_axis(x: Traced, axis: Any, name: str) -> int:
    """Translates an axis as the step sees it to a feature axis, counted from the end. Raises `StepError` for
    the axis of the rows, and for one that x does not have.

    name: the name of the function, for the message.
    """
    if not isinstance(cast("Any", x), Traced):
        raise refuse(f"{name} takes a value of the step, not {short_repr(x)}")
    rank = x.ndim
    if not is_integer(axis) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise refuse(f"{name}: axis {axis} does not exist; the value has {rank} axes{over_steps(x)}")
    position = int(axis) % rank
    if not x.is_constant and position == 0:
        raise refuse(
            f"{name} over axis {axis} mixes rows: every row is a sequence of its own; use a feature axis"
            f"{over_steps(x)}"
        )
    return position - rank


def over_steps(x: Traced) -> str:
    """Returns advice for a value of a model at each step, which has no axes [batch, time]; else ""."""
    at_steps = len(x.type.extent) > 1
    return '; steps are no axis of a value: over them write sn.reduce(x, "mean")' if at_steps else ""


def feature_axes(x: Traced, axis: Any, name: str) -> tuple[int, ...]:
    """Translates the axes of a reduction to feature axes, counted from the end. Raises `StepError` for the
    axis of the rows, and for one that x does not have.

    axis: an axis, a tuple, or None for all. name: the name of the function, for the message.
    """
    if axis is None:
        if not x.is_constant:
            raise refuse(
                f"{name} over all axes mixes rows: every row is a sequence of its own; give axis=-1"
                f"{over_steps(x)}"
            )
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
