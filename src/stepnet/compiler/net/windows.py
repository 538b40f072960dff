"""Windows of neighbouring steps: what a convolution reads at each step, and the sum that undoes it.

    x           a b c                    size 3, before 2: each step with the two steps before it
    windows     00a 0ab abc              zeros outside of the sequence
    overlap     the adjoint: each entry of a window is added to the step that it was read from

Every sequence has windows of its own steps only. There are as many as it has steps, or with a stride or fewer
zeros around it as the name of their axis says (`derived.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stepnet.compiler.net.derived import Lengths, derived_axis

Array = np.ndarray
LARGEST = 2**31 - 1
"""The largest dilation, and the most steps from the first one of a window to the last one."""


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
        """The attributes of a node with this window; a stride of 1 and no lost windows are left out."""
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
        """The reason why there is no such window; None for a window that there is."""
        if min(self.size, self.dilation, self.stride) < 1:
            return f"a window has at least one step, and a dilation and a stride of at least one, not {self}"
        if max(self.dilation, self.reach, self.stride, self.before, abs(self.lost)) > LARGEST:
            return f"a window reaches over at most {LARGEST} steps, not {self}"
        if self.keeps_lengths and not 0 <= self.before <= self.reach:
            return f"a window has its own step between its first and its last one, which {self} has not"
        if self.same not in SAME or (self.same and (self.before or self.lost)):
            return f"windows in the middle have no zeros of their own, unlike {self}"
        if not self.same and (self.before < 0 or self.lost > self.reach - self.before):
            return f"there are at least no zeros around a sequence, unlike with {self}"
        return None

    def befores(self, lengths: Array) -> Array:
        """Returns how many steps of zeros are ahead of sequences of these lengths."""
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
        for entry in range(self.size):
            read = begins + firsts + entry * self.dilation
            inside = (begins <= read) & (read < ends)
            yield numbers[inside], read[inside]


SAME = ("", "upper", "lower")
FIELDS = tuple(field.name for field in fields(Window))


def windows(values: Array, made_offsets: Array, offsets: Array, window: Window) -> Array:
    """Copies windows of steps: [steps, features...] to [windows, size, features...].

    made_offsets, offsets: where the windows of each sequence begin and end, and its steps.
    """
    made = np.zeros((int(made_offsets[-1]), window.size, *values.shape[1:]), values.dtype)
    for entry, (numbers, read) in enumerate(window.pairs(made_offsets, offsets)):
        made[numbers, entry] = values[read]
    return made


def overlap(values: Array, made_offsets: Array, offsets: Array, window: Window) -> Array:
    """Adds each entry of a window to the step that `windows` reads it from: [windows, size, features...] to
    [steps, features...]. A sum begins with zero and adds entry after entry.

    made_offsets, offsets: where the steps of each sequence begin and end, and its windows.
    """
    made = np.zeros((int(made_offsets[-1]), *values.shape[2:]), values.dtype)
    for entry, (numbers, read) in enumerate(window.pairs(offsets, made_offsets)):
        made[read] += values[numbers, entry]
    return made


WINDOWED = {"windows": windows, "overlap": overlap}
"""The functions of the operations that read neighbouring steps, by the name of the operation."""
