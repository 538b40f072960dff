"""The dictionaries of a column joined into one, as an Arrow file has one for all rows of a column.

    batch 1   k: x y x    dictionary [x y]        ->  [x y]
    batch 2   k: y z      dictionary [z y]        ->  [x y z], of which z alone is written, as a delta

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
    """The dictionaries of the columns of a file so far.

    before: no rows of each column, with these dictionaries. unjoined: the columns whose dictionaries pyarrow
    cannot join, and why; these can be written as long as they do not change.
    """

    def __init__(self) -> None:
        self.before, self.unjoined = dict[str, Any](), dict[str, str]()

    def joined(self, records: Any) -> Any:
        """A record batch with dictionaries that begin with those of the batches before it.

        Raises `InputError` for a dictionary that joined with those before it has more than `MOST` bytes, and
        for an ordered one that has its values in another order.
        """
        columns = [
            self._column(field.name, column) if may_hold(field.type) else column
            for field, column in zip(records.schema, records.columns, strict=True)
        ]
        return pyarrow_module().RecordBatch.from_arrays(columns, schema=records.schema)

    def _column(self, name: str, column: Any) -> Any:
        pyarrow = pyarrow_module()
        plain, before = pyarrow.types.is_dictionary(column.type), self.before.get(name)
        if plain and column.dictionary.null_count:
            column = without_nulls(column)
        if plain and before is not None and column.dictionary.equals(before.dictionary):
            return column  # which takes far less time than to join them
        try:
            # The first one too, as that drops values that a dictionary has twice.
            both = pyarrow.chunked_array([column.slice(0, 0) if before is None else before, column])
            made = both.unify_dictionaries().chunk(1)
        except pyarrow.ArrowException as error:
            self.unjoined[name] = str(error)
            return column
        if made.slice(0, 0).nbytes > max(MOST, column.slice(0, 0).nbytes):
            raise InputError(not_written(name, f"together they have more than {MOST} bytes"))
        if plain and column.type.ordered:
            places = pyarrow_module("pyarrow.compute").index_in(column.dictionary, made.dictionary)
            if (np.diff(places.to_numpy(zero_copy_only=False)) < 0).any():
                raise InputError(not_written(name, "they are ordered, and their orders differ"))
        self.before[name] = made.slice(0, 0)
        return made

    def refused(self) -> str:
        """Why a writer refused record batches; "" if it was not for their dictionaries."""
        return next((not_written(*pair) for pair in self.unjoined.items()), "")


def not_written(name: str, reason: str) -> str:
    """The message for a column whose dictionaries cannot be joined."""
    return (
        f"column `{printable(name)}` has several dictionaries, and in an Arrow file it has one: they cannot "
        f"be joined ({' '.join(reason.split()).rstrip('.')}); choose {option('format')}, or cast the column"
    )


def without_nulls(column: Any) -> Any:
    """The same rows, with nulls in the indices in place of the dictionary, where pyarrow joins none."""
    values = column.dictionary.drop_null()
    places = pyarrow_module("pyarrow.compute").index_in(column.dictionary, values)
    indices = places.take(column.indices).cast(column.type.index_type)
    return pyarrow_module().DictionaryArray.from_arrays(indices, values, ordered=column.type.ordered)


def check_indices(records: Any) -> None:
    """Raises pyarrow's `ArrowInvalid` for indices outside of dictionaries, which crash what reads them.

    The reader of Parquet does not check them.
    """
    for field, column in zip(records.schema, records.columns, strict=True):
        if may_hold(field.type):
            column.validate(full=True)


def may_hold(type_: Any) -> bool:
    """Whether a type has a dictionary, itself or inside; also for all extension types.

    >>> import pyarrow as pa
    >>> may_hold(pa.list_(pa.dictionary(pa.int32(), pa.string()))), may_hold(pa.string())
    (True, False)
    """
    return "dictionary<" in str(type_) or isinstance(type_, pyarrow_module().BaseExtensionType)
