"""Memory: where the arrays of a net lie, and all moves of rows between them.

    host          NumPy arrays; `put` and `get` return them as they are
    a device      handles of its buffers; `put` and `get` copy

The parts of a schedule compute. Everything between two parts (a value repeated for the steps of its sequence,
a sum over a sequence, the rows of one step of a loop) is a function of the target's memory, so values stay
where they are. Indices and offsets are integers on the host.
"""

from typing import Any, Protocol, TypeVar

import numpy as np

from stepnet.compiler.net.decays import DecayOperands, matrix_gradients
from stepnet.compiler.net.pairs import PAIRED, PairPlaces
from stepnet.compiler.net.reductions import REDUCTIONS
from stepnet.compiler.net.types import Type
from stepnet.compiler.net.windows import WINDOWED, Window
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
Kind = TypeVar("Kind")


class Buffer(Protocol):
    """Array in the memory of a target: a NumPy array on the host, else a handle that only its target reads.

    It has no attributes, so that a type checker refuses what would use it as an array of the host.
    """


class TargetMemory(Protocol[Kind]):
    """Memory of a target: how arrays get there and back, and how rows move there.

    `Kind` is the class of its buffers. The first axis of a buffer counts rows.
    """

    def put(self, array: Array) -> Kind:
        """Copies an array of the host into this memory; returns the buffer."""
        ...

    def put_constant(self, array: Array) -> Kind:
        """Copies an array of the host, which nothing changes, into this memory; returns the buffer, which may
        be that of an earlier copy and is only read.
        """
        ...

    def get(self, buffer: Kind) -> Array:
        """Copies a buffer of this memory to the host; returns the array."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Kind:
        """Makes a buffer of zeros in this memory, with this shape and dtype."""
        ...

    def copy(self, buffer: Kind) -> Kind:
        """Makes a buffer with the contents of another one."""
        ...

    def contiguous(self, buffer: Kind) -> Kind:
        """Returns the buffer, or a copy of it, with its rows one after the other."""
        ...

    def take(self, buffer: Kind, indices: Array) -> Kind:
        """Makes a buffer of the rows at the indices `indices`, in this order."""
        ...

    def write(self, buffer: Kind, indices: Array, rows: Kind) -> None:
        """Replaces rows of a buffer in place: those at `indices`, by as many rows or a single one."""
        ...

    def repeat(self, buffer: Kind, counts: Array) -> Kind:
        """Makes a buffer in which each row i of the given buffer occurs `counts[i]` times, in order."""
        ...

    def rows(self, buffer: Kind, count: int) -> Kind:
        """Makes a buffer of `count` rows, each of which is the whole given buffer."""
        ...

    def reduce(self, how: str, buffer: Kind, offsets: Array) -> Kind:
        """Reduces each sequence's rows to one by `how`: "sum", "mean" or "max"; zeros for empty ones."""
        ...

    def windowed(self, operation: str, buffer: Kind, made: Array, offsets: Array, window: Window) -> Kind:
        """Copies windows (some neighbouring steps for each result) of the rows of each sequence, for the
        operation "windows", or adds the entries of windows to the rows that they are of, for "overlap".

        made, offsets: the offsets of both, where each sequence begins and ends, in the result and in the
            given buffer.
        """
        ...

    def paired(self, operation: str, first: Kind, second: Kind, pairs: PairPlaces, over: str) -> Kind:
        """Computes an operation on pairs of steps, a query with each of its keys. "scores" multiplies the
        queries `first` and the keys `second` at their pairs. "mix" sums the values `second` with the weights
        `first`, which lie at the pairs, over the keys of each query or the queries of each key.

        pairs: where the queries, keys and pairs of each sequence begin. over: "keys" or "queries" for "mix";
            not read for "scores".
        """
        ...

    def matrix_gradients(self, operands: DecayOperands[Kind], offsets: Array, reverse: bool) -> Kind:
        """Computes the gradients of a matrix that decays. offsets: where each sequence begins and ends.
        reverse: whether they run from their last step.
        """
        ...


@dataclass(frozen=True)
class HostMemory:
    """Memory of the CPU: buffers are NumPy arrays."""

    def put(self, array: Array) -> Array:
        """Makes a buffer of an array: returns the array itself, as the buffers of the host are arrays."""
        return array

    put_constant = put

    def get(self, buffer: Array) -> Array:
        """Makes an array of a buffer: returns the buffer itself, as the buffers of the host are arrays."""
        return buffer

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Makes a new array of zeros with this shape and dtype."""
        return np.zeros(shape, dtype)

    def copy(self, buffer: Array) -> Array:
        """Copies an array, so that the original stays unchanged when the copy is written to."""
        return np.array(buffer)

    def contiguous(self, buffer: Array) -> Array:
        """Returns the array itself if it is C-contiguous, or a copy that is."""
        return np.asarray(buffer, order="C")

    def take(self, buffer: Array, indices: Array) -> Array:
        """Makes an array of the rows of another one at the indices `indices`, in this order."""
        return buffer[indices]

    def write(self, buffer: Array, indices: Array, rows: Array) -> None:
        """Replaces rows of an array in place: those at `indices`, by as many rows or a single one."""
        buffer[indices] = rows

    def repeat(self, buffer: Array, counts: Array) -> Array:
        """Repeats each row i of the array `counts[i]` times."""
        return np.repeat(buffer, counts, axis=0)

    def rows(self, buffer: Array, count: int) -> Array:
        """Makes a view with `count` rows, each of which is the whole given array."""
        return np.broadcast_to(buffer, (count, *buffer.shape))

    def reduce(self, how: str, buffer: Array, offsets: Array) -> Array:
        """Reduces the rows of each sequence to one row, by the reduction `how`, such as "sum" or "last"."""
        return REDUCTIONS[how](buffer, offsets)

    def windowed(self, operation: str, buffer: Array, made: Array, offsets: Array, window: Window) -> Array:
        """Copies windows of rows, or adds them up: the operation "windows" or "overlap"."""
        return WINDOWED[operation](buffer, made, offsets, window)

    def paired(self, operation: str, first: Array, second: Array, pairs: PairPlaces, over: str) -> Array:
        """Computes values at pairs of steps, or sums over pairs: the operation "scores" or "mix"."""
        return PAIRED[operation](first, second, pairs, over)

    def matrix_gradients(self, operands: DecayOperands[Array], offsets: Array, reverse: bool) -> Array:
        """Computes the gradients of a matrix that decays."""
        return matrix_gradients(operands, offsets, reverse)


HOST = HostMemory()
AnyMemory = TargetMemory[Any]
"""The memory of some target, which is given its own buffers."""


def scattered(memory: AnyMemory, type_: Type, count: int, indices: Array, rows: Buffer) -> Buffer:
    """Makes a buffer of `count` rows of a type: those at `indices` are the given rows, all others zeros."""
    out: Buffer = memory.zeros((count, *type_.shape), type_.dtype)
    memory.write(out, indices, rows)
    return out
