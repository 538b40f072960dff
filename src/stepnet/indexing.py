"""x[...] in a step: slices of features, new axes, single features, and rows of a parameter at integers."""

from typing import Any, cast

import numpy as np

from stepnet.trace import Traced, apply, array_of, refuse, reshaped
from stepnet.types import is_integer


def indexed(x: Traced, index: Any) -> Traced:
    """What NumPy's indexing gives, as far as it leaves the rows alone."""
    items = list(cast("tuple[Any, ...]", index)) if isinstance(index, tuple) else [index]
    if x.is_constant and len(items) == 1 and isinstance(items[0], Traced):
        return apply("gather", x, items[0])
    items = without_ellipsis(items, x.ndim)
    if not x.is_constant:
        if not isinstance(items[0], slice) or items[0] != slice(None):
            raise refuse("the first index is the rows, and a step sees them all alike: write x[:, ...]")
        items = items[1:]
    return select(x, items)


def without_ellipsis(items: list[Any], rank: int) -> list[Any]:
    """The index with `...` and missing trailing axes written out."""
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > rank:
        raise refuse(f"{used} indices for {rank} axes")
    if not any(item is Ellipsis for item in items):
        items = [*items, Ellipsis]
    place = next(i for i, item in enumerate(items) if item is Ellipsis)
    return items[:place] + [slice(None)] * (rank - used) + items[place + 1 :]


def select(x: Traced, items: list[Any]) -> Traced:
    """One index per feature axis, applied: slices first, then lists, then axes dropped and added."""
    slices: list[tuple[int, int, int]] = []
    lists: list[tuple[int, list[int]]] = []
    shape: list[int] = []
    sizes = iter(enumerate(x.type.shape))
    for item in items:
        if item is None:
            shape.append(1)
            continue
        axis, size = next(sizes)
        one, kept = one_slice(item, size)
        slices.append(one)
        if is_list(item):
            lists.append((axis - len(x.type.shape), [int(place) % size for place in item]))
        if kept is not None:
            shape.append(kept)
    result = x
    if any(one != (0, size, 1) for one, size in zip(slices, x.type.shape, strict=True)):
        result = apply("slice", result, slices=tuple(slices))
    for axis, places in lists:
        result = apply("take", result, axis=axis, indices=tuple(places))
    return reshaped(result, tuple(shape))


def is_list(item: Any) -> bool:
    """Whether an index is a list of places."""
    return isinstance(item, list | np.ndarray)


def one_slice(item: Any, size: int) -> tuple[tuple[int, int, int], int | None]:
    """An axis's slice as (start, stop, step), and how many features it keeps; None for a dropped axis."""
    if isinstance(item, slice):
        try:
            start, stop, step = item.indices(size)
        except (TypeError, ValueError) as error:
            raise refuse(f"{item} is no slice of {size} features: {error}") from None
        return (start, stop, step), len(range(start, stop, step))
    if is_integer(item) and not isinstance(item, bool):
        if not -size <= item < size:
            raise refuse(f"index {item} is outside {size} features")
        return (int(item) % size, int(item) % size + 1, 1), None
    if is_list(item):
        places = array_of(item, "a list of features")
        if places.ndim != 1 or places.dtype.kind != "i" or np.any(places < -size) or np.any(places >= size):
            raise refuse(f"a list of features holds integers from {-size} to {size - 1}")
        return (0, size, 1), len(places)
    if isinstance(item, Traced):
        raise refuse("features cannot be picked by a step's own values; use np.where, or a one-hot and a sum")
    raise refuse(f"a step's value cannot be indexed by {item!r}")
