"""Memories of one layer of a stream: for each slot two that steps alternate between, and the initial one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.model.initial import initial_arrays
from stepnet.model.streams.moment import Moment

Array = np.ndarray
FEW = 4
"""The largest number of rows whose memories are cleared one by one."""


def has_only_zeros(array: Array) -> bool:
    """Returns whether all bits of an array are zero; -0.0 has a nonzero bit."""
    return not np.ascontiguousarray(array).view(np.uint8).any() if array.size else True


class Memories:
    """The memories of one layer of a stream, as arrays [slots, features...] with a slot per row.

    Each slot has two sides: a step reads the memory of one side and writes the other.

    specs: the structure of the memory, with a `Spec` (features and dtype) for each array.
    sides: the arrays of both sides.
    begun: for both sides, the number of steps that the row in each slot has taken.
    counts: whether steps read these numbers.
    first: the memories that `reset` restores.
    """

    def __init__(self, specs: Any, capacity: int) -> None:
        """Allocates memories of zeros for `capacity` rows (sequences) of a stream: two for each row, so that
        a step reads one and writes the other; the initial memories; and counts of steps.

        specs: the features and dtype of each memory, in their structure.
        """
        self.specs, self.capacity = specs, capacity
        self.sides = self.zeros(capacity), self.zeros(capacity)
        self.first = self.zeros(capacity)
        self.begun = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
        self.counts = True

    @classmethod
    def of_layers(cls, parts: "Sequence[Memories]") -> "Memories":
        """Returns the memories of several layers as one `Memories` that shares their arrays, for a step of
        all layers.

        They keep no counts of steps of their own, as such a step does not read its index.
        """
        joined_memories = object.__new__(cls)
        joined_memories.specs, joined_memories.capacity = (
            tuple(part.specs for part in parts),
            parts[0].capacity,
        )
        one, other = ([array for part in parts for array in part.sides[side]] for side in (0, 1))
        joined_memories.sides, joined_memories.begun = (one, other), parts[0].begun
        joined_memories.counts = False
        joined_memories.first = [array for part in parts for array in part.first]
        return joined_memories

    def zeros(self, count: int) -> list[Array]:
        """Returns new memories of zeros for `count` rows."""
        return [np.zeros((count, *spec.shape), spec.dtype) for spec in leaves(self.specs)]

    def grown(self, capacity: int) -> "Memories":
        """Returns a copy of a stream's memories with room for more rows (sequences): `capacity` in all."""
        larger = Memories(self.specs, capacity)
        pairs = zip(larger.arrays, self.arrays, strict=True)
        for new, old in pairs:
            new[: self.capacity] = old
        return larger

    @property
    def arrays(self) -> list[Array]:
        """A layer's arrays of memories and step counts, to copy; each has an entry for each slot (a row)."""
        return [*self.sides[0], *self.sides[1], *self.first, *self.begun]

    def initial(
        self, initial: Any, count: int, argument: str, default: list[Array] | None = None
    ) -> list[Array]:
        """Returns the argument `initial` for `count` rows as checked arrays, one per memory.

        argument: the name of the step's argument for the memory, for messages.
        default: the memories where none are given; None for zeros.
        """
        others = self.zeros(count) if default is None else default
        if initial is None:
            return others
        arrays = initial_arrays(initial, self.specs, count, argument)
        return [other if array is None else array for array, other in zip(arrays, others, strict=True)]

    def put(self, slots: Array, side: int, memory: list[Array], begun: Array) -> None:
        """Writes memories and step counts of a stream's rows to their slots (array positions).

        side: the side of each slot to write, 0 or 1; a step reads one side and writes the other.
        memory, begun: the memories of the rows, and the number of steps that each has taken.
        """
        for kept, new in zip(self.sides[side], memory, strict=True):
            kept[slots] = new
        self.begun[side][slots] = begun

    def clear(self, slots: Array, side: int, begun: Array) -> None:
        """Writes zeros for new rows of a stream, as their memories and as the memories that `reset` restores.

        slots, side, begun: as for `put`.
        """
        places: Any = slots.tolist() if len(slots) <= FEW else [slots]  # one by one in a fifth of the time
        for kept in (*self.sides[side], *self.first):
            for place in places:
                kept[place] = 0
        if self.counts:
            self.begun[side][slots] = begun

    def put_beside(self, slots: Array, sides: Array, memory: list[Array], begun: Array) -> None:
        """Writes memories and step counts of a stream's rows to the side of their slots that is not in use. A
        step reads one side of a slot and writes the other.

        slots: the positions of the rows in the arrays. sides: the side of each row that is in use, 0 or 1.
        memory, begun: the memories of the rows, and the number of steps that each has taken.
        """
        for side in (0, 1):
            own = sides != side
            self.put(slots[own], side, [array[own] for array in memory], begun[own])

    def put_first(self, slots: Array, first: list[Array]) -> None:
        """Writes the memories `first`, to which `reset` later returns the rows in these slots. slots: the
        positions of the rows in the arrays.
        """
        for kept, new in zip(self.first, first, strict=True):
            kept[slots] = new

    def first_of(self, slots: Array) -> list[Array]:
        """Returns copies of the memories to which `reset` returns the rows in `slots` (array positions)."""
        return [array[slots] for array in self.first]

    def of(self, moment: Moment) -> list[Array]:
        """Returns copies of the memories of all rows, after the steps that they have taken.

        moment: the state of the stream, with each row's position in the arrays, and which of its two memories
        is in use.
        """
        if (side := moment.side) is not None:
            return [array[moment.slots] for array in self.sides[side]]
        other = moment.all_sides == 1
        arrays: list[Array] = []
        for one, two in zip(*self.sides, strict=True):
            array = one[moment.slots]
            array[other] = two[moment.slots[other]]
            arrays.append(array)
        return arrays

    def state(self, moment: Moment) -> Any:
        """Returns copies of the memories of all rows, in the structure of the memory. moment: the state of
        the stream, with each row's position in the arrays.
        """
        return rebuild(self.specs, self.of(moment))

    def carry(self, slots: Array, side: int) -> None:
        """Copies memories and step counts of some rows from one of their two memories to the other. slots:
        the positions of the rows in the arrays. side: the memory to copy to, 0 or 1.
        """
        for here, there in zip(self.sides[side], self.sides[1 - side], strict=True):
            here[slots] = there[slots]
        self.begun[side][slots] = self.begun[1 - side][slots]

    def move(self, moment: Moment, side: int, rows: Array) -> None:
        """Writes the memory and step count of row rows[i] of a stream to row i, on the side that is not in
        use.

        moment: the state of the stream. side: the side that all rows use, 0 or 1.
        """
        old, new, in_order = self.sides[side], self.sides[1 - side], moment.in_order
        if self.counts:
            old, new = [*old, self.begun[side]], [*new, self.begun[1 - side]]
        for source, target in zip(old, new, strict=True):
            if in_order:
                source.take(rows, 0, target[: len(rows)], "clip")  # needs no buffer
            else:
                target[moment.slots] = source[moment.slots[rows]]
