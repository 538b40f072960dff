"""Padding: the positions of steps in an array [steps, rows]. It is on the side that the direction reads last.

left2right    a a a    right2left    a a a       the primitive reads the steps of a sequence first and its
              b b .                  . b b       padding afterwards, so padding does not affect outputs
              c . .                  . . c       (drawn as [rows, steps])
"""

import numpy as np

from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.onednn.cache import MEGABYTE, Cache
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import positions_of
from stepnet.ragged.positions import Positions

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Padding:
    """Padded layout of a call.

    steps, rows: the sizes of the padded array.
    target: for each step, sequence by sequence, its row in the flat padded array [steps * rows].
    source: for each step, its row in the caller's array; None if the steps are in order and without gaps.
    is_contiguous: whether the caller's array already has the padded layout.
    last: for each sequence, the row of its last computed step in the flat array; arbitrary if it is empty.
    empty: a mask of the empty sequences; None if there are none.
    lengths: the lengths of the sequences.
    ends: the distinct lengths above 0, in increasing order.
    """

    steps: int
    rows: int
    target: Array
    source: Array | None
    is_contiguous: bool
    last: Array
    empty: Array | None
    lengths: Array
    ends: tuple[int, ...]

    @property
    def even(self) -> bool:
        """Tells whether all sequences are equally long, so that nothing is padded."""
        return self.empty is None and len(self.ends) < 2

    @property
    def bytes(self) -> int:
        """The size in bytes of the tables of this padded layout, for the bound of the cache that holds it."""
        tables = self.target, self.source, self.last, self.empty, self.lengths
        return sum(array.nbytes for array in tables if array is not None)

    def packed(self, values: Array) -> Array:
        """Returns the steps of all sequences end to end, from an array in the caller's layout."""
        return values if self.source is None else values[self.source]

    def padded(self, values: Array) -> Array:
        """Copies values of all steps of a call to an array [steps, rows, ...], with zeros as padding.

        values: [steps of all sequences, ...] as the caller has them: sequence by sequence, or in another
        order, with gaps.
        """
        padded = np.zeros((self.steps * self.rows, *values.shape[1:]), values.dtype)
        padded[self.target] = self.packed(values)
        return padded.reshape(self.steps, self.rows, *values.shape[1:])

    def unpadded(self, flat: Array, total: int) -> Array:
        """Copies padded values [steps * rows, ...] to an array [total, ...] in the caller's layout (sequence
        by sequence, possibly with gaps), as float32. Gaps between sequences are zeros. total: the caller's
        number of steps, gaps included.
        """
        steps = flat.take(self.target, axis=0).astype(np.float32, copy=False)
        if self.source is None:
            return steps
        result = np.zeros((total, *flat.shape[1:]), np.float32)
        result[self.source] = steps
        return result


def padding(call: Call, reverse: bool) -> Padding:
    """Returns the padded layout of a call's sequences, from a cache: the index of each of their steps in an
    array [steps, rows]. reverse: whether padding is ahead of the steps.
    """
    positions = call.positions
    steps = None if positions.steps is None else positions.steps.tobytes()
    key = (positions.starts.tobytes(), positions.lengths.tobytes(), steps, positions.total, reverse)
    return PADDINGS.get(key, lambda: padding_for(positions, reverse))


def padding_of(offsets: Array, reverse: bool) -> Padding:
    """Returns the padded layout (the index of each step in an array [steps, rows]) of sequences that begin
    and end at these offsets, from a cache.

    reverse: whether padding is ahead of the steps, as a reverse direction needs it.
    """

    def packed() -> Padding:
        """Makes the padded layout of these sequences, if the cache does not have it."""
        return padding_for(Positions.end_to_end(offsets), reverse)

    return PADDINGS.get((offsets.tobytes(), reverse), packed)


def padding_for(positions: Positions, reverse: bool) -> Padding:
    """Computes the padded layout of sequences: the index of each of their steps in an array [steps, rows].

    reverse: whether padding is ahead of the steps, as a reverse direction needs it.
    """
    lengths = positions.lengths
    steps, rows = int(lengths.max(initial=0)), len(lengths)
    first = steps - lengths if reverse else np.zeros_like(lengths)
    numbers = np.arange(rows)
    target = positions_of(first, lengths) * rows + np.repeat(numbers, lengths)
    source, total = positions.all_step_indices, positions.total
    in_order = len(source) == total and np.array_equal(source, np.arange(total))
    is_contiguous = len(source) == total == steps * rows and np.array_equal(source, target)
    ends = first if reverse else lengths - 1
    empty = lengths == 0
    last = np.where(empty, 0, ends) * rows + numbers
    different = tuple(int(length) for length in np.unique(lengths) if length)
    return Padding(
        steps,
        rows,
        target,
        None if in_order else source,
        is_contiguous,
        last,
        empty if empty.any() else None,
        lengths,
        different,
    )


PADDINGS: Cache[Padding] = Cache(256, 16 * MEGABYTE, lambda padding: padding.bytes)
