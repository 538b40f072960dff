"""The outputs of a model as an Arrow column: a list per row for outputs of steps, a value per row for others.

Ragged [2 sequences, 64 features]   list<fixed_size_list<float>[64]>
array [2, 64]                       fixed_size_list<float>[64]
{"h": ..., "c": ...}                struct<h: ..., c: ...>
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.values.structure import named_leaves
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.arrow import pyarrow_module, to_arrow, with_nulls

Array = np.ndarray


def result_column(outputs: Any, null: Array | None, large: Sequence[bool]) -> Any:
    """Makes the Arrow column of a model's outputs. null: bool per row, True for a null; None for no nulls.

    large: for each level, whether its lists have 64-bit offsets; taken from the input column, so that all
    batches of a stream have one type. Raises `InputError` for no outputs, and for two outputs of one name.
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
    """Converts one output to an Arrow array."""
    if isinstance(output, Ragged):
        return to_arrow(output.values, output.offsets, large[: output.levels])
    return to_arrow(output, ())
