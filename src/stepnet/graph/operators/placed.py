"""A value of an ONNX model, with the kind of each of its axes.

    [time, batch, features]      axes "TN_"     a value per step, with features [features]
    [batch, directions, hidden]  axes "N__"     a value per sequence, with features [directions, hidden]
    [hidden, 4]                  axes "__"      a constant

In ONNX all of these are arrays. Here the axes of sequences and steps are letters only; the traced value has
just the features. A transpose of sequences or steps moves letters, and only a transpose of features moves
data.
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
"""The largest number of elements of a computed constant, or of the features of a value."""


@dataclass(frozen=True)
class Unusable:
    """A placeholder for a value that no rule can compute with. reason: why not, for messages."""

    reason: str


LENGTHS = Unusable("it reads the lengths of the sequences, which only sequence_lens of recurrences may")
"""The value of an input that is the lengths of the sequences."""


class AxesError(ModelError):
    """Axes do not fit an operator. They may with other axes of the model's inputs."""


@dataclass(frozen=True)
class Placed:
    """A value and its axes.

    value: a traced value, or an array if it is a constant. It has the features, in the order of the axes.
    axes: the letter of each axis.
    stated: the sizes of the axes N and T, as far as the model's file states them.
    fact: what is known of the value at padding steps. None means that a constant has its value there too,
        and that nothing is known of other values.
    """

    value: Any
    axes: str
    stated: tuple[tuple[str, int], ...] = ()
    fact: Fact | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it is a known array, the same for all sequences and steps."""
        return not isinstance(self.value, Traced)

    @property
    def features(self) -> tuple[int, ...]:
        """The sizes of its features."""
        return tuple(self.value.shape) if self.is_constant else self.value.type.shape

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The sizes of all axes; those of sequences and steps are symbolic."""
        features, stated = iter(self.features), dict(self.stated)
        return tuple(
            next(features) if letter == FEATURE else Size(letter, stated=stated.get(letter))
            for letter in self.axes
        )

    @property
    def array(self) -> Array:
        """The array of a constant of features alone; raises `ModelError` for other values."""
        if not self.is_constant or self.axes.strip(FEATURE):
            raise ModelError("an operand is computed from the inputs, where a constant is expected")
        return self.value

    def axis(self, number: int, count: int = 0) -> int:
        """The number of an axis, counted from the front. count: the number of axes that will be added."""
        rank = len(self.axes) + count
        if not -rank <= number < rank:
            raise ModelError(f"its operand has {rank} axes, so there is no axis {number}")
        return number % rank

    def feature(self, axis: int) -> int:
        """The index of the feature at an axis, counted from the last, which is -1; raises `AxesError` if the
        axis is that of sequences or steps.
        """
        if self.axes[axis] != FEATURE:
            raise AxesError(f"axis {axis} of [{words(self.axes)}] is not a feature")
        return -self.axes[axis:].count(FEATURE)

    def with_value(self, value: Any, axes: str | None = None) -> "Placed":
        """Another value with the same axes, or with `axes`. It has no fact about padding."""
        return Placed(value, self.axes if axes is None else axes, self.stated)


def words(axes: str) -> str:
    """The names of axes, for messages.

    >>> words("TN_")
    'steps, sequences, features'
    """
    names = {SEQUENCES: "sequences", STEPS: "steps", TOKENS: "steps of all sequences", FEATURE: "features"}
    return ", ".join(names[letter] for letter in axes)


def constant(array: Any) -> Placed:
    """The value of a constant array, all of whose axes are features."""
    array = np.asarray(array)
    return Placed(array, FEATURE * array.ndim)


def joint_axes(values: Sequence[Placed]) -> str:
    """The axes that values are broadcast to, by NumPy's rules; raises `AxesError` if they do not fit."""
    axes = ""
    for place in range(1, 1 + max((len(value.axes) for value in values), default=0)):
        present = [value for value in values if len(value.axes) >= place]
        letters = {value.axes[-place] for value in present} - {FEATURE}
        if len(letters) > 1:
            raise AxesError(f"{' and '.join(f'[{words(value.axes)}]' for value in values)} do not fit")
        letter = letters.pop() if letters else FEATURE
        if letter != FEATURE and letter in axes:
            raise AxesError(
                f"two axes of its result are those of the {words(letter)}: each of the {words(letter)} would "
                "meet each other"
            )
        for value in present if letter != FEATURE else []:
            if value.axes[-place] == FEATURE and value.sizes[-place] != 1:
                count = value.sizes[-place]
                raise AxesError(
                    f"an axis of size {count} is combined with that of the {words(letter)}, which may have "
                    "any size"
                )
        axes = letter + axes
    return axes


def aligned(values: Sequence[Placed], axes: str | None = None) -> tuple[list[Any], str]:
    """The values, with features that broadcast and at one extent, and the axes of their result."""
    axes = joint_axes(values) if axes is None else axes
    return at_one_extent([without_ones(value, axes) for value in values]), axes


def without_ones(value: Placed, axes: str) -> Any:
    """A value without those features of size one that broadcast to sequences or steps.

    axes: the axes that the value is broadcast to.
    """
    aligned_axes = axes[len(axes) - len(value.axes) :]
    drop = [
        value.feature(place)
        for place, (kind, letter) in enumerate(zip(value.axes, aligned_axes, strict=True))
        if kind == FEATURE and letter != FEATURE
    ]
    return squeezed(value.value, value.features, drop) if drop else value.value


def squeezed(value: Any, features: tuple[int, ...], drop: Sequence[int]) -> Any:
    """A value without some of its features of size one.

    drop: their indices, counted from the last.
    """
    kept = [size for place, size in enumerate(features) if place - len(features) not in drop]
    return reshaped(value, kept)


def reshaped(value: Any, features: Sequence[int]) -> Any:
    """A value with its features in another shape."""
    if isinstance(value, Traced) and value.type.extent != CONST:
        return value.reshape(value.shape[0], *features)
    return value.reshape(*features) if features else value.reshape(())


def at_one_extent(values: Sequence[Any]) -> list[Any]:
    """The values at one extent: if some are per step, those per sequence are expanded to steps."""
    deep = [v for v in values if isinstance(v, Traced) and len(v.type.extent) > len(ROWS)]
    return [
        expand(value, deep[0]) if deep and isinstance(value, Traced) and value.type.extent == ROWS else value
        for value in values
    ]


def applied(function: Callable[..., Any], *values: Placed) -> Placed:
    """The result of an elementwise function on values, which are broadcast."""
    operands, axes = aligned(values)
    check_room(np.broadcast_shapes(*(features_of(operand) for operand in operands)))
    rank = axes.count(FEATURE)
    if any(isinstance(operand, Traced) for operand in operands):
        operands = [padded(value, rank) if isinstance(value, Traced) else value for value in operands]
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


def features_of(operand: Any) -> tuple[int, ...]:
    """The sizes of the features of a value."""
    return operand.type.shape if isinstance(operand, Traced) else np.shape(operand)


def check_room(sizes: Sequence[int]) -> None:
    """Raises `ModelError` for sizes of an array that is far larger than those of models, or negative."""
    if min(sizes, default=0) < 0:
        raise ModelError(f"it makes an array of sizes {list(sizes)}, of which one is negative")
    if prod(sizes) > MOST:
        raise ModelError(
            f"it makes a constant, or a value of one step, of {prod(sizes)} numbers; the most is {MOST}"
        )


def stated_by(values: Iterable[Placed]) -> tuple[tuple[str, int], ...]:
    """The sizes of the axes N and T that the model's file states, collected from all these values."""
    return tuple(dict(pair for value in values for pair in value.stated).items())


def padded(value: Traced, rank: int) -> Any:
    """A traced value with leading features of size one, so that it has `rank` features."""
    features = value.type.shape
    ones = (1,) * (rank - len(features))
    return reshaped(value, (*ones, *features)) if ones else value


def as_dtype(value: Any, dtype: np.dtype[Any]) -> Any:
    """A value in a dtype. ONNX keeps that of an operand where NumPy's result is wider."""
    return value if np.dtype(value.dtype) == dtype else value.astype(dtype)


def repeated_at(array: Array, deep: Traced) -> Traced:
    """An array expanded to the extent of a traced value."""
    literal = Traced(deep.builder, deep.builder.constant(np.asarray(array)))
    return apply("expand", literal, extent=deep.type.extent)


def filled(x: Placed, axis: int, count: int, number: Array) -> Any:
    """A value filled with one number, with the features of `x` except that `axis` has size `count`.

    A negative count is taken as 0.
    """
    features = list(x.features)
    features[axis] = max(count, 0)
    array = np.full(features, number)
    return repeated_at(array, x.value) if isinstance(x.value, Traced) else array
