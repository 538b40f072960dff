"""Sizes that are known only when a model runs: how many sequences there are, and how many steps."""

from dataclasses import dataclass
from math import prod
from typing import Any

SEQUENCES, STEPS, FEATURE = "N", "T", "_"
"""What an axis of a value is: one letter for each."""


@dataclass(frozen=True, eq=False)
class Size:
    """A product of sizes of axes and a whole number. It stands among the numbers of a shape.

    letters: the axes, sorted. stated: what the model's file says they are together, if it does.

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
        return Size(self.letters, self.times // int(other), self.stated)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Size):
            return (self.letters, self.times) == (other.letters, other.times)
        return self.stated is not None and self.stated * self.times == other

    def __hash__(self) -> int:
        return hash((self.letters, self.times))

    def __lt__(self, other: Any) -> bool:
        return False

    def __gt__(self, other: Any) -> bool:
        return True

    def __sub__(self, other: Any) -> "Last | Size":
        return Last(int(other)) if self.letters == STEPS and self.times == 1 else NotImplemented


@dataclass(frozen=True)
class Last:
    """The place of a step counted from the end: the number of steps less a whole number."""

    back: int


def product(sizes: Any) -> Any:
    """The product of sizes."""
    return prod(sizes, start=1)
