"""What is known of a value at the steps behind a sequence's end, which ONNX has and stepnet does not."""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Behind:
    """It has these numbers there, which are broadcast to its features."""

    array: Array


@dataclass(frozen=True)
class Counted:
    """At every step it is steps * step + lengths * length + offset: the step's number, the sequence's length.

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

    def bounds(self, behind: bool) -> tuple[float, float]:
        """The least and the largest that it may be, behind the ends or before them."""
        factor = self.steps
        if factor and self.lengths == -factor:  # factor (step - length): at least 0 behind, at most -1 before
            low, high = (0.0, np.inf) if behind else (-np.inf, -1.0)
        elif factor and not self.lengths:
            low, high = 0.0, np.inf
        elif not factor and not self.lengths:
            low = high = 0.0
        else:
            return -np.inf, np.inf
        ends = (factor * low, factor * high) if factor else (low, high)
        return min(ends) + self.offset, max(ends) + self.offset


@dataclass(frozen=True)
class Kept:
    """It is a state of a recurrence as it was before the step.

    owner: the recurrence. place: the number of the state. dtype: its dtype; a cast to a wider one keeps its
    numbers.
    """

    owner: object
    place: int
    dtype: str


@dataclass(frozen=True)
class Unknown:
    """Nothing is known."""


UNKNOWN = Unknown()
LENGTH = Counted(lengths=1)
STEP = Counted(steps=1)
Fact = Behind | Counted | Kept | Unknown
