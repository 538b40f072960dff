"""The memory before the first step of a call, and the number of steps before it: the arguments `initial`
and `begun`.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stepnet.compiler.values.arguments import LARGEST, array_of, is_array, is_integer, short_repr
from stepnet.compiler.values.structure import arranged, leaves, skeleton, titled_leaves
from stepnet.errors import InputError
from stepnet.model.batch import LENGTHS_ADVICE, checked_array

Array = np.ndarray

ZEROS = "zeros"
MOST_BEGUN = LARGEST // 2
"""The largest number of steps before a call, such that the number after it still fits an int64."""


def begun_steps(begun: Any, count: int) -> Array:
    """Returns the argument `begun`, the steps that each sequence ran in earlier calls, as int64 [count].

    Raises `InputError` for other values than whole numbers from 0.
    """
    array = array_of(begun, "begun")
    if not array.size and array.shape == (count,):
        return np.zeros(0, np.int64)
    whole = array.shape in ((), (count,)) and array.dtype.kind in "iu"
    if not whole or ((array < 0) | (array > MOST_BEGUN)).any():
        raise InputError(
            f"begun is a whole number from 0, or {count} of them, one per sequence, not {short_repr(begun)}; "
            f"the most is {MOST_BEGUN}"
        )
    return np.ascontiguousarray(np.broadcast_to(array, count), np.int64)


def initial_arrays(initial: Any, memory: Any, count: int, argument: str = "memory") -> list[Array | None]:
    """Checks the argument `initial` of a call against the memory; returns an array per memory, None for
    zeros. Raises `InputError` if structure, shape or dtype do not fit.

    memory: the structure of the memory, with a `Spec` (features and dtype) for each array.
    count: the number of sequences.
    argument: the name of the step's argument for the memory, for messages.
    """
    expected = list(titled_leaves(memory, argument))
    if initial is None or is_zeros(initial):
        return [None] * len(expected)
    initial = arranged(initial, memory)
    if is_lengths(initial) and all(spec.shape for _, spec in expected):
        raise InputError(f"initial is the memory before the first step, not whole numbers; {LENGTHS_ADVICE}")
    if skeleton(initial) != skeleton(memory):
        shapes = ", ".join(str([count, *spec.shape]) for _, spec in expected)
        raise InputError(
            f"initial is {skeleton(initial)}, the memory `{argument}` is {skeleton(memory)}, of {shapes}"
        )
    arrays: list[Array | None] = []
    for (name, spec), leaf in zip(expected, leaves(initial), strict=True):
        what = f"the initial memory `{name}`"
        array = checked_array(leaf, what)
        if array.shape != (count, *spec.shape):
            raise InputError(f"{what} is {list(array.shape)}; it should be {[count, *spec.shape]}")
        if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            raise InputError(f"{what} has dtype {array.dtype}; it should be {spec.dtype}")
        arrays.append(np.ascontiguousarray(array, spec.dtype))
    return arrays


def is_lengths(initial: Any) -> bool:
    """Tells whether the argument `initial` looks like lengths: whole numbers along one axis."""
    if isinstance(initial, list | tuple):
        entries = cast("Sequence[Any]", initial)
        return len(entries) > 0 and all(map(is_integer, entries))
    return is_array(initial) and initial.ndim == 1 and np.asarray(initial).dtype.kind in "iu"


def is_zeros(initial: Any) -> bool:
    """Tells whether the argument `initial` is the text "zeros", for memories of zeros."""
    return isinstance(initial, str) and initial == ZEROS
