"""Where steps lie in an array [steps, rows] with padding, on the side that the direction needs.

left2right    a a a    right2left    a a a       the direction meets the steps first and padding behind
              b b .                  . b b       them, so that padding changes no step's result
              c . .                  . . c
"""

from dataclasses import dataclass

import numpy as np

from stepnet.engines.base import Call
from stepnet.engines.onednn.cache import MEGABYTE, Cache
from stepnet.ragged.offsets import positions_of

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Padding:
    """The places of one call.

    steps, rows: the sizes of the padded array. target: the row of the flat padded array [steps * rows] of
    each step, sequence after sequence. source: the same in the caller's array; None where they lie in order.
    whole: whether the caller's array is the padded one. last: the row of the flat array with the step that
    each sequence ends with; for an empty one any row. empty: the empty sequences; None where there are none.
    ends: the different lengths above 0, shortest first.
    """

    steps: int
    rows: int
    target: Array
    source: Array | None
    whole: bool
    last: Array
    empty: Array | None
    lengths: Array
    ends: tuple[int, ...]

    @property
    def even(self) -> bool:
        """Whether all sequences are equally long."""
        return self.empty is None and len(self.ends) < 2

    @property
    def bytes(self) -> int:
        """The memory of the tables."""
        return sum(array.nbytes for array in (self.target, self.last, self.lengths))

    def picked(self, values: Array) -> Array:
        """The steps of all sequences, one after the other, of values as the caller has them."""
        return values if self.source is None else values[self.source]

    def padded(self, values: Array) -> Array:
        """The caller's values [total, ...] as [steps, rows, ...], with zeros as padding."""
        made = np.zeros((self.steps * self.rows, *values.shape[1:]), values.dtype)
        made[self.target] = self.picked(values)
        return made.reshape(self.steps, self.rows, *values.shape[1:])

    def placed(self, flat: Array, total: int) -> Array:
        """The values of [steps * rows, ...] where the caller's steps lie, as float32; zeros in gaps."""
        steps = flat.take(self.target, axis=0).astype(np.float32, copy=False)
        if self.source is None:
            return steps
        made = np.zeros((total, *flat.shape[1:]), np.float32)
        made[self.source] = steps
        return made


def padding(call: Call, reverse: bool) -> Padding:
    """The places of a call's sequences, made once for those that lie in the same way."""
    steps = None if call.steps is None else call.steps.tobytes()
    key = (call.starts.tobytes(), call.lengths.tobytes(), steps, call.total, reverse)
    return PADDINGS.get(key, lambda: made(call, reverse))


def padding_of(offsets: Array, reverse: bool) -> Padding:
    """The places of sequences that lie end to end."""

    def packed() -> Padding:
        return made(Call((), offsets[:-1], np.diff(offsets), int(offsets[-1]), ()), reverse)

    return PADDINGS.get((offsets.tobytes(), reverse), packed)


def made(call: Call, reverse: bool) -> Padding:
    """The places of a call's sequences."""
    lengths = call.lengths
    steps, rows = int(lengths.max(initial=0)), len(lengths)
    first = steps - lengths if reverse else np.zeros_like(lengths)
    numbers = np.arange(rows)
    target = positions_of(first, lengths) * rows + np.repeat(numbers, lengths)
    source = call.all_places
    in_order = len(source) == call.total and np.array_equal(source, np.arange(call.total))
    whole = len(source) == call.total == steps * rows and np.array_equal(source, target)
    ends = first if reverse else lengths - 1
    empty = lengths == 0
    last = np.where(empty, 0, ends) * rows + numbers
    different = tuple(int(length) for length in np.unique(lengths) if length)
    return Padding(
        steps,
        rows,
        target,
        None if in_order else source,
        whole,
        last,
        empty if empty.any() else None,
        lengths,
        different,
    )


PADDINGS: Cache[Padding] = Cache(256, 16 * MEGABYTE, lambda made: made.bytes)
