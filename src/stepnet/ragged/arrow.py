"""Sequences as Arrow list arrays, which are the same thing: values and offsets. Only offsets are copied."""

from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from stepnet.errors import InputError
from stepnet.ragged.offsets import Array, Offsets, Parts, path_of


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise InputError("sequences in Arrow's form need pyarrow: pip install stepnet[arrow]") from error


def from_arrow(array: Any) -> Parts:
    """The values and offsets of an Arrow list array. See `Ragged.from_arrow`."""
    pyarrow = _pyarrow()
    chunked = isinstance(array, pyarrow.ChunkedArray)
    if not chunked and not isinstance(array, pyarrow.Array):
        raise InputError(f"from_arrow takes a pyarrow Array or ChunkedArray, not a {type(array).__name__}")
    whole_type = array.type
    lists = (pyarrow.ListArray, pyarrow.LargeListArray)
    if not (pyarrow.types.is_list(whole_type) or pyarrow.types.is_large_list(whole_type)):
        raise InputError(
            f"the Arrow array is {whole_type}, and must be a list or large_list, one per sequence; cast it"
        )
    try:
        array.validate(full=True)  # what comes out of a file may lie about its offsets
        if chunked:
            array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"the Arrow array is damaged or cannot be made one: {error}") from error

    offsets: list[Array] = []
    while isinstance(array, lists):
        _refuse_null(array, offsets, ())
        level = array.offsets.to_numpy().astype(np.int64) if len(array) else np.zeros(1, np.int64)
        offsets.append(level - level[0])
        array = array.values.slice(int(level[0]), int(level[-1] - level[0]))
    total = len(array)
    features: tuple[int, ...] = ()
    while isinstance(array, pyarrow.FixedSizeListArray):
        _refuse_null(array, offsets, features)
        size = array.type.list_size
        features = (*features, size)
        array = array.values.slice(array.offset * size, len(array) * size)
    boolean = pyarrow.types.is_boolean(array.type)
    if not (boolean or pyarrow.types.is_integer(array.type) or pyarrow.types.is_floating(array.type)):
        raise InputError(
            f"the Arrow array is {whole_type}, and its lists must hold numbers, not {array.type}"
        )
    _refuse_null(array, offsets, features)
    # Arrow holds booleans as bits, and those alone are copied.
    values = array.to_numpy(zero_copy_only=not boolean)
    return values.reshape(total, *features), tuple(offsets)


def to_arrow(values: Array, offsets: Offsets) -> Any:
    """The Arrow list array. See `Ragged.to_arrow`."""
    pyarrow = _pyarrow()
    try:
        array = pyarrow.array(values.reshape(-1))
    except (pyarrow.ArrowNotImplementedError, pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise InputError(
            f"Arrow has no {values.dtype}; convert the values first, with_values(...)"
        ) from error
    for axis in reversed(range(1, values.ndim)):
        fixed = pyarrow.list_(array.type, values.shape[axis])
        array = pyarrow.Array.from_buffers(fixed, prod(values.shape[:axis]), [None], children=[array])
    for level in reversed(offsets):
        if level[-1] <= np.iinfo(np.int32).max:
            array = pyarrow.ListArray.from_arrays(pyarrow.array(level.astype(np.int32)), array)
        else:
            array = pyarrow.LargeListArray.from_arrays(pyarrow.array(level), array)
    return array


def _refuse_null(array: Any, offsets: list[Array], features: tuple[int, ...]) -> None:
    if array.null_count:
        null = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
        path = path_of(null // max(prod(features), 1), offsets)
        place = f"row {path[0]}" + "".join(f", entry {index}" for index in path[1:])
        raise InputError(
            f"the Arrow array has a null in {place}; drop such rows or fill them (pyarrow.compute.fill_null)"
        )
