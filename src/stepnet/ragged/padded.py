"""Sequences as a padded array and lengths. Padding exists only in this module."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepnet.compiler.values.arguments import array_of, flag, is_integer, short_repr
from stepnet.errors import InputError
from stepnet.ragged.offsets import (
    Array,
    ValuesAndOffsets,
    checked_lengths,
    checked_values,
    offsets_of,
    positions_of,
)

MOST_STEPS = 2**40


def from_padded(x: Any, lengths: Any, time_major: bool) -> ValuesAndOffsets:
    """Converts a padded array to (values of all steps, offsets of sequences), without its padding.

    x: the array. lengths: the number of steps of each sequence; None for all. time_major: whether the time
    axis is first.
    """
    time_major = flag(time_major, "time_major")
    try:
        x = checked_values(array_of(x, "the padded array"), "the padded array")
    except InputError as error:
        if not isinstance(x, list | tuple):
            raise
        raise InputError("the padded array has rows of unequal length; use from_list for these") from error
    axes = "[time, batch, *features]" if time_major else "[batch, time, *features]"
    if x.ndim < 2:
        raise InputError(f"a padded array is {axes}, and this one has shape {x.shape}")
    steps, batch = x.shape[:2] if time_major else x.shape[1::-1]
    if lengths is None:
        checked = np.full(batch, steps, np.int64)
    else:
        checked = checked_lengths(lengths, batch, steps, "sequence", f"the steps of {axes} {x.shape}")
    offsets = offsets_of(checked)
    if not time_major and offsets[-1] == batch * steps:
        return x.reshape(batch * steps, *x.shape[2:]), (offsets,)
    rows, times = _rows_and_times(offsets)
    return (x[times, rows] if time_major else x[rows, times]), (offsets,)


def to_padded(
    values: Array, offsets: NDArray[np.int64], time_major: bool, length: int | None, fill: Any
) -> Array:
    """Converts values of all steps and offsets of sequences to a padded array.

    time_major: whether the time axis is first. length: its size; None for the longest sequence's. fill: the
    value of the padding.
    """
    lengths = np.diff(offsets)
    time_major, steps = flag(time_major, "time_major"), int(lengths.max(initial=0))
    if length is not None:
        if not is_integer(length) or not 0 <= length <= MOST_STEPS:
            raise InputError(f"length is {short_repr(length)}, and must be 0 or more, a whole number")
        steps = int(length)
    if (lengths > steps).any():
        first = int((lengths > steps).argmax())
        raise InputError(
            f"sequence {first} has {lengths[first]} steps, more than length={steps}; pass a larger length="
        )
    batch = (steps, len(lengths)) if time_major else (len(lengths), steps)
    padded = np.full((*batch, *values.shape[1:]), _checked_fill(fill, values.dtype), values.dtype)
    rows, times = _rows_and_times(offsets)
    padded[(times, rows) if time_major else (rows, times)] = values
    return padded


def _rows_and_times(offsets: NDArray[np.int64]) -> tuple[Array, Array]:
    """Returns (index of the sequence, index in the sequence) of each step, to index a padded array. offsets:
    where each sequence starts among all steps, and the end of the last one.
    """
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows, positions_of(np.zeros_like(lengths), lengths)


def _checked_fill(fill: Any, dtype: np.dtype[Any]) -> Array:
    """Casts the padding's value to the dtype, as an array of no axis. Raises `InputError` if the dtype cannot
    hold it: a fraction in whole numbers, a complex number in real ones, an array.
    """
    is_integral = dtype.kind in "biu"
    refusal = f"fill {short_repr(fill)} does not fit {dtype}"
    if array_of(fill, "fill").ndim or (is_integral and array_of(fill, "fill").dtype.kind not in "biu"):
        raise InputError(refusal)
    if array_of(fill, "fill").dtype.kind == "c" and dtype.kind != "c":
        raise InputError(refusal)
    try:
        filled = np.full((), fill, dtype)
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{refusal}: {error}") from error
    if is_integral and filled != fill:
        raise InputError(refusal)
    return filled
