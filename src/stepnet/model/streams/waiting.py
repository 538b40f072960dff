"""Steps of several rows, end to end, as the parts of a stream of chunks pass them on and keep them."""

from typing import Any, Self

import numpy as np

from stepnet.compiler.net.types import Type
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import offsets_of, positions_of

Array = np.ndarray


@dataclass(frozen=True)
class WaitingSteps:
    """Steps of several rows: values end to end, and the number of steps of each row.

    values: [total, features...]. lengths: int64 [rows].
    """

    values: Array
    lengths: Array

    @classmethod
    def zeros(cls, lengths: Array, type_: Type) -> Self:
        """Makes `lengths[i]` steps of zeros for each row i. type_: the type of a step, at any extent."""
        return cls(np.zeros((int(lengths.sum()), *type_.shape), type_.dtype), lengths)

    @classmethod
    def at(cls, values: Array, lengths: Array, offsets: Array) -> Self:
        """Makes steps whose offsets are known already."""
        made = cls(values, lengths)
        made.__dict__["offsets"] = offsets
        return made

    @computed_once
    def offsets(self) -> Array:
        """Where the steps of each row begin and end: int64 [rows + 1]."""
        return offsets_of(self.lengths)

    def before(self, others: "WaitingSteps") -> "WaitingSteps":
        """Returns these steps of each row, and then the others of the same row."""
        if not len(self.values):
            return others
        if not len(others.values):
            return self
        lengths, both = self.lengths + others.lengths, np.concatenate([self.values, others.values])
        if len(lengths) == 1:
            return WaitingSteps(both, lengths)
        starts = np.stack([self.offsets[:-1], others.offsets[:-1] + len(self.values)], axis=1)
        counts = np.stack([self.lengths, others.lengths], axis=1)
        return WaitingSteps(both[positions_of(starts.ravel(), counts.ravel())], lengths)

    def split(self, counts: Array) -> "tuple[WaitingSteps, WaitingSteps]":
        """Divides the steps of each row i into the first `counts[i]` and the rest.

        The rest is a copy, as it is kept when the caller's array may have other contents.
        """
        rest, starts = self.lengths - counts, self.offsets[:-1]
        if not rest.any():
            return self, WaitingSteps(self.values[:0], rest)
        if len(counts) == 1:
            place = int(counts[0])
            return WaitingSteps(self.values[:place], counts), WaitingSteps(self.values[place:].copy(), rest)
        first, others = (
            self.values[positions_of(*some)] for some in ((starts, counts), (starts + counts, rest))
        )
        return WaitingSteps(first, counts), WaitingSteps(others, rest)

    def of(self, rows: Array) -> "WaitingSteps":
        """Returns the steps of some rows, in their order. rows: the indices of the rows."""
        lengths = self.lengths[rows]
        return WaitingSteps(self.values[positions_of(self.offsets[rows], lengths)], lengths)

    def with_rows(self, rows: Array, others: "WaitingSteps") -> "WaitingSteps":
        """Returns these steps with some rows' steps replaced. rows: their indices. others: the new steps."""
        starts, lengths = self.offsets[:-1].copy(), self.lengths.copy()
        starts[rows], lengths[rows] = others.offsets[:-1] + len(self.values), others.lengths
        both = np.concatenate([self.values, others.values])
        return WaitingSteps(both[positions_of(starts, lengths)], lengths)

    def and_rows(self, others: "WaitingSteps") -> "WaitingSteps":
        """Returns the steps of these rows, followed by the steps of further rows."""
        values = np.concatenate([self.values, others.values])
        return WaitingSteps(values, np.concatenate([self.lengths, others.lengths]))


Kept = dict[str, Any]
"""The values that a stream of chunks keeps of its rows, by name: arrays [rows, ...], and `WaitingSteps`."""


def kept_of(kept: Kept, rows: Array) -> Kept:
    """Returns the values that a stream keeps of some rows, in their order. rows: the indices of the rows."""
    return {name: own.of(rows) if isinstance(own, WaitingSteps) else own[rows] for name, own in kept.items()}


def kept_with(kept: Kept, rows: Array, others: Kept) -> Kept:
    """Returns the values that a stream keeps, with those of some rows replaced.

    rows: the indices of the rows. others: the new values of these rows, under the same names.
    """
    made: Kept = {}
    for name, own in kept.items():
        if isinstance(own, WaitingSteps):
            made[name] = own.with_rows(rows, others[name])
        else:
            made[name] = np.array(own)
            made[name][rows] = others[name]
    return made


def kept_and(kept: Kept, others: Kept) -> Kept:
    """Returns the values that a stream keeps of its rows, extended by the values of further rows, by name."""
    made: Kept = {}
    for name, own in kept.items():
        more = others[name]
        made[name] = own.and_rows(more) if isinstance(own, WaitingSteps) else np.concatenate([own, more])
    return made
