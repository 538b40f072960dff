"""Join of the dictionaries of a column: an Arrow file has only one for all rows of a column.

    batch 1   k: x y x    dictionary [x y]        ->  [x y]
    batch 2   k: y z      dictionary [z y]        ->  [x y z]: only z is written, as a delta

Parquet files and Arrow streams may have another dictionary for each batch of rows.
"""

from typing import Any

import numpy as np

from stepnet.errors import InputError, printable
from stepnet.layout.options import option
from stepnet.ragged.arrow import pyarrow_module

MOST = 1 << 26
"""The largest number of bytes of a dictionary that is joined from several: it stays in memory."""


class Dictionaries:
    """The joined dictionaries of the columns of a file that is being written.

    before: for each column an array without rows that holds its dictionary so far. unjoined: the reason, by
    column, why pyarrow cannot join its dictionaries; such a column can be written as long as its dictionary
    does not change.
    """

    def __init__(self) -> None:
        """Starts without the dictionaries of a result's columns, which its first batch sets."""
        self.before, self.unjoined = dict[str, Any](), dict[str, str]()

    def unify(self, records: Any) -> Any:
        """Rewrites the columns of a record batch so that the dictionary of each begins with the entries of
        the batches before, as an Arrow file needs; returns the new batch. Raises `InputError` if a joined
        dictionary has more than `MOST` bytes, and for ordered dictionaries whose orders differ.
        """
        columns = [
            self._column(field.name, column) if may_hold(field.type) else column
            for field, column in zip(records.schema, records.columns, strict=True)
        ]
        return pyarrow_module().RecordBatch.from_arrays(columns, schema=records.schema)

    def _column(self, name: str, column: Any) -> Any:
        """Returns one column of a batch, rewritten to use one dictionary, which joins the dictionaries of
        earlier batches and is stored in `before`. If pyarrow cannot join them, notes the reason in `unjoined`
        and returns the column as it is. Raises `InputError` for a dictionary that is too large, and for
        orders that differ.
        """
        pyarrow = pyarrow_module()
        if name not in self.before and has_empty(column):
            self.before[name] = with_value(column.type)
        plain, before = pyarrow.types.is_dictionary(column.type), self.before.get(name)
        if plain and column.dictionary.null_count:
            column = without_nulls(column)
        if plain and before is not None and column.dictionary.equals(before.dictionary):
            return column  # the comparison takes far less time than a join
        try:
            # The first dictionary is joined too: this drops duplicate values.
            both = pyarrow.chunked_array([column.slice(0, 0) if before is None else before, column])
            unified = both.unify_dictionaries().chunk(1)
        except pyarrow.ArrowException as error:
            self.unjoined[name] = str(error)
            return column
        if unified.slice(0, 0).nbytes > max(MOST, column.slice(0, 0).nbytes):
            raise InputError(not_written(name, f"together they have more than {MOST} bytes"))
        if plain and column.type.ordered:
            codes = pyarrow_module("pyarrow.compute").index_in(column.dictionary, unified.dictionary)
            if (np.diff(codes.to_numpy(zero_copy_only=False)) < 0).any():
                raise InputError(not_written(name, "they are ordered, and their orders differ"))
        self.before[name] = unified.slice(0, 0)
        return unified

    def refusal_text(self) -> str:
        """Returns the message for a batch whose dictionaries cannot be joined with earlier ones, else ""."""
        return next((not_written(*pair) for pair in self.unjoined.items()), "")


def has_empty(column: Any) -> bool:
    """Returns True if a dictionary in a column has only nulls or no values: pyarrow cannot add to such."""
    if pyarrow_module().types.is_dictionary(column.type):
        return len(column.dictionary) == column.dictionary.null_count
    return any(has_empty(inside) for inside in children(column))


def children(column: Any) -> list[Any]:
    """Returns the child columns of a column of lists, maps or structs; none for any other type."""
    types = pyarrow_module().types
    if types.is_struct(column.type):
        return [column.field(index) for index in range(column.type.num_fields)]
    if types.is_map(column.type):
        return [column.keys, column.items]
    lists = types.is_list, types.is_large_list, types.is_fixed_size_list
    return [column.values] if any(is_list(column.type) for is_list in lists) else []


def with_value(type_: Any) -> Any:
    """Makes an array of type `type_` without rows, with one value (of zero bytes) in each dictionary of it,
    also nested ones, because pyarrow adds nothing to empty dictionaries.
    """
    pyarrow = pyarrow_module()
    types = pyarrow.types
    if types.is_dictionary(type_):
        bits = pyarrow.nulls(1, type_.value_type).buffers()[1:]
        value = pyarrow.Array.from_buffers(type_.value_type, 1, [None, *bits], 0)
        none = pyarrow.array([], type_.index_type)
        return pyarrow.DictionaryArray.from_arrays(none, value, ordered=type_.ordered)
    if types.is_struct(type_):
        inside = [with_value(field.type) for field in type_]
        return pyarrow.StructArray.from_arrays(inside, fields=list(type_))
    if types.is_map(type_):
        inside = with_value(type_.key_type), with_value(type_.item_type)
        return pyarrow.MapArray.from_arrays(pyarrow.array([0], "int32"), *inside, type=type_)
    if types.is_fixed_size_list(type_):
        return pyarrow.FixedSizeListArray.from_arrays(with_value(type_.value_type), type=type_)
    for is_list, kind, offset in (
        (types.is_list, pyarrow.ListArray, "int32"),
        (types.is_large_list, pyarrow.LargeListArray, "int64"),
    ):
        if is_list(type_):
            return kind.from_arrays(pyarrow.array([0], offset), with_value(type_.value_type), type=type_)
    return pyarrow.nulls(0, type_)


def no_rows(schema: Any) -> Any:
    """Makes a record batch without rows; pyarrow's own function fails for some types of dictionaries."""
    pyarrow = pyarrow_module()
    return pyarrow.RecordBatch.from_arrays([pyarrow.nulls(0, field.type) for field in schema], schema=schema)


def not_written(name: str, reason: str) -> str:
    """Returns the message for a column whose dictionaries cannot be joined for the given reason."""
    # Parquet has no dictionaries with nulls either.
    remedy = "" if "nulls" in reason else f"choose {option('format')}, or "
    return (
        f"column `{printable(name)}` has several dictionaries, and in an Arrow file it has one: they cannot "
        f"be joined ({' '.join(reason.split()).rstrip('.')}); {remedy}cast the column"
    )


def without_nulls(column: Any) -> Any:
    """Moves nulls from a column's dictionary to its indices: pyarrow joins no dictionaries with nulls."""
    values = column.dictionary.drop_null()
    codes = pyarrow_module("pyarrow.compute").index_in(column.dictionary, values)
    indices = codes.take(column.indices).cast(column.type.index_type)
    return pyarrow_module().DictionaryArray.from_arrays(indices, values, ordered=column.type.ordered)


def check_indices(records: Any) -> None:
    """Raises pyarrow's `ArrowInvalid` if indices in a record batch lead outside of their dictionaries, which
    would crash a reader. pyarrow's Parquet reader does not check them.
    """
    for field, column in zip(records.schema, records.columns, strict=True):
        if may_hold(field.type):
            column.validate(full=True)


def may_hold(type_: Any) -> bool:
    """Tells if an Arrow type may have a dictionary, itself or nested; true for all extension types.

    >>> import pyarrow as pa
    >>> may_hold(pa.list_(pa.dictionary(pa.int32(), pa.string()))), may_hold(pa.string())
    (True, False)
    """
    return "dictionary<" in str(type_) or isinstance(type_, pyarrow_module().BaseExtensionType)
