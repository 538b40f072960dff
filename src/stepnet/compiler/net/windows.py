"""Windows of neighbouring steps: what a convolution reads at each step, and the sum that undoes it.

    x           a b c                    size 3, before 2: each step with the two steps before it
    windows     00a 0ab abc              zeros outside of the sequence
    overlap     the adjoint: each entry of a window is added to the step that it was read from

Every sequence has windows of its own steps only, and as many as it has steps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
LARGEST = 2**31 - 1
"""The largest dilation, and the most steps from the first one of a window to the last one."""


@dataclass(frozen=True)
class Window:
    """Steps of a window: at step t those at t - before + j * dilation, for j < size.

    >>> Window(size=3, dilation=2, before=4).after
    0
    """

    size: int
    dilation: int
    before: int

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Window":
        """Makes the window from the attributes of a `windows` or an `overlap` node."""
        return cls(attributes["size"], attributes["dilation"], attributes["before"])

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
        if self.size < 1 or self.dilation < 1:
            return f"a window has at least one step, and a dilation of at least one, not {self}"
        if max(self.dilation, self.reach) > LARGEST:
            return f"a window reaches over at most {LARGEST} steps, not {self}"
        if not 0 <= self.before <= self.reach:
            return f"a window has its own step between its first and its last one, which {self} has not"
        return None

    def pairs(self, offsets: Array) -> Iterator[tuple[Array, Array]]:
        """Yields, for each entry of a window, the indices of the steps whose window has it, and those of the
        steps that it is read from. offsets: where each sequence begins and ends.
        """
        lengths = np.diff(offsets)
        steps = np.arange(int(offsets[-1]))
        begins, ends = np.repeat(offsets[:-1], lengths), np.repeat(offsets[1:], lengths)
        for entry in range(self.size):
            read = steps - self.before + entry * self.dilation
            inside = (begins <= read) & (read < ends)
            yield steps[inside], read[inside]


def windows(values: Array, offsets: Array, window: Window) -> Array:
    """Copies the window of each step: [total, features...] to [total, size, features...].

    offsets: where each sequence begins and ends.
    """
    made = np.zeros((len(values), window.size, *values.shape[1:]), values.dtype)
    for entry, (steps, read) in enumerate(window.pairs(offsets)):
        made[steps, entry] = values[read]
    return made


def overlap(values: Array, offsets: Array, window: Window) -> Array:
    """Adds each entry of a window to the step that `windows` reads it from: [total, size, features...] to
    [total, features...]. A sum begins with zero and adds entry after entry.

    offsets: where each sequence begins and ends.
    """
    made = np.zeros((len(values), *values.shape[2:]), values.dtype)
    for entry, (steps, read) in enumerate(window.pairs(offsets)):
        made[read] += values[steps, entry]
    return made


WINDOWED = {"windows": windows, "overlap": overlap}
"""The functions of the operations that read neighbouring steps, by the name of the operation."""
