"""Numbers in a file that may follow from the number of steps of the example with which it was exported.

    x.sum(1) / x.size(1) ** 0.5    ->   div(sum, 3.605551)        the root of 13, for an example of 13 steps
    y.repeat(1, x.size(1), 1)      ->   repeat(y, [1, 13, 1])

Where a file fixes the number of steps, a number that Python computed of it is in the file as one that the
author wrote, and nothing tells them apart. Numbers other than 0, 1 and -1 are therefore for the number of
steps that the file states, and for no other. Weights are for any number of steps, and so are the settings of
layers: kernels, strides, slopes, what is added to a variance.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.trace.indexing import listed
from stepnet.compiler.trace.traced import Traced
from stepnet.importers.placed import Placed
from stepnet.importers.values import reshaped
from stepnet.model.counting import length_of
from stepnet.model.nested import expand

NO_END = 2**31 - 1
"""The least number that as the end of a slice stands for none."""
NUMBERS: tuple[type[Any], ...] = (int, float, np.integer, np.floating)
FREE = (0, 1, -1)
"""The numbers that are taken to be the author's own."""
ROOTS = (2, 0.5, -0.5)
"""The exponents of squares and roots, likewise."""


def written(*values: Any) -> list[float]:
    """Returns the numbers among values, and in lists of them, that may follow from the number of steps.

    >>> written(1, 3.5, None, [0, 13, True], float("inf"))
    [3.5, 13.0]
    """
    flat: list[Any] = [each for value in values for each in listed(value)]
    numbers = [float(each) for each in flat if isinstance(each, NUMBERS) and not isinstance(each, bool)]
    return [number for number in numbers if number not in FREE and abs(number) < NO_END]


def written_in(array: np.ndarray) -> list[float]:
    """Returns the number that all elements of a constant are, if it may follow from the number of steps; none
    for an array of different numbers, which is taken to be weights.
    """
    if array.dtype.kind not in "fiu" or not array.size:
        return []
    first = array.flat[0]
    return written(first.item()) if np.all(array == first) else []


def only_at(value: Placed, counted: Sequence[tuple[Traced, int]]) -> Placed:
    """Returns a value of floats that is NaN for each sequence of other numbers of steps than those stated; a
    constant as it is.

    counted: values per step of the inputs, each with the number of steps that is stated for it.
    """
    if not isinstance(value.value, Traced) or value.value.is_constant:
        return value
    own: Any = value.value
    for like, count in counted:
        fits = length_of(like) == count
        fits = expand(fits, own) if own.type.extent != fits.type.extent else fits
        fits = reshaped(fits, (1,) * len(own.type.shape))
        own = np.where(fits, own, np.asarray(np.nan, own.dtype))
    return value.with_value(own)
