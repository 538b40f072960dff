"""The argument `rows` of a stream: an index, indices or a mask."""

from typing import Any, cast

import numpy as np

from stepnet.compiler.values.arguments import array_of, short_repr
from stepnet.errors import InputError
from stepnet.model.streams.moment import numbered

Array = np.ndarray
FEW = 64
"""The largest number of indices that Python checks faster than NumPy."""
INT64 = np.dtype(np.int64)


def chosen(rows: Any, count: int) -> Array:
    """Returns the argument `rows`, an index, indices or a mask, as indices; raises `InputError` if wrong.

    count: the number of rows of the stream.
    """
    if type(rows) is int and 0 <= rows < count:  # as usual
        return numbered(rows)
    chosen = np.atleast_1d(array_of(rows, "rows"))
    if chosen.dtype == bool and chosen.shape == (count,):
        return np.flatnonzero(chosen)
    if chosen.shape == (0,):
        return np.zeros(0, np.int64)
    if not count:
        raise InputError(f"rows is {short_repr(rows)}, and the stream has no rows; add(...) some")
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or ((chosen < 0) | (chosen >= count)).any():
        raise InputError(
            f"rows is an index from 0 to {count - 1}, several of them or a mask, not {short_repr(rows)}"
        )
    return cast("Array", chosen.astype(np.int64))


def few_rows(rows: Any, count: int) -> list[int] | None:
    """Lists a few indices of rows, given as an array [int64]; None for any other argument, and if a row does
    not exist (there are `count`). It takes a quarter of the time of the checks of any argument.
    """
    if type(rows) is not np.ndarray or rows.dtype != INT64 or rows.ndim != 1 or not 0 < len(rows) <= FEW:
        return None
    listed = rows.tolist()
    return listed if min(listed) >= 0 and max(listed) < count else None


def chosen_once(rows: Any, count: int) -> Array:
    """Returns the argument `rows`, an index, indices or a mask, as indices.

    Raises `InputError` if a row does not exist (there are `count`) or is named twice.
    """
    if type(rows) is int and 0 <= rows < count:  # as usual
        return numbered(rows)
    if (listed := few_rows(rows, count)) is not None and len({*listed}) == len(listed):
        return cast("Array", rows)
    indices = chosen(rows, count)
    if len(indices) == 1:
        return indices
    seen = np.zeros(count, bool)
    seen[indices] = True
    if np.count_nonzero(seen) < len(indices):
        row = int(np.bincount(indices).argmax())
        raise InputError(f"rows has the row {row} twice; name each row once")
    return indices


def sources(rows: Any, count: int) -> Array:
    """Returns the argument `rows` of a stream's method `reorder` as int64 indices; raises `InputError` if it
    does not fit.

    rows: for each row, the row whose memory it takes over. count: the number of rows of the stream.
    """
    if (listed := few_rows(rows, count)) is not None and len(listed) == count:
        return rows
    order = array_of(rows, "rows")
    if not count and order.shape == (0,):
        return np.zeros(0, np.int64)
    # Read as unsigned, a negative index is larger than every count.
    if (
        order.shape != (count,)
        or order.dtype.kind not in "iu"
        or order.astype(np.uint64).max(initial=0) >= count
    ):
        raise InputError(
            f"rows is {count} indices from 0 to {count - 1}, where each row goes on from, not "
            f"{short_repr(rows)}"
        )
    return cast("Array", order.astype(np.int64, copy=False))


def check_rows(name: str, array: Array, rows: int, some: bool = False) -> None:
    """Raises `InputError` unless an input of a step has one entry for each of the rows that take the step.

    name, array: the name of the input, for messages, and the input.
    rows: the number of these rows.
    some: whether other rows of the stream wait, for messages.
    """
    if not array.shape or array.shape[0] != rows:
        has = f"rows= names {rows}" if some else f"the stream has {rows} rows"
        raise InputError(f"{titled(name)} is {list(array.shape)}; {has}: [{rows}, features...]")


def titled(name: str) -> str:
    """Returns the words for an input of a step in messages, such as "input x". name: the name of the input;
    empty for a single input.
    """
    return f"input {name}" if name else "the input"
