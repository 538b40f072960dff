"""Derived axes: the steps of convolutions with a stride, of pooling and of transposed convolutions.

    steps          a sequence of n steps
    steps[-2/1]    n - 2 steps              a convolution of 3 steps without zeros around the sequence
    steps[+0/2]    n / 2, rounded up        a stride of 2
    steps[*2+1]    2 n + 1                  a transposed convolution

The name of an axis says how its lengths follow from those of the axis that it is derived from, so values with
equal lengths have equal types. Where there are no steps, no axis derived from it has any.
"""

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepnet.compiler.net.types import AXES
from stepnet.errors import InputError, NetError
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
MOST_DERIVED = 32
"""The largest number of lengths that follow from one another."""
LARGEST = 2**31 - 1
"""The largest factor of derived lengths, and the most steps that are added."""
LONGEST = 2**31 - 1
"""The largest length of a sequence along a derived axis."""
NUMBER = r"([+-]?\d{1,12})"
FEWER, MORE = re.compile(rf"{NUMBER}/{NUMBER}"), re.compile(rf"\*{NUMBER}{NUMBER}")


class Lengths(NamedTuple):
    """The lengths along a derived axis, from the lengths n along the one that it is derived from.

    more: the number of steps that are added to n: before division, or after multiplication.
    factor: the number by which n is divided, rounding up, or multiplied.
    multiplies: whether n is multiplied.
    """

    more: int
    factor: int
    multiplies: bool = False

    @property
    def text(self) -> str:
        """The text in the name of the axis: "-2/1" for two steps fewer."""
        return f"*{self.factor}{self.more:+d}" if self.multiplies else f"{self.more:+d}/{self.factor}"

    def of(self, lengths: Array) -> Array:
        """Returns the lengths along the derived axis; 0 where there are no steps.

        >>> Lengths(-2, 2).of(np.array([0, 1, 2, 3, 4, 5]))
        array([0, 0, 0, 1, 1, 2])
        """
        if self.multiplies:
            made = lengths * self.factor + self.more
        else:
            made = -((-lengths - self.more) // self.factor)
        return np.where(lengths > 0, np.maximum(made, 0), 0)

    def undoes(self, other: "Lengths") -> bool:
        """Tells whether the lengths derived from those of `other` are the ones that `other` was derived from.

        So a convolution with a stride goes back to the steps that a transposed one came from.
        """
        if self.multiplies or self.factor != other.factor or other.more < 0:
            return False
        return -self.factor < other.more + self.more <= 0 and (other.multiplies or self.factor == 1)


def derived_axis(axis: str, lengths: Lengths) -> str:
    """Returns the name of the axis whose lengths follow from those of `axis`, or `axis` if they are equal.

    Raises `NetError` for more than `MOST_DERIVED` steps from one axis to another.

    >>> derived_axis(derived_axis("steps", Lengths(-2, 2)), Lengths(-1, 1))
    'steps[-4/2]'
    """
    source, known = split(axis)
    if lengths.factor == 1:
        lengths = Lengths(lengths.more, 1)
    if not lengths.more and lengths.factor == 1:
        return axis
    if known and lengths.undoes(known[-1]):
        return joined(source, known[:-1])
    if known and not (lengths.multiplies or known[-1].multiplies) and max(lengths.more, known[-1].more) <= 0:
        both = together(known[-1], lengths)
        return joined(source, (*known[:-1], both) if not is_large(both) else (*known, lengths))
    if len(known) >= MOST_DERIVED or is_large(lengths):
        raise NetError(
            f"at most {MOST_DERIVED} lengths follow from one another, by factors of at most {LARGEST}"
        )
    return joined(source, (*known, lengths))


def is_large(lengths: Lengths) -> bool:
    """Tells whether lengths are divided or multiplied by more than `LARGEST`, or as many steps are added."""
    return max(abs(lengths.more), lengths.factor) > LARGEST


def together(first: Lengths, second: Lengths) -> Lengths:
    """Returns the lengths that two divisions one after the other give; neither of them adds steps."""
    return Lengths(first.more + second.more * first.factor, first.factor * second.factor)


def joined(source: str, lengths: tuple[Lengths, ...]) -> str:
    """Returns the name of the axis that is derived from `source` by these lengths, one after the other."""
    return source + "".join(f"[{own.text}]" for own in lengths)


@lru_cache(256)
def split(axis: str) -> tuple[str, tuple[Lengths, ...]]:
    """Splits the name of an axis into that of the axis it is derived from and its lengths, in order."""
    source, *parts = axis.split("[")
    lengths = list[Lengths]()
    for part in parts:
        text = part.removesuffix("]")
        if (fewer := FEWER.fullmatch(text)) is not None:
            lengths.append(Lengths(int(fewer[1]), int(fewer[2])))
        elif (more := MORE.fullmatch(text)) is not None:
            lengths.append(Lengths(int(more[2]), int(more[1]), multiplies=True))
    return source, tuple(lengths)


def derived_offsets(axis: str, offsets: Array) -> Array:
    """Returns the offsets of sequences along a derived axis from those along the axis of their steps.

    Raises `InputError` for sequences that would be longer than `LONGEST`.
    """
    lengths = np.diff(offsets)
    for own in split(axis)[1]:
        if int(lengths.max(initial=0)) * (own.factor if own.multiplies else 1) + own.more > LONGEST:
            raise InputError(f"a sequence of {lengths.max()} steps is too long for the steps {axis}")
        lengths = own.of(lengths)
    return offsets_of(lengths)


def is_derived_name(axis: str) -> bool:
    """Tells whether a text is the name of a derived axis of steps, in the form that `derived_axis` writes."""
    source, lengths = split(axis)
    if source != AXES[1] or not 0 < len(lengths) <= MOST_DERIVED or joined(source, lengths) != axis:
        return False
    return all(own.factor > 0 and not is_large(own) for own in lengths)
