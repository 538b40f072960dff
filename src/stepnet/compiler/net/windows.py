"""Windows of neighbouring steps: what a convolution reads at each step, and the sum that undoes it.

    x           a b c                    size 3, before 2: each step with the two steps before it
    windows     00a 0ab abc              zeros outside of the sequence
    overlap     the adjoint: each entry of a window is added to the step that it was read from

Every sequence has windows of its own steps only. With a stride, or fewer or more zeros around it, it has
another number of them than steps. They are along a *derived axis*, whose name says how its lengths follow:

    steps          a sequence of n steps
    steps[-2/1]    n - 2 steps              windows of 3 steps without zeros around the sequence
    steps[+0/2]    n / 2, rounded up        a stride of 2
    steps[*2+1]    2 n + 1                  a transposed convolution

So values with equal lengths have equal types. Where there are no steps, no axis derived from it has any.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.net.types import AXES
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, NetError
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
LARGEST = 2**31 - 1
"""The largest dilation and stride, and the most steps from the first one of a window to the last one."""
LARGEST_SIZE = 2**16
"""The most steps of a window."""
MOST_DERIVED = 32
"""The largest number of lengths that follow from one another."""
LONGEST = 2**31 - 1
"""The largest length of a sequence along a derived axis."""
FEW = 9
"""Up to this many offsets, Python's numbers are faster than NumPy's."""
NUMBER = r"([+-]?\d{1,12})"
FEWER, MORE = rf"{NUMBER}/{NUMBER}", rf"\*{NUMBER}{NUMBER}"
OWN = r"steps\[\w+\]"
"""The name of the steps of an input whose lengths a call gives, such as `steps[question]`."""


# ---- lengths -----------------------------------------------------------------------------------------------


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
        """Returns the lengths of sequences along a derived axis (as after a stride), from those along the
        axis that it comes from; 0 where there are no steps.

        >>> Lengths(-2, 2).of(np.array([0, 1, 2, 3, 4, 5]))
        array([0, 0, 0, 1, 1, 2])
        """
        if self.multiplies:
            made = lengths * self.factor + self.more
        else:
            made = -((-lengths - self.more) // self.factor)
        return np.where(lengths > 0, np.maximum(made, 0), 0)

    def of_one(self, length: int) -> int:
        """Returns a sequence's length along the derived axis, from `length` along its source axis."""
        more, factor, multiplies = self
        made = length * factor + more if multiplies else -((-length - more) // factor)
        return max(made, 0) if length else 0

    def undoes(self, other: "Lengths") -> bool:
        """Tells whether this change of lengths, after the change `other`, gives the lengths before both.

        So a convolution with a stride goes back to the steps that a transposed one came from.
        """
        if self.multiplies or self.factor != other.factor or other.more < 0:
            return False
        return -self.factor < other.more + self.more <= 0 and (other.multiplies or self.factor == 1)


def derived_axis(axis: str, lengths: Lengths) -> str:
    """Returns the name of the axis whose lengths follow from those of `axis` by the rule `lengths`, as after
    a stride; `axis` itself if they are equal. Equal axes get equal names: two divisions are joined to one,
    and a change that undoes the one before removes it.

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
    if known and can_join(known[-1], lengths) and not is_large(both := together(known[-1], lengths)):
        return derived_axis(joined(source, known[:-1]), both)
    if len(known) >= MOST_DERIVED or is_large(lengths):
        raise NetError(
            f"at most {MOST_DERIVED} lengths follow from one another, by factors of at most {LARGEST}"
        )
    return joined(source, (*known, lengths))


def can_join(first: Lengths, second: Lengths) -> bool:
    """Tells whether two changes of lengths (as by two strides), one after the other, are the same as a single
    one, whatever the lengths are. `first` is applied before `second`.
    """
    if first.multiplies and not second.multiplies:  # some results of a transposed convolution are left out
        return second.factor == 1 and second.more <= 0
    if first.multiplies or second.multiplies:
        return False
    return max(first.more, second.more) <= 0 or (first.factor == 1 and first.more >= 0)


def is_large(lengths: Lengths) -> bool:
    """Tells whether lengths are divided or multiplied by more than `LARGEST`, or as many steps are added."""
    return max(abs(lengths.more), lengths.factor) > LARGEST


def together(first: Lengths, second: Lengths) -> Lengths:
    """Returns the lengths that two changes one after the other give, which `can_join`."""
    if first.multiplies:
        return Lengths(first.more + second.more, first.factor, multiplies=True)
    return Lengths(first.more + second.more * first.factor, first.factor * second.factor)


def joined(source: str, lengths: tuple[Lengths, ...]) -> str:
    """Returns the name of the axis that is derived from `source` by these lengths, one after the other."""
    return source + "".join(f"[{own.text}]" for own in lengths)


@lru_cache(256)
def split(axis: str) -> tuple[str, tuple[Lengths, ...]]:
    """Splits the name of an axis into that of the axis it is derived from and the rules by which its lengths
    follow from those, in order.

    >>> split("steps[question][+0/2]")
    ('steps[question]', (Lengths(more=0, factor=2, multiplies=False),))
    """
    if "[" not in axis:
        return axis, ()
    own = re.match(OWN, axis)
    source = own[0] if own else axis.partition("[")[0]
    parts = axis[len(source) :].split("[")[1:]
    lengths = list[Lengths]()
    for part in parts:
        text = part.removesuffix("]")
        if (fewer := re.fullmatch(FEWER, text)) is not None:
            lengths.append(Lengths(int(fewer[1]), int(fewer[2])))
        elif (more := re.fullmatch(MORE, text)) is not None:
            lengths.append(Lengths(int(more[2]), int(more[1]), multiplies=True))
    return source, tuple(lengths)


def own_axis(name: str) -> str:
    """Returns the name of the axis of an input that has steps of its own (other lengths than the first
    input), from the name of the input.

    >>> own_axis("question.words"), own_axis("words")
    ('steps[question_words]', 'steps[words_]')
    """
    own = re.sub(r"[^0-9A-Za-z_]", "_", name)
    return f"{AXES[1]}[{own}{'_' * (own in AXES)}]"


def own_name(axis: str) -> str:
    """Returns the name of the input that gave an axis of steps its name, as `Spec(axis=)` has it: the reverse
    of `own_axis`; "" for any other axis.

    >>> own_name("steps[question]")
    'question'
    """
    return split(axis)[0].partition("[")[2].removesuffix("]")


def is_own_axis(axis: str) -> bool:
    """Tells whether an axis is that of an input with steps of its own (other lengths than the first input),
    or derived from one.

    >>> is_own_axis("steps[answer][+0/2]"), is_own_axis("steps[+0/2]")
    (True, False)
    """
    return re.match(OWN, axis) is not None


def derived_offsets(axis: str, offsets: Array, beside: Mapping[str, Array] | None = None) -> Array:
    """Returns where sequences begin and end (their offsets) along a derived axis (steps after a stride,
    pooling or padding, or an input's own) from those along the axis of their steps.

    beside: the offsets along the steps of inputs that have steps of their own, by the name of their axis.

    Raises `InputError` for sequences that would be longer than `LONGEST`, and for steps that no input has.
    """
    source = split(axis)[0]
    if source != AXES[1]:
        offsets = given_offsets(source, beside or {})
    if len(offsets) <= FEW:  # in a quarter of the time
        counts = [derived_length(axis, end - begin) for begin, end in pairwise(offsets.tolist())]
        return np.array([*accumulate(counts, initial=0)])
    lengths = np.diff(offsets)
    for own in split(axis)[1]:
        check_longest(axis, own, int(lengths.max()))
        lengths = own.of(lengths)
    return offsets_of(lengths)


def given_offsets(axis: str, beside: Mapping[str, Array]) -> Array:
    """Returns where the sequences of an input with steps of its own begin and end; raises `InputError` if no
    input has such steps. beside: these offsets of a call, by the names of the inputs' axes.
    """
    if axis not in beside:
        raise InputError(f"the model has values at {axis}, and no input of the call has these steps")
    return beside[axis]


@lru_cache(2**12)
def derived_length(axis: str, length: int) -> int:
    """Returns the length of a sequence of `length` steps along a derived axis, as after a stride.

    Raises `InputError` for one that would be longer than `LONGEST`.

    >>> derived_length("steps[+0/2]", 5)
    3
    """
    for own in split(axis)[1]:
        check_longest(axis, own, length)
        length = own.of_one(length)
    return length


def check_longest(axis: str, lengths: Lengths, longest: int) -> None:
    """Raises `InputError` for a sequence that would be longer than `LONGEST`.

    axis: the name of the derived axis. lengths: how its lengths follow from those of the axis before.
    longest: the length of the longest sequence before.
    """
    if longest * (lengths.factor if lengths.multiplies else 1) + lengths.more > LONGEST:
        raise InputError(f"a sequence of {longest} steps is too long for the steps {axis}")


def most_per_step(axis: str) -> float:
    """Returns the largest number of entries that there are along an axis for each step of the inputs: 1 for
    the steps, less after a stride, more after a transposed convolution.

    >>> most_per_step("steps"), most_per_step("steps[*2+1]"), most_per_step("steps[+0/2]")
    (1.0, 3.0, 0.5)

    >>> most_per_step(f"steps[+0/{LARGEST}][*3+0]")
    3.0
    """
    most = 1.0
    for own in split(axis)[1]:
        more = max(own.more, 0)
        if own.multiplies:
            most = most * own.factor + more
        else:
            most = 1.0 if own.factor == LARGEST else (most + more) / own.factor
    return most


def is_derived_name(axis: str) -> bool:
    """Tells whether a text is the name of a derived axis of steps, in the form that `derived_axis` writes."""
    source, lengths = split(axis)
    is_own = re.fullmatch(OWN, source) is not None
    if not (is_own or source == AXES[1]) or joined(source, lengths) != axis:
        return False
    if not 1 - is_own <= len(lengths) <= MOST_DERIVED:
        return False
    return all(own.factor > 0 and not is_large(own) for own in lengths)


# ---- windows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Steps of a window: window t has those at t * stride - before + j * dilation, for j < size.

    lost: the number of windows that there are fewer than steps at a stride of 1; negative if there are more.
    same: "upper" or "lower" for windows that lie in the middle of each sequence, which has one for every
        `stride` steps: `before` then follows from its length, and of an odd number of zeros there is one more
        behind ("upper") or ahead ("lower"). So does TensorFlow's padding SAME. "" for others.

    >>> Window(size=3, dilation=2, before=4).after
    0
    >>> Window(size=3, dilation=1, before=0, stride=2, lost=2).lengths.of(np.array([5, 6, 7]))
    array([2, 2, 3])
    """

    size: int
    dilation: int
    before: int
    stride: int = 1
    lost: int = 0
    same: str = ""

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Window":
        """Makes the window from the attributes of a `windows` or an `overlap` node."""
        return cls(**{name: attributes[name] for name in FIELDS if name in attributes})

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a node `windows` or `overlap` with this window: its size, dilation and number of
        steps before; the stride, the number of windows lost, and the placement only if there may be another
        number of windows than steps.
        """
        own = {"size": self.size, "dilation": self.dilation, "before": self.before}
        more = {"stride": self.stride, "lost": self.lost} | ({"same": self.same} if self.same else {})
        return own if self.keeps_lengths else own | more

    @property
    def keeps_lengths(self) -> bool:
        """Tells whether there are as many windows as steps."""
        return (self.stride, self.lost, self.same) == (1, 0, "")

    @property
    def lengths(self) -> Lengths:
        """The number of windows of a sequence, from its number of steps."""
        return Lengths(-self.lost, self.stride)

    def axis(self, steps: str) -> str:
        """Returns the name of the axis of the windows of steps along the axis `steps`."""
        return derived_axis(steps, self.lengths)

    @property
    def reach(self) -> int:
        """The number of steps from the first step of a window to the last one."""
        return (self.size - 1) * self.dilation

    @property
    def after(self) -> int:
        """The number of steps that a window reaches beyond its own step."""
        return self.reach - self.before

    @property
    def refusal(self) -> str | None:
        """The reason why these numbers describe no window of steps; None for a window that there is."""
        if min(self.size, self.dilation, self.stride) < 1:
            return f"a window has at least one step, and a dilation and a stride of at least one, not {self}"
        if max(self.dilation, self.reach, self.stride, self.before, abs(self.lost)) > LARGEST:
            return f"a window reaches over at most {LARGEST} steps, not {self}"
        if self.size > LARGEST_SIZE:
            return f"a window has at most {LARGEST_SIZE} steps, not {self}"
        if self.keeps_lengths and not 0 <= self.before <= self.reach:
            return f"a window has its own step between its first and its last one, which {self} has not"
        if self.same not in SAME or (self.same and (self.before or self.lost)):
            return f"windows in the middle have no zeros of their own, unlike {self}"
        if not self.same and (self.before < 0 or self.lost > self.reach - self.before):
            return f"there are at least no zeros around a sequence, unlike with {self}"
        return None

    def befores(self, lengths: Array) -> Array:
        """Returns the number of steps of zeros that windows of sequences of these lengths see ahead of them:
        a fixed number, or, for windows placed in the middle ("same"), half of those that the length needs.
        """
        if not self.same:
            return np.full(len(lengths), self.before)
        zeros = np.maximum((self.lengths.of(lengths) - 1) * self.stride + self.reach + 1 - lengths, 0)
        return (zeros + (self.same == "lower")) // 2

    def pairs(self, windows: Array, steps: Array) -> Iterator[tuple[Array, Array]]:
        """Yields, for each entry of a window, the indices of the windows that have it, and those of the steps
        that it is read from.

        windows, steps: the offsets of both, where those of each sequence begin and end.
        """
        lengths = np.diff(windows)
        numbers = np.arange(int(windows[-1]))
        befores = np.repeat(self.befores(np.diff(steps)), lengths)
        firsts = (numbers - np.repeat(windows[:-1], lengths)) * self.stride - befores
        begins, ends = np.repeat(steps[:-1], lengths), np.repeat(steps[1:], lengths)
        longest = int(np.diff(steps).max(initial=0))
        for entry in range(self.size):
            if entry * self.dilation + int(firsts.min(initial=0)) >= longest:
                break  # this entry and later ones are behind all sequences
            read = begins + firsts + entry * self.dilation
            inside = (begins <= read) & (read < ends)
            yield numbers[inside], read[inside]


SAME = ("", "upper", "lower")
FIELDS = tuple(field.name for field in fields(Window))


def check_room(operation: str, made: Array, offsets: Array, window: Window) -> None:
    """Raises `InputError` if the result of `operation`, "windows" or "overlap", has more entries in a
    sequence than its operand can have windows or steps for, as a damaged file may say.

    made, offsets: where the entries of each sequence begin and end, in the result and in the operand.
    """
    most, longest = (int(np.diff(each).max(initial=0)) for each in (made, offsets))
    if operation == "overlap":
        room = (longest + 1) * window.stride + window.reach
    else:
        room = (longest + 2 * window.before + abs(window.lost) + window.reach) // window.stride + 2
    if most > room:
        raise InputError(f"{operation} of {longest} steps has {most} results, more than {window} gives")


def windows(values: Array, made_offsets: Array, offsets: Array, window: Window) -> Array:
    """Copies for each result some neighbouring steps (its window): [steps, features...] to [windows, size,
    features...], with zeros beyond the sequence.

    made_offsets: where the windows of each sequence begin and end. offsets: where its steps do.
    """
    check_room("windows", made_offsets, offsets, window)
    made = np.zeros((int(made_offsets[-1]), window.size, *values.shape[1:]), values.dtype)
    for entry, (numbers, read) in enumerate(window.pairs(made_offsets, offsets)):
        made[numbers, entry] = values[read]
    return made


def overlap(values: Array, made_offsets: Array, offsets: Array, window: Window) -> Array:
    """Adds each entry of a window to the step that `windows` reads it from: [windows, size, features...] to
    [steps, features...]. A sum begins with zero and adds entry after entry.

    made_offsets: where the steps of each sequence begin and end. offsets: where its windows do.
    """
    check_room("overlap", made_offsets, offsets, window)
    made = np.zeros((int(made_offsets[-1]), *values.shape[2:]), values.dtype)
    for entry, (numbers, read) in enumerate(window.pairs(offsets, made_offsets)):
        made[read] += values[numbers, entry]
    return made


WINDOWED = {"windows": windows, "overlap": overlap}
"""The functions of the operations that read neighbouring steps, by the name of the operation."""
