"""Memory: where the arrays of a net lie, and all moves of rows between them.

    host          NumPy arrays; `put` and `get` return them as they are
    a device      handles of its buffers; `put` and `get` copy

The parts of a schedule compute. Everything between two parts (a value repeated for the steps of its sequence,
a sum over a sequence, the rows of one step of a loop) is a function of the target's memory, so values stay
where they are. Indices and offsets are integers on the host.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stepnet.compiler.net.reductions import REDUCTIONS

Array = np.ndarray
Buffer = Any
"""An array in the memory of a target: a NumPy array on the host, else a handle that its target can read."""


class Memory(Protocol):
    """The memory of a target. The first axis of a buffer counts rows."""

    def put(self, array: Array) -> Buffer:
        """A buffer with the contents of an array on the host."""
        ...

    def get(self, buffer: Buffer) -> Array:
        """An array on the host with the contents of a buffer."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Buffer:
        """A new buffer of zeros."""
        ...

    def copy(self, buffer: Buffer) -> Buffer:
        """A new buffer with the contents of another one."""
        ...

    def contiguous(self, buffer: Buffer) -> Buffer:
        """The buffer, or a copy of it, whose rows lie one after the other."""
        ...

    def take(self, buffer: Buffer, places: Array) -> Buffer:
        """The rows at `places`, in this order."""
        ...

    def write(self, buffer: Buffer, places: Array, rows: Buffer) -> None:
        """Replaces the rows at `places`. `rows` may also be a single row, for all of them."""
        ...

    def repeat(self, buffer: Buffer, counts: Array) -> Buffer:
        """Row i, `counts[i]` times, for each row in order."""
        ...

    def rows(self, buffer: Buffer, count: int) -> Buffer:
        """The whole buffer as one row, `count` times."""
        ...

    def reduce(self, how: str, buffer: Buffer, offsets: Array) -> Buffer:
        """The "sum", "mean" or "max" over the rows of each sequence; zeros for an empty sequence."""
        ...


@dataclass(frozen=True)
class HostMemory:
    """NumPy arrays."""

    def put(self, array: Array) -> Array:
        """The array itself."""
        return array

    def get(self, buffer: Array) -> Array:
        """The array itself."""
        return buffer

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array of zeros."""
        return np.zeros(shape, dtype)

    def copy(self, buffer: Array) -> Array:
        """A copy."""
        return np.array(buffer)

    def contiguous(self, buffer: Array) -> Array:
        """The array, or a C-contiguous copy."""
        return np.ascontiguousarray(buffer)

    def take(self, buffer: Array, places: Array) -> Array:
        """The rows at `places`."""
        return buffer[places]

    def write(self, buffer: Array, places: Array, rows: Array) -> None:
        """Replaces the rows at `places`."""
        buffer[places] = rows

    def repeat(self, buffer: Array, counts: Array) -> Array:
        """Row i, `counts[i]` times."""
        return np.repeat(buffer, counts, axis=0)

    def rows(self, buffer: Array, count: int) -> Array:
        """A view with the array in each of `count` rows."""
        return np.broadcast_to(buffer, (count, *buffer.shape))

    def reduce(self, how: str, buffer: Array, offsets: Array) -> Array:
        """The reduction over each sequence."""
        return REDUCTIONS[how](buffer, offsets)


HOST = HostMemory()
