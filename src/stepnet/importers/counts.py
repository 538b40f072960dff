"""Makes the number of steps a traced value, in a model without lengths.

    Div(ReduceSum(x), Shape(x)[1])    -->    the sum of a sequence divided by its length

In such a model each sequence is computed as if it were alone, so the size of the axis of steps is its length.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.importers.axes import AxesError
from stepnet.importers.placed import Placed
from stepnet.importers.sizes import STEPS, Last, Size
from stepnet.importers.values import reshaped
from stepnet.model.counting import length_of


def with_counts(
    operands: Sequence[Placed | None], like: Traced, compares: bool = False
) -> tuple[Placed | None, ...]:
    """Replaces operands that are the symbolic number of steps by the length of each sequence, if another
    operand is computed, or if the number of steps is compared with a number that it may be. An operation on
    computed values needs numbers, and a symbolic size is none. Raises `AxesError` for an operand that is the
    number of sequences.

    like: a value per step, from which the lengths are taken. compares: whether the operation is a comparison.
    """
    dtypes = [
        value.value.dtype for value in operands if value is not None and isinstance(value.value, Traced)
    ]
    if compares and not dtypes and is_count_and_number(operands):
        dtypes = [np.dtype(np.int64)]
    return tuple(counted(value, like, dtypes[0]) if value and dtypes else value for value in operands)


def is_count_and_number(operands: Sequence[Placed | None]) -> bool:
    """Tells whether operands are the number of steps, which the file does not state, and one number from 0
    on.
    """
    if any(value is None or not value.is_constant or np.size(value.value) != 1 for value in operands):
        return False
    items = [value.value.item() for value in operands if value is not None]
    sizes = [
        item for item in items if isinstance(item, Size) and STEPS in item.symbols and item.stated is None
    ]
    numbers = [item for item in items if isinstance(item, int | float) and item >= 0]
    return len(sizes) == len(numbers) == 1


def counted(value: Placed, like: Traced, dtype: np.dtype) -> Placed:
    """Converts an operand that is the number of steps, a multiple of it, or it minus an integer, to the same
    of each sequence's length; returns other operands as they are. Raises `AxesError` for the number of
    sequences.

    like: a value per step, from which the lengths are taken. dtype: the dtype of the result.
    """
    size = value.value.item() if value.is_constant and value.value.size == 1 else None
    if not isinstance(size, Size | Last):
        return value
    if isinstance(size, Size) and size.symbols != (STEPS,):
        raise AxesError("it computes with the number of sequences, which differs between calls")
    times, subtracted = (1, size.back) if isinstance(size, Last) else (size.times, 0)
    number = (length_of(like) * times - subtracted).astype(dtype)
    return replace(value, value=reshaped(number, value.value.shape))
