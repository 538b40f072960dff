"""Numbers in a file that may follow from the number of steps of the example with which it was exported.

    x.sum(1) / x.size(1) ** 0.5    ->   div(sum, 3.605551)        the root of 13, for an example of 13 steps
    y.repeat(1, x.size(1), 1)      ->   repeat(y, [1, 13, 1])

Where a file fixes the number of steps, a number that Python computed of it is in the file as one that the
author wrote, and nothing tells them apart. Numbers other than 0, 1 and -1 are therefore for the number of
steps that the file states, and for no other. Weights are for any number of steps, and so are the settings of
layers: kernels, strides, slopes, what is added to a variance. Windows of all steps of the example are for its
number of steps, as exporters write a maximum over all steps so.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from stepnet.compiler.trace.indexing import listed
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.importers.axes import Axes, features_of, is_steps, is_time, stated_number, symbols_in, time_of
from stepnet.importers.placed import Placed, Unusable
from stepnet.importers.sizes import STEPS
from stepnet.importers.values import reshaped
from stepnet.model.counting import length_of
from stepnet.model.nested import expand

NO_END = 2**31 - 1
"""The least number that as the end of a slice stands for none."""
NUMBERS: tuple[type[Any], ...] = (int, float, np.integer, np.floating)
FREE = (0, 1, -1)
"""The numbers that are taken to be the author's own."""
FEWEST = 4
"""The least number of steps of which the numbers that are computed are seldom among these: the half of 2 or 3
is 1, rounded down, as is one less than 2.
"""
ROOTS = (2, 0.5, -0.5)
"""The exponents of squares and roots, likewise."""


def written(*values: Any) -> list[float]:
    """Returns the numbers among values, and in lists of them, that may follow from an example's number of
    steps. Numbers that are common for other reasons, such as 0 and 1, are left out.

    >>> written(1, 3.5, None, [0, 13, True], float("inf"))
    [3.5, 13.0]
    """
    flat: list[Any] = [each for value in values for each in listed(value)]
    numbers = [float(each) for each in flat if isinstance(each, NUMBERS) and not isinstance(each, bool)]
    return [number for number in numbers if number not in FREE and abs(number) < NO_END]


def written_in(array: np.ndarray) -> list[float]:
    """Returns a list of the number that all elements of a constant array are, if it may follow from the
    number of steps; an empty list otherwise, and for an array of different numbers, which is taken to be
    weights.
    """
    if array.dtype.kind not in "fiu" or not array.size:
        return []
    first = array.flat[0]
    return written(first.item()) if np.all(array == first) else []


def of_constants(values: Iterable[Placed]) -> list[float]:
    """Returns the numbers of an operator's constants that may follow from the number of steps."""
    arrays = [value.value for value in values if not isinstance(value.value, Traced | Unusable)]
    return [number for array in arrays for number in written_in(array)]


def of_matrices(values: Iterable[Placed]) -> list[float]:
    """Returns the numbers that all elements of a constant matrix among the operands of a product are, if they
    may follow from the number of steps: a matrix of different numbers is taken to be weights.
    """
    return of_constants(value for value in values if len(value.axes) > 1 and np.prod(value.features) > 1)


def of_weights(values: Iterable[Placed]) -> list[float]:
    """Returns the numbers that all of several elements of a constant of floats are, among the operands of a
    layer, if they may follow from the number of steps: different numbers, or a single one, are taken to be
    weights.
    """
    arrays = [value for value in values if not isinstance(value.value, Traced | Unusable)]
    return of_constants(value for value in arrays if value.value.dtype.kind == "f" and value.value.size > 1)


def of_windows(x: Placed, windows: Iterable[tuple[int, int]], stated: Mapping[str, int]) -> list[float]:
    """Returns the sizes of windows of steps that are all steps of x, as exporters write a pooling to one
    entry.

    windows: for each the axis of x and the size. stated: the numbers of steps that the file states, by axis.
    """
    counts = {axis: stated_number(str(each[0]), stated) for axis, each in enumerate(x.axes) if is_time(each)}
    return written(*(size for axis, size in windows if counts.get(axis) == size))


def of_copies(x: Placed, axes: Axes) -> list[float]:
    """Returns the number of times that an operator repeats the features of x. axes: of its result."""
    before, after = prod(x.features), prod(features_of(axes))
    return written(after // before) if before else []


def of_reshape(x: Placed, axes: Axes, steps: int | None) -> list[float]:
    """Returns the number of steps if an operator makes an axis of features of that size from an operand x
    without steps, or turns the only step that is left, as after a pooling over all steps, into a feature.
    axes: the axes of its result. steps: the number of steps that the file states.
    """
    is_made = steps in features_of(axes) and steps not in x.features and time_of(x.axes) is None
    is_last_step = any(map(is_steps, symbols_in(x.axes))) and not any(map(is_steps, symbols_in(axes)))
    return written(steps) if is_made or is_last_step else []


def of_slices(x: Placed, slices: Iterable[tuple[int, Any, Any, Any]], steps: int | None) -> list[float]:
    """Returns the bounds and the strides of slices of steps, but for an end that is the number of steps.

    slices: for each the axis of x, the first place, the end and the stride. steps: the number of steps that
    the file states.
    """
    over_steps = [each for axis, *each in slices if is_time(x.axes[axis])]
    bounds = [(start, None if end == steps else end, stride) for start, end, stride in over_steps]
    return written(*(number for each in bounds for number in each))


def of_strided(x: Placed, slices: Iterable[tuple[int, Any, Any, int, bool]]) -> list[float]:
    """Returns the bounds and the strides of slices of steps as `of_slices` does, for the number of steps that
    the file states for x. slices: likewise, each with whether it takes the first place alone, without an end.
    """
    own = ((axis, begin, None if one else end, stride) for axis, begin, end, stride, one in slices)
    return of_slices(x, own, stated_steps(x))


def of_ends(x: Placed, ends: Iterable[tuple[int, int, int]]) -> list[float]:
    """Returns the numbers of entries added to steps, or cut off, at both ends. ends: both numbers by axis."""
    return written(*(count for axis, *both in ends if is_time(x.axes[axis]) for count in both))


def stated_steps(x: Placed) -> int | None:
    """Returns the number of steps that the file states for a value; None where it is open."""
    return dict(x.stated).get(STEPS)


Call = TypeVar("Call")


@dataclass(frozen=True)
class NumberRules(Generic[Call]):
    """The operators of a format by where they have numbers that may follow from the number of steps. An
    operator that is not named here has them among its constants.

    settings: the operators whose constants are settings of layers, axes, or places of features.
    layers: the operators whose constants are weights if their elements differ.
    windows: functions of a call that return the axes of its first operand with windows, and their sizes.
    attributes: the attributes that are numbers of arithmetic, by operator.
    copies: the operators that repeat features of their first operand.
    reshapes: the operators that may make an axis of features of its steps.
    products: the operators of which only matrices are such constants.
    powers: the operators whose exponent may be a square or a root.
    rules: functions of a call and the axes of its first result, for operators whose numbers count otherwise.
    """

    settings: Collection[str] = ()
    layers: Collection[str] = ()
    windows: Mapping[str, Callable[[Call], Iterable[tuple[int, int]]]] = field(
        default_factory=dict[str, Callable[[Call], Iterable[tuple[int, int]]]]
    )
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    copies: Collection[str] = ()
    reshapes: Collection[str] = ()
    products: Collection[str] = ()
    powers: Collection[str] = ()
    rules: Mapping[str, Callable[[Call, Axes], list[float]]] = field(
        default_factory=dict[str, Callable[[Call, Axes], list[float]]]
    )

    def numbers(
        self,
        operator: str,
        call: Call,
        operands: Sequence[Placed],
        attributes: Mapping[str, Any],
        results: Sequence[Placed],
    ) -> list[float]:
        """Returns the numbers in a call of an operator that may have been computed from the number of steps;
        none for a call that computes a constant, which counts where it is read.

        call: the argument of the operators' rules. operands, attributes, results: of the operator.
        """
        if all(value.is_constant for value in operands):
            return []
        if operator in self.windows or operator in self.layers:
            windows = self.windows[operator](call) if operator in self.windows else ()
            found = of_weights(operands) if operator in self.layers else []
            return [*found, *of_windows(operands[0], windows, dict(operands[0].stated))]
        if operator in self.settings:
            return []
        if operator in self.copies:
            return of_copies(operands[0], results[0].axes)
        if operator in self.reshapes:
            return of_reshape(operands[0], results[0].axes, stated_steps(operands[0]))
        if operator in self.rules:
            return self.rules[operator](call, results[0].axes)
        stated = [attributes.get(name) for name in self.attributes.get(operator, ())]
        found = of_matrices(operands) if operator in self.products else of_constants(operands)
        found = [*found, *written(*stated)]
        return [number for number in found if operator not in self.powers or number not in ROOTS]


def only_at(value: Placed, counted: Sequence[tuple[Traced, int]]) -> Placed:
    """Returns a value of floats with NaN for each sequence whose number of steps is not the stated one; a
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
