"""States what is known of a value at padding steps, after a sequence's end, in a model read from a file."""

import numpy as np

from stepnet.compiler.values.records import dataclass

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class ArrayInPadding:
    """Fact (a known property of a value in a model file) that at padding steps, after a sequence's end, a
    value is a known array.

    array: the value there, which broadcasts to the features.
    """

    array: Array


@dataclass(frozen=True)
class Counted:
    """Fact (a known property of a value in a model file) that a value is steps * step + lengths * length +
    offset at every step, also at padding steps.

    Here step is the index of the step, and length the length of the sequence.

    >>> Counted(steps=1) - Counted(lengths=1)
    Counted(steps=1, lengths=-1, offset=0)
    """

    steps: int = 0
    lengths: int = 0
    offset: int = 0

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(self.steps + other.steps, self.lengths + other.lengths, self.offset + other.offset)

    def __sub__(self, other: "Counted") -> "Counted":
        return Counted(self.steps - other.steps, self.lengths - other.lengths, self.offset - other.offset)

    def bounds(self, in_padding: bool) -> tuple[float, float]:
        """Returns the (least, largest) number, perhaps infinite, of a value that is this sum of multiples of
        step index and length, to decide comparisons.

        in_padding: whether at the padding steps after a sequence's end, else at the sequence's own steps.
        Bounds are known for constants and multiples of the step index or of step - length, with an offset.
        """
        factor = self.steps
        if (
            factor and self.lengths == -factor
        ):  # factor (step - length): at least 0 in padding, else at most -1
            low, high = (0.0, np.inf) if in_padding else (-np.inf, -1.0)
        elif factor and not self.lengths:
            low, high = 0.0, np.inf
        elif not factor and not self.lengths:
            low = high = 0.0
        else:
            return -np.inf, np.inf
        ends = (factor * low, factor * high) if factor else (low, high)
        return min(ends) + self.offset, max(ends) + self.offset


@dataclass(frozen=True)
class StateInPadding:
    """Fact (a known property of a value in a model file) that at padding steps a value is a recurrence's
    state before the step, so that the step changes nothing.

    owner: the recurrence.
    index: the index of the state among those of the recurrence.
    dtype: the dtype of the state. A cast to a wider dtype keeps its numbers.
    """

    owner: object
    index: int
    dtype: str


@dataclass(frozen=True)
class Unknown:
    """Fact that nothing is known of a value at padding steps, after a sequence's end."""


UNKNOWN = Unknown()
LENGTH = Counted(lengths=1)
STEP = Counted(steps=1)
Fact = ArrayInPadding | Counted | StateInPadding | Unknown
