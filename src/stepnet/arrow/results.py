"""The outputs of a model as an Arrow column: of steps a list for each row, of rows a value for each.

Ragged [2 sequences, 64 features]   list<fixed_size_list<float>[64]>
array [2, 64]                       fixed_size_list<float>[64]
{"h": ..., "c": ...}                struct<h: ..., c: ...>
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.arrow import pyarrow_module, to_arrow, with_nulls
from stepnet.values.structure import named_leaves

Array = np.ndarray


def result_column(outputs: Any, null: Array | None, large: Sequence[bool]) -> Any:
    """The column of a model's outputs. null: the rows that have none; None where all have.

    large: whether the lists of each level are large ones, as those of the model's input are, so that a
    stream of batches has one type. Raises `InputError` for no outputs, and for several of one name.
    """
    leaves = list(named_leaves(outputs))
    columns = {name: array_of(leaf, large) for name, leaf in leaves}
    if not leaves:
        raise InputError("the model gives no outputs, so there is nothing for a column")
    if len(columns) < len(leaves):
        twice = next(name for place, (name, _) in enumerate(leaves) if name in dict(leaves[:place]))
        raise InputError(f"two outputs of the model are called `{twice}`; rename one of them")
    if list(columns) == [""]:
        return with_nulls(columns[""], null)
    return with_nulls(pyarrow_module().StructArray.from_arrays([*columns.values()], [*columns]), null)


def array_of(output: Any, large: Sequence[bool]) -> Any:
    """One output as an Arrow array."""
    if isinstance(output, Ragged):
        return to_arrow(output.values, output.offsets, large[: output.levels])
    return to_arrow(output, ())
