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


def with_counts(operands: Sequence[Placed | None], like: Traced) -> tuple[Placed | None, ...]:
    """Replaces operands that are the symbolic number of steps by the length of each sequence, if another
    operand is computed. An operation on computed values needs numbers, and a symbolic size is none. Raises
    `AxesError` for an operand that is the number of sequences. like: a value per step, from which the lengths
    are taken.
    """
    dtypes = [
        value.value.dtype for value in operands if value is not None and isinstance(value.value, Traced)
    ]
    return tuple(counted(value, like, dtypes[0]) if value and dtypes else value for value in operands)


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
