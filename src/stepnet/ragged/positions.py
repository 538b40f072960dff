"""Positions: where the steps of a batch of sequences lie in arrays.

    arrays [total, features]    a0 a1 a2 b0 b1        end to end      starts 0 3    lengths 3 2
                                a0 b0 a1 b1 a2 .      time-major      starts 0 1    lengths 3 2    steps 0 2 4

Positions are integers in host memory, whichever device holds the arrays. Everything that is derived from them
(whether sequences lie end to end, tables for machine code, padding) is computed once, and shared by all calls
at these positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Self

import numpy as np

from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import Array, offsets_of, positions_of

LARGEST_KEY = 2**16
"""The bytes of positions up to which they have a key."""


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of the steps of a batch of sequences in arrays, in which they lie end to end or padded.

    starts, lengths: int64 [batch], the index of each sequence's first step, and its number of steps.
    total: the number of entries in the arrays, padding included.
    steps: int64, step t of sequence i is at the index starts[i] + steps[t]; None for starts[i] + t.
    inner: the offsets of each level of inner sequences, outermost first.
    beside: the offsets of static sequences, such as the keys of attention (the same at every step, with a
        length per row), by the name of their axis.
    numbers: the caller's number of each sequence, for messages; None if they are in the caller's order.
    derived: values that targets derive from these positions, by name.
    """

    starts: Array
    lengths: Array
    total: int
    steps: Array | None = None
    inner: tuple[Array, ...] = ()
    beside: Mapping[str, Array] = field(default_factory=dict[str, Array])
    numbers: Array | None = None
    derived: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False)

    @classmethod
    def end_to_end(
        cls, offsets: Array, inner: tuple[Array, ...] = (), beside: Mapping[str, Array] | None = None
    ) -> Self:
        """Returns the positions of sequences that lie end to end, in order and without gaps.

        offsets: int64 [batch + 1], from 0 on. inner: the offsets of each level of inner sequences.
        beside: the offsets of static sequences, such as the keys of attention, by the name of their axis.

        >>> Positions.end_to_end(np.array([0, 3, 5])).lengths
        array([3, 2])
        """
        starts, ends = offsets[:-1], offsets[1:]
        positions = cls(starts, ends - starts, int(offsets[-1]), None, inner, beside or {})
        positions.__dict__.update(offsets=offsets, is_packed=True)
        return positions

    @classmethod
    def padded(cls, lengths: Array, time: int, time_major: bool = False) -> Self:
        """Returns the positions of sequences in arrays [batch, time, ...], each from the first step on.

        lengths: int64 [batch]. time: the number of steps that the arrays have room for.
        time_major: whether the arrays are [time, batch, ...].

        >>> Positions.padded(np.array([3, 1]), 3).starts, Positions.padded(np.array([3, 1]), 3, True).steps
        (array([0, 3]), array([0, 2, 4]))
        """
        count, rows = len(lengths), np.arange(len(lengths), dtype=np.int64)
        if time_major:
            return cls(rows, lengths, count * time, np.arange(time, dtype=np.int64) * count)
        return cls(rows * time, lengths, count * time)

    def with_statics(self, beside: Mapping[str, Array]) -> Self:
        """Returns these positions with the offsets of static sequences: inputs such as the keys of attention,
        which every step reads whole, with a length for each row (sequence of the batch).

        beside: the offsets of the rows in each, by the name of the axis of its steps, such as "keys"; empty
            if there are none.
        """
        return replace(self, beside=beside) if beside else self

    def derive(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the value of this name that a target derives from these positions: made at the first call,
        and kept. Of threads that make it at once, all get the same one: machine code reads its memory, which
        goes with the value.
        """
        found = self.derived.get(name)
        return self.derived.setdefault(name, make()) if found is None else found

    @property
    def rows(self) -> int:
        """The number of sequences of the batch, which are the rows of a step."""
        return len(self.lengths)

    @computed_once
    def is_full(self) -> bool:
        """True if every sequence of the batch has at least one step."""
        return bool(self.lengths.all())

    @computed_once
    def is_even(self) -> bool:
        """True if all sequences of the batch have the same number of steps, and no inner sequences."""
        return not self.inner and bool((self.lengths == self.lengths[:1]).all())

    @computed_once
    def offsets(self) -> Array:
        """The offsets that the sequences would have if stored end to end: prefix sums of the lengths."""
        return offsets_of(self.lengths)

    @computed_once
    def is_packed(self) -> bool:
        """True if the sequences lie in the arrays end to end, in order and without gaps."""
        dense = self.steps is None and int(self.offsets[-1]) == self.total
        return dense and np.array_equal(self.starts, self.offsets[:-1])

    @computed_once
    def key(self) -> tuple[Any, ...] | None:
        """A hashable value of these positions that only equal ones share, for caches; None for positions of
        more than `LARGEST_KEY` bytes, whose comparison would take too long.
        """
        tables = (
            self.starts,
            self.lengths,
            *(() if self.steps is None else (self.steps,)),
            *self.inner,
            *self.beside.values(),
        )
        if sum(table.nbytes for table in tables) > LARGEST_KEY:
            return None
        return self.total, len(self.inner), tuple(self.beside), *(table.tobytes() for table in tables)

    def step_indices(self, rows: Array, first: Array, lengths: Array) -> Array:
        """Returns the indices in the arrays of `lengths[i]` steps, from step `first[i]` on, of each sequence
        `rows[i]`. An example is two sequences of two steps each, interleaved as in a batch [time, batch,
        features]:

        >>> batch = Positions(np.arange(2), np.full(2, 2), 4, steps=2 * np.arange(2))
        >>> batch.step_indices(np.arange(2), np.zeros(2, np.int64), batch.lengths)
        array([0, 2, 1, 3])
        """
        numbers = positions_of(first, lengths)
        return np.repeat(self.starts[rows], lengths) + (
            numbers if self.steps is None else self.steps[numbers]
        )

    @property
    def all_step_indices(self) -> Array:
        """The index of every step in the arrays, sequence after sequence, to gather or scatter values."""
        return self.step_indices(np.arange(self.rows), np.zeros(self.rows, np.int64), self.lengths)

    def ends(self, values: Array, first: bool) -> Array:
        """Returns values [total, ...] at each sequence's last (or `first`) step; 0 if it has no steps."""
        rows, indices = self.end_step_indices(first)
        ends = np.zeros((self.rows, *values.shape[1:]), values.dtype)
        ends[rows] = values[indices]
        return ends

    def end_step_indices(self, first: bool) -> tuple[Array, Array]:
        """Returns (numbers of the sequences that have steps, index in the arrays of the last step of each).
        first: whether the first step of each is taken instead of the last.
        """
        rows = np.flatnonzero(self.lengths)
        numbers = np.zeros(len(rows), np.int64) if first else self.lengths[rows] - 1
        return rows, self.step_indices(rows, numbers, np.ones(len(rows), np.int64))
