"""Sequences as Arrow list arrays, which have the same form: values and offsets. Only offsets are copied."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.values.entry_points import imported
from stepnet.errors import InputError, pip_command
from stepnet.ragged.offsets import Array, Offsets, ValuesAndOffsets, offsets_of, path_of, positions_of


def pyarrow_module(name: str = "pyarrow", what: str = "sequences in Arrow's form") -> Any:
    """Imports the module `name` of pyarrow; raises `InputError`, that `what` need it, if it is missing."""
    try:
        return imported(name)
    except ImportError as error:
        raise InputError(f"{what} need pyarrow: {pip_command('stepnet[arrow]')}") from error


def from_arrow(array: Any) -> ValuesAndOffsets:
    """Converts an Arrow list array, or chunked array, to (values of all steps, offsets of sequences), for
    `Ragged`. The values share its memory, unless several chunks are joined. Raises `InputError` for another
    type, a damaged array, and a null.
    """
    pyarrow = pyarrow_module()
    chunked = isinstance(array, pyarrow.ChunkedArray)
    if not chunked and not isinstance(array, pyarrow.Array):
        raise InputError(f"from_arrow takes a pyarrow Array or ChunkedArray, not a {type(array).__name__}")
    check_type(array.type)
    check_whole(array)
    try:
        if chunked:
            array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"the Arrow array cannot be made one: {error}") from error
    _refuse_null(array, [], ())
    return parts_of(array)


def list_axes(whole_type: Any) -> tuple[list[bool], list[int], Any]:
    """Splits a nested Arrow list type into its levels; returns (whether the list of each level is a
    `large_list`, the sizes of the fixed-size lists inside, the type of their elements). The lists are levels
    of a `Ragged`, outermost first, and the fixed-size lists its features.
    """
    types, large, features, inside = pyarrow_module().types, list[bool](), list[int](), whole_type
    while types.is_list(inside) or types.is_large_list(inside):
        large.append(types.is_large_list(inside))
        inside = inside.value_type
    while types.is_fixed_size_list(inside):
        features.append(inside.list_size)
        inside = inside.value_type
    return large, features, inside


def numbers_of(inside: Any) -> Any:
    """Returns the Arrow type of the numbers in lists of type `inside`, or in its dictionary."""
    return inside.value_type if pyarrow_module().types.is_dictionary(inside) else inside


def lists_from(kinds: Iterable[Any]) -> Iterator[str]:
    """Yields, for messages, how columns whose rows are sequences, but no lists, are made lists, once for each
    way: tensors, fixed-size lists and list views. Other types are skipped.

    kinds: the Arrow types of the columns.
    """
    pyarrow, kinds = pyarrow_module(), list(kinds)
    types = pyarrow.types
    if any(map(types.is_fixed_size_list, kinds)) or any(map(types.is_list_view, kinds)):
        yield "; column.cast(pyarrow.list_(column.type.value_type)) makes lists"
    if any(isinstance(kind, pyarrow.FixedShapeTensorType) for kind in kinds):
        arrays = "column.combine_chunks().to_numpy_ndarray()"
        yield f"; stepnet.Ragged.from_list([*{arrays}]).to_arrow() makes lists"


def check_type(whole_type: Any) -> None:
    """Raises `InputError` for an Arrow type (`whole_type`) that is no list, or nested list, of numbers or of
    fixed-size lists of numbers.
    """
    types = pyarrow_module().types
    large, _, inside = list_axes(whole_type)
    if not large:
        nulls = "; one without sequences is column.cast(pyarrow.list_(pyarrow.float32()))"
        advice = nulls if types.is_null(whole_type) else "".join(lists_from([whole_type])) or "; cast it"
        raise InputError(
            f"the Arrow array is {whole_type}, and must be a list or large_list, one per sequence{advice}"
        )
    numbers = numbers_of(inside)
    if not (types.is_boolean(numbers) or types.is_integer(numbers) or types.is_floating(numbers)):
        hint = "; its numbers may be others in each batch" if numbers is not inside else ""
        raise InputError(
            f"the Arrow array is {whole_type}, and its lists must hold numbers, not {inside}{hint}"
        )


def check_whole(array: Any) -> None:
    """Raises `InputError` if an Arrow array's offsets or indices lead outside it, as in a damaged file."""
    try:
        array.validate(full=True)
    except pyarrow_module().ArrowInvalid as error:
        raise InputError(f"the Arrow array is damaged: {error}") from error


def parts_of(array: Any, first: int = 0) -> ValuesAndOffsets:
    """Converts an Arrow list array, already checked, to (values, offsets); a null row becomes an empty
    sequence. Raises `InputError` for any other null.

    first: the index in the whole column of the array's first row, for messages.
    """
    pyarrow = pyarrow_module()
    offsets: list[Array] = []
    while isinstance(array, pyarrow.ListArray | pyarrow.LargeListArray):
        if offsets:
            _refuse_null(array, offsets, (), first)
        empty = array.is_null() if array.null_count else None
        level = np.from_dlpack(array.offsets).astype(np.int64) if len(array) else np.zeros(1, np.int64)
        array = array.values.slice(int(level[0]), int(level[-1] - level[0]))
        level -= level[0]
        if empty is not None:
            array, level = _without(array, level, empty.to_numpy(zero_copy_only=False))
        offsets.append(level)
    total = len(array)
    features: tuple[int, ...] = ()
    while isinstance(array, pyarrow.FixedSizeListArray):
        _refuse_null(array, offsets, features, first)
        size = array.type.list_size
        features = (*features, size)
        array = array.values.slice(array.offset * size, len(array) * size)
    if isinstance(array, pyarrow.DictionaryArray):
        array = array.dictionary_decode()
    _refuse_null(array, offsets, features, first)
    # Arrow stores booleans as bits; only these are copied. For `to_numpy` pyarrow imports pandas.
    is_bits = pyarrow.types.is_boolean(array.type)
    values: Array = array.to_numpy(zero_copy_only=False) if is_bits else np.from_dlpack(array)
    return values.reshape(total, *features), tuple(offsets)


def _without(entries: Any, level: Array, empty: Array) -> tuple[Any, Array]:
    """Removes the entries of the rows marked in `empty`: in Arrow, a null row may have entries. Returns
    (entries, offsets).

    entries: the entries of all rows, an Arrow array. level: the offsets of rows in the entries.
    empty: a boolean per row.
    """
    lengths = np.diff(level)
    if not lengths[empty].any():
        return entries, level
    lengths[empty] = 0
    return entries.take(numbers(positions_of(level[:-1], lengths))), offsets_of(lengths)


def numbers(values: Array) -> Any:
    """Returns an Arrow array of an array's numbers in order, which shares its memory if that is in order.

    `pyarrow.array` gives the same, but imports pandas, where it is installed, to ask whether the array is
    its own.
    """
    pyarrow, flat = pyarrow_module(), np.ascontiguousarray(values.reshape(-1))
    if flat.dtype.kind not in "fiu" or not (flat.dtype.isnative and flat.flags.aligned):
        return pyarrow.array(flat)
    kind = pyarrow.from_numpy_dtype(flat.dtype)
    return pyarrow.Array.from_buffers(kind, len(flat), [None, pyarrow.py_buffer(flat)])


def to_arrow(values: Array, offsets: Offsets, large: Sequence[bool] | None = None) -> Any:
    """Converts values of all steps and offsets of sequences to an Arrow list array.

    large: whether the list of each level is a `large_list`; by default those whose offsets require it.
    """
    pyarrow = pyarrow_module()
    try:
        array = numbers(values)
    except (pyarrow.ArrowNotImplementedError, pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise InputError(
            f"Arrow has no {values.dtype}; convert the values first, with_values(...)"
        ) from error
    for axis in reversed(range(1, values.ndim)):
        fixed = pyarrow.list_(array.type, values.shape[axis])
        array = pyarrow.Array.from_buffers(fixed, prod(values.shape[:axis]), [None], children=[array])
    if large is None:
        large = [level[-1] > np.iinfo(np.int32).max for level in offsets]
    for level, wide in zip(reversed(offsets), reversed(large), strict=True):
        if wide:
            array = pyarrow.LargeListArray.from_arrays(numbers(level), array)
        else:
            array = pyarrow.ListArray.from_arrays(numbers(level.astype(np.int32)), array)
    return array


def with_nulls(array: Any, null: Array | None) -> Any:
    """Returns an Arrow array of results (lists, structs or numbers) with nulls in the rows that have no
    result; it shares the data.

    null: a boolean per row, True for a null; None for no nulls.
    """
    if null is None:
        return array
    pyarrow, kind = pyarrow_module(), array.type
    bits = pyarrow.py_buffer(np.packbits(~null, bitorder="little"))
    children = None
    if pyarrow.types.is_struct(kind):
        children = [array.field(index) for index in range(kind.num_fields)]
    elif pyarrow.types.is_nested(kind):
        children = [array.values]
    buffers = array.buffers()[
        1 : 1 if pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_struct(kind) else 2
    ]
    return pyarrow.Array.from_buffers(kind, len(array), [bits, *buffers], children=children)


def _refuse_null(array: Any, offsets: list[Array], features: tuple[int, ...], first: int = 0) -> None:
    """Raises `InputError` if an Arrow array has a null, with the row of the first one.

    offsets: the offsets of each level of lists around the array. features: the sizes of fixed-size lists
    inside.
    first: the index in the whole column of the first row, which is added to the row in the message.
    """
    if array.null_count:
        null = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
        path = path_of(null // max(prod(features), 1), offsets)
        entry = f"row {path[0] + first}" + "".join(f", entry {index}" for index in path[1:])
        raise InputError(
            f"the Arrow array has a null in {entry}; drop such rows or fill them (pyarrow.compute.fill_null)"
        )
