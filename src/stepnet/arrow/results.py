"""The outputs of a model as an Arrow column: of steps a list for each row, of rows a value for each.

Ragged [2 sequences, 64 features]   list<fixed_size_list<float>[64]>
array [2, 64]                       fixed_size_list<float>[64]
{"h": ..., "c": ...}                struct<h: ..., c: ...>
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.ragged import Ragged
from stepnet.ragged.arrow import pyarrow_module, to_arrow, with_nulls
from stepnet.values.structure import named_leaves

Array = np.ndarray


def result_column(outputs: Any, null: Array | None, large: Sequence[bool]) -> Any:
    """The column of a model's outputs. null: the rows that have none; None where all have.

    large: whether the lists of each level are large ones, as those of the model's input are, so that a
    stream of batches has one type.
    """
    columns = {name: array_of(leaf, large) for name, leaf in named_leaves(outputs)}
    if list(columns) == [""]:
        return with_nulls(columns[""], null)
    return with_nulls(pyarrow_module().StructArray.from_arrays([*columns.values()], [*columns]), null)


def array_of(output: Any, large: Sequence[bool]) -> Any:
    """One output as an Arrow array."""
    if isinstance(output, Ragged):
        return to_arrow(output.values, output.offsets, large[: output.levels])
    return to_arrow(output, ())
