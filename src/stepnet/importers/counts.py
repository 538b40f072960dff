"""Makes the number of steps a traced value, in a model without lengths.

    Div(ReduceSum(x), Shape(x)[1])    -->    the sum of a sequence divided by its length

In such a model each sequence is computed as if it were alone, so the size of the axis of steps is its length.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.importers.axes import MixingError, is_steps
from stepnet.importers.placed import Placed
from stepnet.importers.sizes import STEPS, Last, Size
from stepnet.importers.values import reshaped
from stepnet.model.counting import at_axis, length_of


def with_counts(
    operands: Sequence[Placed | None], like: Traced, compares: bool = False
) -> tuple[Placed | None, ...]:
    """Replaces operands that are the symbolic number of steps by the length of each sequence, if another
    operand is computed or a number with a fraction, or if the number of steps is compared with a number that
    it may be. An operation on computed values needs numbers, and a symbolic size is none. Raises
    `MixingError` for an operand that is the number of sequences.

    like: a value per step, from which the lengths are taken. compares: whether the operation is a comparison.
    """
    present = [value for value in operands if value is not None]
    is_computed = any(isinstance(value.value, Traced) for value in present) or any(map(has_fraction, present))
    if not is_computed and not (compares and is_count_and_number(operands)):
        return tuple(operands)
    dtype = dtype_of_numbers(present)
    return tuple(counted(value, like, dtype) if value else None for value in operands)


def has_fraction(value: Placed) -> bool:
    """Tells whether a value is a constant of floats of which one is no integer."""
    array = value.value
    return value.is_constant and array.dtype.kind == "f" and not np.array_equal(array, np.rint(array))


def dtype_of_numbers(values: Sequence[Placed]) -> np.dtype:
    """Returns the dtype in which an operation on the number of steps is computed: the dtype of the first
    computed operand of numbers, else of the first constant of numbers that is no symbolic size, else int64.
    """
    dtypes = [np.dtype(value.value.dtype) for value in sorted(values, key=lambda each: each.is_constant)]
    return next((dtype for dtype in dtypes if dtype.kind in "fiu"), np.dtype(np.int64))


def is_count_and_number(operands: Sequence[Placed | None]) -> bool:
    """Tells whether one of two operands is the symbolic number of steps, or that minus an integer, and the
    other is one number to compare it with. If it is the number of steps itself, the file must not state it,
    and the number must be from 0 on.
    """
    if any(value is None or not value.is_constant or np.size(value.value) != 1 for value in operands):
        return False
    items = [value.value.item() for value in operands if value is not None]
    lasts = [item for item in items if isinstance(item, Last)]
    sizes = [
        item for item in items if isinstance(item, Size) and STEPS in item.symbols and item.stated is None
    ]
    numbers = [item for item in items if isinstance(item, int | float) and (lasts or item >= 0)]
    return len(sizes) + len(lasts) == len(numbers) == 1


def counted(value: Placed, like: Traced, dtype: np.dtype) -> Placed:
    """Converts an operand that is the number of steps, a multiple of it, or it minus an integer, to the same
    of each sequence's length; returns other operands as they are. Raises `MixingError` for the number of
    sequences.

    like: a value per step, from which the lengths are taken. dtype: the dtype of the result.
    """
    size = value.value.item() if value.is_constant and value.value.size == 1 else None
    if not isinstance(size, Size | Last):
        return value
    symbols = size.symbols if isinstance(size, Size) else (STEPS,)
    if len(symbols) != 1 or not is_steps(symbols[0]):
        raise MixingError("it computes with the number of sequences, which differs between calls")
    times, subtracted = (1, size.back) if isinstance(size, Last) else (size.times, 0)
    number = (length_of(at_axis(like, symbols[0])) * times - subtracted).astype(dtype)
    return replace(value, value=reshaped(number, value.value.shape))
