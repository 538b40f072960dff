"""Symbolic sizes, known only when a model runs: the number of sequences, of steps, and multiples."""

from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import Lengths, derived_axis
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError

SEQUENCES, STEPS = "sequences", "steps"
"""The symbols that sizes are made of."""


@dataclass(frozen=True, eq=False)
class Size:
    """Size which is known only when a model runs: a product of symbols and an integer. Shapes may hold it.

    symbols: the symbols, sorted.
    times: the integer.
    stated: the product of the symbols, if the model's file states them.

    >>> 2 * Size((STEPS,)) * Size((SEQUENCES,))
    2 x sequences x steps
    >>> Size((SEQUENCES,), stated=3) == 3, Size((SEQUENCES,)) == 3
    (True, False)
    """

    symbols: tuple[str, ...]
    times: int = 1
    stated: int | None = None

    def __mul__(self, other: Any) -> "Size":
        """Multiplies the size by an integer or a symbolic size; raises `ModelError` for a fraction."""
        if isinstance(other, Size):
            both = (self.stated, other.stated)
            stated = None if None in both else prod(size for size in both if size is not None)
            return Size(tuple(sorted(self.symbols + other.symbols)), self.times * other.times, stated)
        return Size(self.symbols, self.times * whole_number(other), self.stated)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        """Divides the size by an integer or by a symbolic size. Raises `ModelError` for an integer that does
        not divide it, and returns `NotImplemented` for such a symbolic size.
        """
        if isinstance(other, Size):
            left = list(self.symbols)
            if self.times % other.times or any(symbol not in left for symbol in other.symbols):
                return NotImplemented
            for symbol in other.symbols:
                left.remove(symbol)
            times = self.times // other.times
            return Size(tuple(left), times) if left else times
        divisor = whole_number(other)
        if not divisor or self.times % divisor:
            raise ModelError(
                "it computes a part of the number of sequences or of steps, which may be no integer"
            )
        return Size(self.symbols, self.times // divisor, self.stated)

    def __eq__(self, other: object) -> bool:
        """Tells whether two sizes are equal in every call, or by the numbers that the file states."""
        if isinstance(other, Size):
            return (self.symbols, self.times) == (other.symbols, other.times)
        return self.stated is not None and self.stated * self.times == other

    def __hash__(self) -> int:
        return hash((self.symbols, self.times))

    def __sub__(self, other: Any) -> "Last | Size":
        """Returns the index of a step counted from the end (`Last`); raises `ModelError` for a fraction."""
        if isinstance(other, Size | Last) or self != Size((STEPS,)):
            return NotImplemented
        return Last(whole_number(other))

    def __add__(self, other: Any) -> "More":
        """Returns the number of steps plus an integer (`More`); raises `ModelError` for a fraction."""
        if isinstance(other, Size | Last | More) or self.times != 1 or len(self.symbols) != 1:
            return NotImplemented
        return More(self, whole_number(other))

    __radd__ = __add__

    def __repr__(self) -> str:
        return " x ".join([str(self.times)] * (self.times != 1) + [*self.symbols])


@dataclass(frozen=True)
class More:
    """Number of steps plus an integer, which is divided next: the parts of a sequence, rounded up.

    steps: the number of steps. more: the integer.

    >>> More(Size((STEPS,)), 1) // 2
    steps[+0/2]
    """

    steps: Size
    more: int

    def __floordiv__(self, other: Any) -> Size:
        """Divides by an integer, rounding down: the size of an axis whose steps follow from others."""
        divisor = whole_number(other)
        if not self.steps.symbols[0].startswith(STEPS) or divisor < 1:
            return NotImplemented
        lengths, stated = Lengths(self.more - divisor + 1, divisor), self.steps.stated
        number = None if stated is None else lengths.of_one(stated)
        return Size((derived_axis(self.steps.symbols[0], lengths),), stated=number)


@dataclass(frozen=True)
class Last:
    """Index of a step counted from the end: the number of steps minus `back`."""

    back: int


def whole_number(number: Any) -> int:
    """Converts a number with which a symbolic size is computed to an integer; `ModelError` for a fraction."""
    if not np.isfinite(number) or int(number) != number:
        raise ModelError(
            f"it computes a size of the number of sequences or of steps and {number}, which is no integer"
        )
    return int(number)


def is_equal(a: Any, b: Any) -> bool:
    """Tells whether two sizes (numbers, or symbols for the number of sequences or steps) are equal in every
    call, or by the numbers that the model's file states; `ModelError` if that depends on the call.
    """
    if a == b:
        return True
    if isinstance(a, Last) or isinstance(b, Last):
        raise ModelError("it compares the number of steps, which differs between calls")
    for size, other in ((a, b), (b, a)):
        if not isinstance(size, Size):
            continue
        if not isinstance(other, Integral) or (int(other) >= 0 and size.stated is None):
            raise ModelError("it compares the number of sequences or of steps, which differs between calls")
    return False


def is_number(size: Any, number: int) -> bool:
    """Tells whether a size is known, not symbolic, and equals a number, such as -1 for an unknown size."""
    return not isinstance(size, Size | Last | More) and int(size) == number


def product(sizes: Any) -> Any:
    """Multiplies sizes, some of which may be symbolic (`Size`); the product of none is 1."""
    return prod(sizes, start=1)
