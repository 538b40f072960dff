"""The arrays of frame programs, and what loops read and write of them."""

from collections.abc import Sequence

import numpy as np

from stepnet.compiler.targets.frame.routines import DTYPES
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

KINDS = ("constant", "memory", "input", "output", "scratch")


@dataclass(frozen=True)
class FrameBuffer:
    """An array of a frame program.

    name: its name, which is an identifier in C. dtype, size: its dtype and its number of elements.
    kind: "constant", "memory" (kept from frame to frame), "input", "output", or "scratch" (within a frame).
    offset: its place in bytes in the arena for scratch, and in the state for memories; else 0.
    title: the name that the model has for it.
    scale: the factor by which its integers become numbers of the model; None for numbers as they are.
    """

    name: str
    dtype: str
    size: int
    kind: str
    offset: int = 0
    title: str = ""
    scale: float | None = None

    def __post_init__(self) -> None:
        """Raises `NetError` for another dtype or kind, and for a name that is no identifier."""
        if self.dtype not in DTYPES or self.kind not in KINDS or self.size < 1:
            raise NetError(f"{self.name}: no buffer has {self.size} elements of {self.dtype} as {self.kind}")
        if not self.name.isidentifier():
            raise NetError(f"a buffer has the name of an identifier, not {self.name!r}")

    def __str__(self) -> str:
        """Writes the buffer as text, such as `memory h float32[4] at 0`."""
        place = f" at {self.offset}" if self.kind in ("memory", "scratch") else ""
        return f"{self.kind} {self.name} {self.dtype}[{self.size}]{place}"

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """The bytes of the buffer."""
        return self.size * self.itemsize


@dataclass(frozen=True)
class StridedView:
    """Elements of a buffer that a loop reads or writes: the one at `offset` plus the sum of index times
    stride over the axes of the loop.

    buffer: the buffer's name. offset: in elements. strides: in elements, one per axis of the loop, which may
    be 0 and negative.
    """

    buffer: str
    offset: int
    strides: tuple[int, ...]

    def __str__(self) -> str:
        """Writes the view as text, such as `gates[4 + i + 12 j]`, with the last axis first."""
        terms = [str(self.offset)] if self.offset or not any(self.strides) else []
        for stride, letter in zip(reversed(self.strides), "ijklmnpq", strict=False):
            if stride:
                terms.append(letter if stride == 1 else f"{stride} {letter}")
        return f"{self.buffer}[{' + '.join(terms)}]"

    def bounds(self, shape: Sequence[int]) -> tuple[int, int]:
        """Returns the first and the last element that a loop of a shape reads or writes."""
        ends = [(size - 1) * stride for size, stride in zip(shape, self.strides, strict=True)]
        return (
            self.offset + sum(min(end, 0) for end in ends),
            self.offset + sum(max(end, 0) for end in ends),
        )


def comment(about: str) -> str:
    """Returns the comment at the end of a loop's line of text."""
    return f"  # {about}" if about else ""
