"""A value of an ONNX model: its numbers, and what each of its axes is.

    [time, batch, features]      axes "TN_"     a value of each step, with features [features]
    [batch, directions, hidden]  axes "N__"     a value of each sequence, with features [directions, hidden]
    [hidden, 4]                  axes "__"      a constant

ONNX knows arrays alone. Here, the axes of sequences and steps are none of the array's: a transpose of these
moves letters, and only features are moved in fact.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.graph.operators.facts import Fact
from stepnet.graph.operators.sizes import FEATURE, SEQUENCES, STEPS, TOKENS, Size
from stepnet.net.types import CONST, ROWS
from stepnet.rnn.nested import expand
from stepnet.trace.traced import Traced, apply

Array = np.ndarray
MOST = 2**27
"""How many numbers a constant that is computed, or the features of a value, may have."""


@dataclass(frozen=True)
class Unusable:
    """What stands where a value would be that no rule can compute with. reason: why."""

    reason: str


LENGTHS = Unusable("it reads the lengths of the sequences, which only sequence_lens of recurrences may")
"""The value of an input that is the lengths of the sequences."""


class AxesError(ModelError):
    """Axes do not fit an operator: with other axes of the model's inputs they may."""


@dataclass(frozen=True)
class Placed:
    """A value and its axes. value: traced, or an array of its features; they are in the order of the axes.

    stated: the sizes of the axes N and T that the model's file states. fact: what is known of it behind the
    ends of sequences. Without one, a constant is there what it is everywhere, and of others nothing is known.
    """

    value: Any
    axes: str
    stated: tuple[tuple[str, int], ...] = ()
    fact: Fact | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it is an array that is known now, for all sequences and steps."""
        return not isinstance(self.value, Traced)

    @property
    def features(self) -> tuple[int, ...]:
        """The sizes of its features."""
        return tuple(self.value.shape) if self.is_constant else self.value.type.shape

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The sizes of all axes."""
        features, stated = iter(self.features), dict(self.stated)
        return tuple(
            next(features) if letter == FEATURE else Size(letter, stated=stated.get(letter))
            for letter in self.axes
        )

    @property
    def array(self) -> Array:
        """The whole array of a constant; raises `ModelError` for any other value."""
        if not self.is_constant or self.axes.strip(FEATURE):
            raise ModelError("it is no constant of the file")
        return self.value

    def axis(self, number: int, count: int = 0) -> int:
        """The number of an axis counted from the front. count: how many axes there will be besides."""
        rank = len(self.axes) + count
        if not -rank <= number < rank:
            raise ModelError(f"it has {rank} axes, and none is number {number}")
        return number % rank

    def feature(self, axis: int) -> int:
        """Which of its features an axis is, counted from the last, as -1; raises `AxesError` for others."""
        if self.axes[axis] != FEATURE:
            raise AxesError(f"axis {axis} of [{words(self.axes)}] is no feature")
        return -self.axes[axis:].count(FEATURE)

    def with_value(self, value: Any, axes: str | None = None) -> "Placed":
        """Another value with these axes, or with others. Nothing is known of it behind the ends."""
        return Placed(value, self.axes if axes is None else axes, self.stated)


def words(axes: str) -> str:
    """Axes for a message: sequences, steps, features.

    >>> words("TN_")
    'steps, sequences, features'
    """
    names = {SEQUENCES: "sequences", STEPS: "steps", TOKENS: "steps of all sequences", FEATURE: "features"}
    return ", ".join(names[letter] for letter in axes)


def constant(array: Any) -> Placed:
    """A constant."""
    array = np.asarray(array)
    return Placed(array, FEATURE * array.ndim)


def joint_axes(values: Sequence[Placed]) -> str:
    """The axes of what values are broadcast to, as NumPy does; raises `AxesError` where they do not fit."""
    axes = ""
    for place in range(1, 1 + max((len(value.axes) for value in values), default=0)):
        present = [value for value in values if len(value.axes) >= place]
        letters = {value.axes[-place] for value in present} - {FEATURE}
        if len(letters) > 1:
            raise AxesError(f"{' and '.join(f'[{words(value.axes)}]' for value in values)} do not fit")
        letter = letters.pop() if letters else FEATURE
        if letter != FEATURE and letter in axes:
            raise AxesError(f"each of the {words(letter)} would meet each other one of them")
        for value in present if letter != FEATURE else []:
            if value.axes[-place] == FEATURE and value.sizes[-place] != 1:
                count = value.sizes[-place]
                raise AxesError(f"an axis of {count} numbers meets the {words(letter)}, however many")
        axes = letter + axes
    return axes


def aligned(values: Sequence[Placed], axes: str | None = None) -> tuple[list[Any], str]:
    """The values with features that broadcast, at one extent, and their joint axes."""
    axes = joint_axes(values) if axes is None else axes
    made = [without_ones(value, axes) for value in values]
    return at_one_extent(made), axes


def without_ones(value: Placed, axes: str) -> Any:
    """The value of features alone, without axes of size one that stand for sequences or steps."""
    inside = axes[len(axes) - len(value.axes) :]
    drop = [
        value.feature(place)
        for place, (own, letter) in enumerate(zip(value.axes, inside, strict=True))
        if own == FEATURE and letter != FEATURE
    ]
    return squeezed(value.value, value.features, drop) if drop else value.value


def squeezed(value: Any, features: tuple[int, ...], drop: Sequence[int]) -> Any:
    """A value without some of its features, of size one, counted from the last."""
    kept = [size for place, size in enumerate(features) if place - len(features) not in drop]
    return reshaped(value, kept)


def reshaped(value: Any, features: Sequence[int]) -> Any:
    """A value with its features in another shape."""
    if isinstance(value, Traced) and value.type.extent != CONST:
        return value.reshape(value.shape[0], *features)
    return value.reshape(*features) if features else value.reshape(())


def at_one_extent(values: Sequence[Any]) -> list[Any]:
    """Values of which those that each sequence has once are repeated at its steps, where there are others of
    each step.
    """
    deep = [v for v in values if isinstance(v, Traced) and len(v.type.extent) > len(ROWS)]
    return [
        expand(value, deep[0]) if deep and isinstance(value, Traced) and value.type.extent == ROWS else value
        for value in values
    ]


def applied(function: Callable[..., Any], *values: Placed) -> Placed:
    """A function of single numbers applied to values that are broadcast."""
    operands, axes = aligned(values)
    check_room(np.broadcast_shapes(*(features_of(operand) for operand in operands)))
    rank = axes.count(FEATURE)
    if any(isinstance(operand, Traced) for operand in operands):
        operands = [padded(value, rank) if isinstance(value, Traced) else value for value in operands]
    with np.errstate(all="ignore"):
        try:
            made = function(*operands)
        except TypeError as error:
            if not any(np.asarray(value.value).dtype.kind == "O" for value in values if value.is_constant):
                raise
            raise ModelError(
                "it computes with the number of sequences or steps, of which it makes no shape"
            ) from error
    made = made if isinstance(made, Traced) else np.asarray(made)  # a ufunc of objects gives no array
    return Placed(made, axes, stated_by(values))


def features_of(operand: Any) -> tuple[int, ...]:
    """The sizes of the features of a value."""
    return operand.type.shape if isinstance(operand, Traced) else np.shape(operand)


def check_room(sizes: Sequence[int]) -> None:
    """Raises `ModelError` for an array, not made yet, that is far larger than those of models, or none."""
    if min(sizes, default=0) < 0:
        raise ModelError(f"it makes an array of sizes {list(sizes)}")
    if prod(sizes) > MOST:
        raise ModelError(f"it makes {prod(sizes)} numbers of a constant or of one step; the most is {MOST}")


def stated_by(values: Iterable[Placed]) -> tuple[tuple[str, int], ...]:
    """What the model's file states of the sizes of N and T, as far as one of these values knows it."""
    return tuple(dict(pair for value in values for pair in value.stated).items())


def padded(value: Traced, rank: int) -> Any:
    """A traced value with leading features of size one, up to this many: rows come ahead of them."""
    features = value.type.shape
    ones = (1,) * (rank - len(features))
    return reshaped(value, (*ones, *features)) if ones else value


def as_dtype(value: Any, dtype: np.dtype[Any]) -> Any:
    """A value with the dtype that ONNX gives it: that of an operand, where NumPy's is wider."""
    return value if np.dtype(value.dtype) == dtype else value.astype(dtype)


def repeated_at(array: Array, deep: Traced) -> Traced:
    """An array at all places that a traced value has."""
    literal = Traced(deep.builder, deep.builder.constant(np.asarray(array)))
    return apply("expand", literal, extent=deep.type.extent)


def filled(x: Placed, axis: int, count: int, number: Array) -> Any:
    """One number, with the features of a value but for the size of an axis. A negative count is none."""
    features = list(x.features)
    features[axis] = max(count, 0)
    array = np.full(features, number)
    return repeated_at(array, x.value) if isinstance(x.value, Traced) else array
