"""Sizes that are known only when a model runs: the number of sequences, and the number of steps."""

from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any

from stepnet.errors import ModelError

SEQUENCES, STEPS, FEATURE = "N", "T", "_"
"""The kinds of an axis, as letters: sequences, steps or a feature. A value's axes are a text of these."""
TOKENS = "S"
"""The letter of an axis with the steps of all sequences, end to end."""


@dataclass(frozen=True, eq=False)
class Size:
    """A symbolic size: the product of the sizes of axes and an integer. It may be an element of a shape.

    letters: the axes, sorted.
    times: the integer.
    stated: the product of the sizes of the axes, if the model's file states them.

    >>> 2 * Size("T") * Size("N") == Size("NT", times=2)
    True
    >>> Size("N", stated=3) == 3, Size("N") == 3
    (True, False)
    """

    letters: str
    times: int = 1
    stated: int | None = None

    def __mul__(self, other: Any) -> "Size":
        if isinstance(other, Size):
            both = (self.stated, other.stated)
            stated = None if None in both else prod(size for size in both if size is not None)
            return Size("".join(sorted(self.letters + other.letters)), self.times * other.times, stated)
        return Size(self.letters, self.times * int(other), self.stated)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Size):
            left = list(self.letters)
            if self.times % other.times or any(letter not in left for letter in other.letters):
                return NotImplemented
            for letter in other.letters:
                left.remove(letter)
            times = self.times // other.times
            return Size("".join(left), times) if left else times
        if self.times % int(other):
            raise ModelError(
                "it computes a part of the number of sequences or of steps, which may be no integer"
            )
        return Size(self.letters, self.times // int(other), self.stated)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Size):
            return (self.letters, self.times) == (other.letters, other.times)
        return self.stated is not None and self.stated * self.times == other

    def __hash__(self) -> int:
        return hash((self.letters, self.times))

    def __sub__(self, other: Any) -> "Last | Size":
        return Last(int(other)) if self.letters == STEPS and self.times == 1 else NotImplemented


@dataclass(frozen=True)
class Last:
    """The index of a step counted from the end: the number of steps minus `back`."""

    back: int


def is_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal in every call; raises `ModelError` if that depends on the call."""
    if a == b:
        return True
    for size, other in ((a, b), (b, a)):
        if not isinstance(size, Size):
            continue
        if not isinstance(other, Integral) or (int(other) >= 0 and size.stated is None):
            raise ModelError("it compares the number of sequences or of steps, which differs between calls")
    return False


def product(sizes: Any) -> Any:
    """The product of sizes, of which some may be symbolic."""
    return prod(sizes, start=1)
