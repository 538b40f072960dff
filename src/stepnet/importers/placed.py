"""Defines `Placed`: a value of a model that is read from a file, with its axes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.errors import ModelError
from stepnet.importers.axes import (
    ONE,
    TIME,
    Axes,
    AxesError,
    Axis,
    axes_of,
    features_of,
    is_feature,
    is_steps,
    letters_of,
    size_of,
    symbols_in,
    text_of,
    time_of,
)
from stepnet.importers.facts import Fact
from stepnet.importers.sizes import SEQUENCES, STEPS
from stepnet.importers.values import Array, at_one_extent, check_room, reshaped, shape_of


@dataclass(frozen=True)
class Unusable:
    """Placeholder for a value that no operator can compute with.

    reason: why not, for messages.
    """

    reason: str


LENGTHS = Unusable("it reads the lengths of the sequences, which only recurrences may")
"""The value of an input that is the lengths of the sequences."""


@dataclass(frozen=True)
class Placed:
    """Value of a model that is read from a file, with the meaning of each of its axes (sequences, steps or
    features).

    value: a value of the net, or an array if it is known ahead. It has the features, in the order of the
    axes. A value without axes, such as the length of a sequence, may still differ per sequence.
    axes: the axes; no value has those of the sequences or of the steps twice.
    stated: the numbers of sequences and of steps, as far as the model's file states them.
    fact: what is known of the value at padding steps. None means that an array has its value there too, and
    that nothing is known of other values.
    """

    value: Any
    axes: Axes
    stated: tuple[tuple[str, int], ...] = ()
    fact: Fact | None = None

    def __post_init__(self) -> None:
        """Checks that the axes fit the features of the value, and that none is there twice."""
        check_unpaired(self.axes)
        if not isinstance(self.value, Unusable):
            assert self.features == features_of(self.axes), (self.features, self.axes)

    @property
    def is_constant(self) -> bool:
        """True if the value is a known array, and not computed by the net."""
        return not isinstance(self.value, Traced)

    @property
    def is_array(self) -> bool:
        """True if the value is a known array whose axes are all features."""
        return self.is_constant and not symbols_in(self.axes)

    @property
    def features(self) -> tuple[int, ...]:
        """Sizes of the value's features: its shape in one step of one sequence."""
        return shape_of(self.value)

    @property
    def letters(self) -> str:
        """Axes of the value by letters: N for sequences, T for steps, _ for a feature, as in "NT_"."""
        return letters_of(self.axes)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """Sizes of all axes of the value; those of sequences and steps are symbolic (`Size`)."""
        return tuple(size_of(axis, dict(self.stated)) for axis in self.axes)

    @property
    def array(self) -> Array:
        """Array of a constant whose axes are all features; raises `ModelError` for other values."""
        if not self.is_array:
            raise ModelError("an operand is computed from the inputs, where a constant is expected")
        return self.value

    def axis(self, number: int, count: int = 0) -> int:
        """Returns the non-negative number of an axis of the value, for one that may count from the end.
        count: the number of axes that will be added. Raises `ModelError` if there is no such axis.
        """
        rank = len(self.axes) + count
        if not -rank <= number < rank:
            raise ModelError(f"its operand has {rank} axes, so there is no axis {number}")
        return number % rank

    def feature(self, axis: int) -> int:
        """Returns the index of the feature at an axis, counted from the last feature (-1); raises `AxesError`
        if the axis is one of sequences or steps.
        """
        if not is_feature(self.axes[axis]):
            raise AxesError(f"axis {axis} of {text_of(self.axes)} is not a feature")
        return -len(features_of(self.axes[axis:]))

    def with_value(self, value: Any, axes: Axes | None = None) -> "Placed":
        """Returns a `Placed`, a value with its axes, of another value and axes (None: the same axes). What
        was known of the old value in padding is dropped.
        """
        return Placed(value, self.axes if axes is None else axes, self.stated)

    def lettered(self, value: Any, letters: str) -> "Placed":
        """Returns a `Placed`, a value with its axes, of another value. letters: a letter for each axis: N for
        sequences, T for steps, _ for a feature.
        """
        return self.with_value(value, axes_of(letters, shape_of(value), time_of(self.axes) or TIME))

    def shaped(self, axes: Axes) -> "Placed":
        """Returns the value reshaped to other axes, in which its numbers keep their order."""
        return self.with_value(reshaped(self.value, features_of(axes)), axes)


def check_unpaired(axes: Axes) -> None:
    """Raises `AxesError` if two of the axes are of sequences, or two of steps."""
    symbols = [STEPS if is_steps(symbol) else symbol for symbol in symbols_in(axes)]
    for symbol in (SEQUENCES, STEPS):
        if symbols.count(symbol) > 1:
            raise AxesError(
                f"a tensor {text_of(axes)} has two axes of {symbol}, which no value of a model has"
            )


def check_apart(what: str, axes: Axes) -> None:
    """Raises `ModelError` if an axis of an output joins sequences or steps with features; what: its name."""
    if any(symbols_in((axis,)) and features_of((axis,)) for axis in axes):
        raise ModelError(f"{what} is {text_of(axes)}: sequences and steps are axes of their own")


def constant(array: Any) -> Placed:
    """Makes the `Placed` of a constant array, all axes of which are features."""
    array = np.asarray(array)
    return Placed(array, tuple((size,) for size in array.shape))


def stated_by(values: Iterable[Placed]) -> tuple[tuple[str, int], ...]:
    """Merges the (symbol, number) pairs that the model's file states for sizes of values, for a result."""
    return tuple(dict(pair for value in values for pair in value.stated).items())


# ---- elementwise -------------------------------------------------------------------------------------------


def joint_axes(values: Sequence[Placed]) -> Axes:
    """Returns the axes that values are broadcast to, by NumPy's rules; raises `AxesError` if they do not
    fit.
    """
    rank = max((len(value.axes) for value in values), default=0)
    columns = zip(*((ONE,) * (rank - len(value.axes)) + value.axes for value in values), strict=True)
    axes = tuple(joint_axis(column, values) for column in columns)
    check_unpaired(axes)
    return axes


def joint_axis(column: Sequence[Axis], values: Sequence[Placed]) -> Axis:
    """Returns the axis to which the axes of several values are broadcast, at one position.

    column: the axis of each value. values: the values, for the message of the `AxesError` that is raised if
    they do not fit.
    """
    others = list(dict.fromkeys(axis for axis in column if axis != ONE))
    if all(map(is_feature, others)):
        return np.broadcast_shapes(*(features_of((axis,)) for axis in others)) if others else ONE
    if len(others) == 1:
        return others[0]
    for axis in filter(is_feature, others):
        what = " x ".join(symbols_in(tuple(other for other in others if not is_feature(other))))
        raise AxesError(
            f"an axis of size {axis[0]} is combined with that of the {what}, which may have any size"
        )
    if len({size_of(axis) for axis in others}) == 1:
        raise order_error(*others[:2])
    raise AxesError(f"{' and '.join(text_of(value.axes) for value in values)} do not fit")


def order_error(first: Axis, second: Axis) -> AxesError:
    """Makes the error for combining axes that join sequences and steps in different orders."""
    return AxesError(
        "tensors are combined whose sequences and steps are joined in different orders: "
        f"{text_of((first,))} and {text_of((second,))}"
    )


def broadcastable(x: Placed, axes: Axes) -> Any:
    """Reshapes the array or traced value of x so that it broadcasts with values that have the axes `axes`,
    for an elementwise operation; returns it.

    A traced value gets as many axes of features as these, the new ones of size one. An array gets no more
    axes, as NumPy broadcasts it anyway.
    """
    padded_axes = ((1,),) * (len(axes) - len(x.axes)) + x.axes
    features = list[int]()
    for axis_of_x, axis in zip(padded_axes, axes, strict=True):
        if axis_of_x == ONE:
            features += [1] * len(features_of((axis,)))
        elif is_feature(axis_of_x) or axis_of_x == axis:
            features += features_of((axis_of_x,))
        else:
            raise order_error(axis_of_x, axis)
    if x.is_constant:
        features = features[len(features_of(axes[: len(axes) - len(x.axes)])) :]
    return reshaped(x.value, features) if tuple(features) != x.features else x.value


def applied(function: Callable[..., Any], *values: Placed) -> Placed:
    """Applies an elementwise function to values, broadcast to their joint axes; returns the result. Symbolic
    sizes can be computed with only by functions that Python's integers have; others are a `ModelError`.
    """
    axes = joint_axes(values)
    check_room(features_of(axes))
    operands = at_one_extent([broadcastable(value, axes) for value in values])
    with np.errstate(all="ignore"):
        try:
            result = function(*operands)
        except TypeError as error:
            if not any(np.asarray(value.value).dtype.kind == "O" for value in values if value.is_constant):
                raise
            raise ModelError(
                "it computes with the number of sequences or steps, but not for a shape"
            ) from error
    # A ufunc on objects may return a scalar.
    result = result if isinstance(result, Traced) else np.asarray(result)
    return Placed(result, axes, stated_by(values))
