"""Sequences as Python lists of arrays, and lists of such lists for more levels."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stepnet.compiler.values.arguments import array_of, checked_integer
from stepnet.errors import InputError, StepnetError
from stepnet.ragged.offsets import (
    Array,
    ValuesAndOffsets,
    checked_features,
    number_dtype,
    offsets_of,
    path_of,
)

MOST_LEVELS = 32


def from_list(
    sequences: Any, dtype: DTypeLike | None, features: int | tuple[int, ...] | None, levels: int | None
) -> ValuesAndOffsets:
    """Converts nested lists of sequences to (values of all steps, offsets of sequences), for `Ragged`.

    dtype, features, levels: the dtype, the shape of a step and the depth of nesting; None to infer them.
    Raises `InputError` if these do not fit the lists, or cannot be inferred. A sequence of shape [0] has any
    features.
    """
    if not isinstance(sequences, list | tuple):
        hint = "; an array goes through Ragged.from_padded" if _is_array(sequences) else ""
        if hasattr(sequences, "__arrow_c_array__") or hasattr(sequences, "__arrow_c_stream__"):
            hint = "; a column of Arrow goes through Ragged.from_arrow, a table through stepnet.arrow.predict"
        raise InputError(f"from_list takes a list of sequences, not a {type(sequences).__name__}{hint}")
    items = list(cast("Sequence[Any]", sequences))
    if levels is None:
        levels = max(_levels_above_arrays(items), 1)
    levels = checked_integer(levels, "a Ragged has one level or more", 1, MOST_LEVELS)
    offsets: list[NDArray[np.int64]] = []
    for _ in range(levels - 1):
        for position, item in enumerate(items):
            if not isinstance(item, list | tuple):
                name = _name(position, offsets)
                raise InputError(
                    f"{name} is a {type(item).__name__}, and with {levels} levels must be a list of sequences"
                )
        offsets.append(offsets_of([len(item) for item in items]))
        items: list[Any] = [inner for item in items for inner in item]

    target_dtype = None if dtype is None else number_dtype(dtype, "dtype")
    lengths = np.zeros(len(items), np.int64)
    arrays: dict[str, Array] = {}
    blanks: dict[str, Array] = {}  # arrays of shape [0], whose features follow from the other sequences
    for position, item in enumerate(items):
        if isinstance(item, list | tuple) and not item:
            continue
        name = _name(position, offsets)
        array = _sequence(item, name, target_dtype)
        lengths[position] = len(array)
        (blanks if array.shape == (0,) else arrays)[name] = array
    offsets.append(offsets_of(lengths))

    expected = None if features is None else checked_features(features)
    if not arrays and expected in (None, ()):
        arrays = blanks
    source = "expected are"
    if expected is None:
        if not arrays:
            raise InputError(
                "no sequence shows the shape of its features; pass features=, () for plain numbers"
            )
        first = next(iter(arrays))
        expected, source = arrays[first].shape[1:], f"{first} has"
    for name, array in arrays.items():
        if array.shape[1:] != tuple(expected):
            raise InputError(f"{name} has features {array.shape[1:]}, where {source} {tuple(expected)}")
    if not arrays:
        return np.zeros((0, *expected), target_dtype or np.float32), tuple(offsets)
    try:
        return np.concatenate(list(arrays.values()), dtype=target_dtype), tuple(offsets)
    except TypeError as error:
        raise InputError(f"the sequences have no common dtype; pass dtype=: {error}") from error


def _sequence(item: Any, name: str, target_dtype: np.dtype[Any] | None) -> Array:
    """Converts `item`, a list or an array, to one sequence: an array of steps. Python's whole numbers are
    cast to any dtype that they fit, all other values by NumPy's same_kind rule; else raises `InputError`.

    name: the name of the sequence for messages. target_dtype: the dtype; None for NumPy's own choice.
    """
    try:
        array = array_of(item, name)
        if target_dtype is not None and array.dtype.kind == "i" and isinstance(item, list | tuple):
            array = np.asarray(item, target_dtype)
    except StepnetError:
        raise
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name} does not make an array: {error}") from error
    if array.dtype == object:
        raise InputError(f"{name} holds objects, and must hold numbers")
    if array.ndim == 0:
        raise InputError(f"{name} is a single number, and must have one entry per step")
    if target_dtype is not None and not np.can_cast(array.dtype, target_dtype, "same_kind"):
        raise InputError(
            f"{name} is {array.dtype}, which {target_dtype} cannot hold; cast it with .astype first"
        )
    return array


def _levels_above_arrays(item: Any, depth: int = 0) -> int:
    """Counts the lists around the deepest array, which are levels of a `Ragged`; 0 without arrays. Raises
    `InputError` beyond `MOST_LEVELS`. depth: the number of lists around `item`.
    """
    if not isinstance(item, list | tuple):
        return 0
    if depth > MOST_LEVELS:
        raise InputError(f"the lists nest more than {MOST_LEVELS} deep, or one of them contains itself")
    levels = 0
    for inner in cast("Sequence[Any]", item):
        below = _levels_above_arrays(inner, depth + 1)
        levels = max(levels, below + 1 if below or _is_array(inner) else 0)
    return levels


def _is_array(item: Any) -> bool:
    """Tells whether an item of a list is an array with at least one axis, and so a sequence."""
    return getattr(item, "ndim", 0) > 0


def _name(position: int, offsets: Sequence[Array]) -> str:
    """Names the sequence at a position by its indices in nested lists, for messages, as "sequence 1, 0".
    position: the index among all sequences of its level. offsets: the offsets of the levels around it.
    """
    return "sequence " + ", ".join(str(index) for index in path_of(position, offsets))
