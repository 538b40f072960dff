"""Arithmetic of offsets, and checks of values, offsets, lengths and indices."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from stepnet.compiler.values.arguments import (
    array_of,
    checked_integer,
    is_jax_array,
    is_masked,
    refuse_jax_array,
    short_repr,
)
from stepnet.errors import InputError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Offsets: TypeAlias = tuple[Integers, ...]
ValuesAndOffsets: TypeAlias = tuple[Array, Offsets]
"""The result of every conversion: values [total, *features], and offsets, an array per level."""


def offsets_of(lengths: Any) -> Integers:
    """Computes the offsets, int64 [len(lengths) + 1], of sequences of these lengths that lie end to end.

    >>> offsets_of([2, 0, 3])
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def positions_of(starts: Array, lengths: Array) -> Integers:
    """Computes the indices of all steps of sequences with these starts and lengths, sequence after sequence,
    to gather the steps from an array.

    >>> positions_of(np.array([7, 0]), np.array([2, 3]))
    array([7, 8, 0, 1, 2])
    """
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(int(offsets[-1]))


def reversed_positions_of(offsets: Array) -> Integers:
    """Computes the indices of all steps of sequences with these offsets, sequence after sequence, each from
    its last step to its first, to reverse them.

    >>> reversed_positions_of(np.array([0, 2, 2, 5]))
    array([1, 0, 4, 3, 2])
    """
    ends = offsets[:-1] + offsets[1:] - 1
    return np.repeat(ends, np.diff(offsets)) - np.arange(int(offsets[-1]))


def ends_of(values: Array, offsets: Array, first: bool) -> Array:
    """Returns the last step of each sequence, or the first one if `first`; zeros for an empty sequence.

    values: the steps of all sequences. offsets: the sequences' offsets in them.

    >>> ends_of(np.array([7, 8, 9]), np.array([0, 2, 2, 3]), first=False)
    array([8, 0, 9])
    """
    rows = np.zeros((len(offsets) - 1, *values.shape[1:]), values.dtype)
    filled = offsets[1:] > offsets[:-1]
    rows[filled] = values[(offsets[:-1] if first else offsets[1:] - 1)[filled]]
    return rows


def narrow(values: Array, offsets: Offsets, start: int, stop: int) -> ValuesAndOffsets:
    """Selects the outermost sequences from `start` up to `stop`, which is excluded: returns (view of their
    values, offsets from 0 on).

    >>> narrow(np.arange(6), (np.array([0, 1, 4, 6]),), 1, 3)
    (array([1, 2, 3, 4, 5]), (array([0, 3, 5]),))
    """
    narrowed: list[Integers] = []
    for level in offsets:
        narrowed.append(level[start : stop + 1] - level[start])
        start, stop = int(level[start]), int(level[stop])
    part: Array = values[start:stop]
    return part, tuple(narrowed)


def path_of(position: int, offsets: Sequence[Array]) -> tuple[int, ...]:
    """Returns the indices, outermost first, that lead to the step at `position` among all steps, to name it
    in messages. offsets: the offsets of each level of nested sequences, outermost first.

    >>> path_of(4, [np.array([0, 1, 3]), np.array([0, 2, 2, 5])])
    (1, 1, 2)
    """
    path: list[int] = []
    for level in reversed(offsets):
        outer = int(np.searchsorted(level, position, side="right")) - 1
        path.append(position - int(level[outer]))
        position = outer
    return (position, *reversed(path))


def checked_values(values: Any, name: str) -> Array:
    """Returns values as a plain array of numbers in native byte order, copied only if necessary; an array of
    JAX unchanged. Raises `InputError`, which says `name`, if they are not an array, hold no numbers, are
    masked, or have no axis.
    """
    if is_jax_array(values):  # it stays JAX's, and results become JAX's with it
        refuse_jax_array(values, name)
        return _checked_numbers(values, name)
    if not isinstance(values, np.ndarray):
        raise InputError(
            f"{name} must be a NumPy array, not {_kind(values)}; lists go through Ragged.from_list"
        )
    if is_masked(values):
        raise InputError(f"{name} is a masked array; leave the masked steps out, or give .filled(...)")
    return _checked_numbers(np.asarray(cast("Array", values)), name)


def _checked_numbers(values: Array, name: str) -> Array:
    """Returns values of sequences in native byte order. Raises `InputError`, which names them by `name`, if
    they are not numbers or have no axis.
    """
    own_number = values.dtype.kind == "V" and values.dtype.type is not np.void  # bfloat16 and others
    if values.dtype.kind not in "biufc" and not own_number:
        hint = "; sequences of unequal length go through Ragged.from_list" if values.dtype == object else ""
        raise InputError(f"{name} has dtype {values.dtype}, and must hold numbers{hint}")
    if values.ndim == 0:
        raise InputError(f"{name} is a single number, and must have one entry per step: [total, *features]")
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def number_dtype(dtype: Any, name: str) -> np.dtype[Any]:
    """Converts a user's dtype to one of numbers, or raises `InputError` with the argument's `name`."""
    try:
        number_type = np.dtype(dtype)
    except (
        TypeError,
        ValueError,
        SyntaxError,
        DeprecationWarning,
    ):  # the errors that NumPy raises for an invalid dtype
        raise InputError(f"{name} is a dtype of numbers, not {short_repr(dtype)}") from None
    return _checked_numbers(np.zeros(1, number_type), name).dtype


def checked_features(features: Any) -> tuple[int, ...]:
    """Converts the argument `features`, a whole number or several, to a step's shape; or `InputError`."""
    sizes = tuple(cast("Any", features)) if isinstance(features, tuple | list) else (features,)
    return tuple(checked_integer(size, "features are whole numbers, the shape of one step") for size in sizes)


def checked_offsets(offsets: Any, total: int) -> Offsets:
    """Returns read-only copies of a `Ragged`'s offsets. Raises `InputError` unless there is one int64 array
    per level of nested sequences that starts at 0, never decreases, and ends at the number of entries of the
    next level, the last at `total`.
    """
    if not isinstance(offsets, tuple) or not offsets:
        raise InputError(
            f"offsets must be a tuple of arrays, one per level, and is {_kind(offsets)}; (offsets,) for one"
        )
    levels = [
        _checked_level(level, f"offsets[{number}]")
        for number, level in enumerate(cast("tuple[Any, ...]", offsets))
    ]
    spanned = [*(len(level) - 1 for level in levels[1:]), total]
    for number, (level, count) in enumerate(zip(levels, spanned, strict=True)):
        if level[-1] != count:
            spans = "values" if number + 1 == len(levels) else f"entries of offsets[{number + 1}]"
            raise InputError(
                f"offsets[{number}] ends at {level[-1]}, and must end at {count}, the number of {spans}"
            )
    return tuple(levels)


def _checked_level(value: Any, name: str) -> Integers:
    """Returns a read-only int64 copy of the offsets of one level of nested sequences. Raises `InputError`,
    with `name`, unless they are an int64 array of one axis that starts at 0 and never decreases.
    """
    level = cast("Integers", value)
    kind = level.dtype.newbyteorder("=") if isinstance(value, np.ndarray) else None
    if kind != np.int64 or level.ndim != 1 or not level.size:
        raise InputError(
            f"{name} must be a one-dimensional int64 array of NumPy that starts with 0, and is {_kind(value)}"
        )
    if level[0] != 0:
        raise InputError(
            f"{name} starts at {level[0]}, and must start at 0: subtract it, and cut the values there"
        )
    falls = level[1:] < level[:-1]
    if falls.any():
        entry = int(falls.argmax())
        raise InputError(
            f"{name} falls from {level[entry]} to {level[entry + 1]} at entry {entry}; offsets never decrease"
        )
    # Compiled code trusts offsets, so no one may be able to change them after this check.
    level = np.array(level, np.int64)
    level.flags.writeable = False
    return level


def checked_lengths(lengths: Any, count: int, limit: int, entry: str, limit_name: str) -> Integers:
    """Returns lengths as int64, one for each of `count` entries. Raises `InputError`, naming the first bad
    one, unless each is a whole number from 0 to `limit`. `entry` and `limit_name` are the names of an
    entry and of the limit in messages.
    """
    array = array_of(lengths, "the lengths")
    if array.ndim != 1 or len(array) != count:
        raise InputError(
            f"the lengths have shape {array.shape}, and must have ({count},), one for each {entry}"
        )
    if count == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"the lengths have dtype {array.dtype}, and must be whole numbers")
    bad = (array < 0) | (array > limit)
    if bad.any():
        first = int(bad.argmax())
        raise InputError(
            f"{entry} {first} has length {array[first]}, and must have 0 to {limit}, {limit_name}"
        )
    return array.astype(np.int64)


def checked_indices(indices: Any, count: int) -> Integers:
    """Returns indices of sequences as int64 from 0 on, where negative ones count from the end. Raises
    `InputError` for other values than whole numbers, and for indices beyond `count`, naming the first.
    """
    array = array_of(indices, "indices")
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        hint = "; np.flatnonzero(mask) makes them of a mask" if array.dtype == bool else ""
        raise InputError(f"indices must be whole numbers [count], not {_kind(array)}{hint}")
    if not array.size:
        return np.zeros(0, np.int64)
    bad = (array < -count) | (array >= count)
    if bad.any():
        raise InputError(f"there is no sequence {array[bad.argmax()]}: there are {count}")
    numbers = array.astype(np.int64)
    return np.where(numbers < 0, numbers + count, numbers)


def checked_index(index: Any, count: int) -> int:
    """Returns an index, negative or not, as one from 0 on; raises `InputError` if it is not below `count`."""
    try:
        number = operator.index(index)
    except TypeError:
        hint = "take(indices) takes several"
        raise InputError(
            f"a Ragged is indexed by a whole number or a slice, not {_kind(index)}; {hint}"
        ) from None
    return int(checked_indices([number], count)[0])


def slice_of(index: slice, count: int) -> tuple[int, int, int]:
    """Returns (start, stop, stride) of a slice of `count` sequences; raises `InputError` for a bad slice."""
    try:
        return index.indices(count)
    except (TypeError, ValueError) as error:
        raise InputError(f"{index} is no slice of sequences: {error}") from None


def _kind(value: Any) -> str:
    """Describes a value for error messages, as "an array of shape (2, 3) and dtype int64"."""
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        return f"an array of shape {array.shape} and dtype {array.dtype}"
    if is_jax_array(value):
        return f"an array of JAX, of shape {value.shape} and dtype {value.dtype}"
    name = f"a {type(value).__name__}"
    return "an empty tuple" if isinstance(value, tuple) and not value else name
