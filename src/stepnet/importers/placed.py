"""Defines `Placed`: a value of a model that is read from a file, with its axes."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.axes import (
    TIME,
    Axes,
    AxesError,
    axes_of,
    feature_error,
    features_of,
    is_feature,
    is_keys,
    is_steps,
    letters_of,
    size_of,
    symbols_in,
    text_of,
    time_of,
)
from stepnet.importers.facts import Fact
from stepnet.importers.sizes import SEQUENCES, STEPS
from stepnet.importers.values import Array, reshaped, shape_of


@dataclass(frozen=True)
class Unusable:
    """Placeholder for a value that no operator can compute with. reason: why not, for messages."""

    reason: str


@dataclass(frozen=True)
class ReversedSteps(Unusable):
    """Placeholder for a value with reversed steps, for recurrences and reversals. source: it in order."""

    source: "Placed"


def reversed_steps(x: "Placed") -> "Placed":
    """Returns the placeholder for a value with reversed steps; for such a placeholder, its value."""
    if isinstance(x.value, ReversedSteps):
        return x.value.source
    reason = "the steps of sequences are reversed, which only recurrences may read"
    return x.with_value(ReversedSteps(reason, x))


LENGTHS = Unusable("it reads the lengths of the sequences, which only recurrences may")
"""The value of an input that is the lengths of the sequences."""


@dataclass(frozen=True)
class Placed:
    """Value of a model that is read from a file, with the meaning of each of its axes (sequences, steps or
    features).

    value: a value of the net, or an array if it is known ahead. It has the features, in the order of the
    axes. A value without axes, such as the length of a sequence, may still differ per sequence.
    axes: the axes; sequences and steps occur once at most.
    stated: the numbers of sequences and of steps, as far as the model's file states them.
    fact: the known property of the value at padding steps. Without it, None, an array has its value there
        too, and nothing is known of other values.
    """

    value: Any
    axes: Axes
    stated: tuple[tuple[str, int], ...] = ()
    fact: Fact | None = None

    def __post_init__(self) -> None:
        """Checks that the axes fit the features, and that sequences and steps occur once at most."""
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
        """Sizes of all axes of the value. Numbers of sequences and steps are symbolic (`Size`)."""
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
        """Returns the index of a feature's axis, from the last (-1); raises `AxesError` for other axes."""
        if not is_feature(self.axes[axis]):
            raise feature_error(self.axes[axis], f"axis {axis} of {text_of(self.axes)} is not a feature")
        return -len(features_of(self.axes[axis:]))

    def with_value(self, value: Any, axes: Axes | None = None) -> "Placed":
        """Returns another value with its axes, by default the same; what was known of padding is dropped."""
        return Placed(value, self.axes if axes is None else axes, self.stated)

    def lettered(self, value: Any, letters: str) -> "Placed":
        """Returns another value with an axis by letter: N for sequences, T for steps, _ for a feature."""
        return self.with_value(value, axes_of(letters, shape_of(value), time_of(self.axes) or TIME))

    def shaped(self, axes: Axes) -> "Placed":
        """Returns the value reshaped to other axes, in which its numbers keep their order."""
        return self.with_value(reshaped(self.value, features_of(axes)), axes)


def check_unpaired(axes: Axes) -> None:
    """Raises `AxesError` if two axes are sequences, or two are steps; an axis of keys, as in attention, does
    not count as steps.
    """
    symbols = [STEPS if is_steps(symbol) else symbol for symbol in symbols_in(without_keys(axes))]
    for symbol in (SEQUENCES, STEPS):
        if symbols.count(symbol) > 1:
            raise AxesError(
                f"a tensor {text_of(axes)} has two axes of {symbol}, which no value of a model has"
            )


def without_keys(axes: Axes) -> Axes:
    """Returns axes without the first axis of keys (of pairs of steps)."""
    at = next((at for at, axis in enumerate(axes) if is_keys(axis)), None)
    return axes if at is None else axes[:at] + axes[at + 1 :]


def check_apart(what: str, axes: Axes) -> None:
    """Raises `ModelError` if an axis of an output joins sequences or steps with features, or is one of the
    keys of pairs of steps (query, key), as in attention. what: the name of the output, for the message.
    """
    if any(map(is_keys, axes)) and time_of(axes) is None:
        raise ModelError(
            f"{what} has an axis of keys and none of queries, as a product of transposed pairs of steps: "
            "make the pairs in the other order, queries first"
        )
    if any(map(is_keys, axes)):
        raise ModelError(f"{what} is a value at each pair of steps, of which a model returns none")
    if any(symbols_in((axis,)) and features_of((axis,)) for axis in axes):
        raise ModelError(f"{what} is {text_of(axes)}: sequences and steps are axes of their own")


def constant(array: Any) -> Placed:
    """Makes the `Placed` of a constant array, all axes of which are features."""
    array = np.asarray(array)
    return Placed(array, tuple((size,) for size in array.shape))


def stated_by(values: Iterable[Placed]) -> tuple[tuple[str, int], ...]:
    """Merges the (symbol, number) pairs that the model's file states for sizes of values, for a result."""
    return tuple(dict(pair for value in values for pair in value.stated).items())
