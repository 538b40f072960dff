"""The memories of one layer of a stream: two for each slot, and the one that it began with."""

from typing import Any

import numpy as np

from stepnet.compiler.values.structure import leaves, rebuild
from stepnet.model.batch import initial_arrays
from stepnet.model.streams.moment import Moment

Array = np.ndarray


class Memories:
    """Arrays [slots, features...] in the structure of the memory.

    specs: the `Spec`s of the memory. sides: the arrays of each side. begun: of each side how many steps each
    slot's row has taken. first: the memory that `reset` goes back to.
    """

    def __init__(self, specs: Any, capacity: int) -> None:
        self.specs, self.capacity = specs, capacity
        self.sides = self.zeros(capacity), self.zeros(capacity)
        self.first = self.zeros(capacity)
        self.begun = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)

    def zeros(self, count: int) -> list[Array]:
        """New memories of zeros for `count` rows."""
        return [np.zeros((count, *spec.shape), spec.dtype) for spec in leaves(self.specs)]

    def grown(self, capacity: int) -> "Memories":
        """The same with more slots."""
        made = Memories(self.specs, capacity)
        pairs = zip(made.arrays, self.arrays, strict=True)
        for new, old in pairs:
            new[: self.capacity] = old
        return made

    @property
    def arrays(self) -> list[Array]:
        """All arrays, which have an entry for each slot."""
        return [*self.sides[0], *self.sides[1], *self.first, *self.begun]

    def initial(self, initial: Any, count: int, default: list[Array] | None = None) -> list[Array]:
        """The memories of so many rows that a user gives; raises `InputError` for those that do not fit.

        default: what they are where none are given; zeros if None.
        """
        arrays = initial_arrays(initial, self.specs, count)
        others = self.zeros(count) if default is None else default
        return [other if array is None else array for array, other in zip(arrays, others, strict=True)]

    def put(self, slots: Array, side: int, memory: list[Array], begun: Array) -> None:
        """Writes one side of slots."""
        for kept, new in zip(self.sides[side], memory, strict=True):
            kept[slots] = new
        self.begun[side][slots] = begun

    def put_beside(self, slots: Array, sides: Array, memory: list[Array], begun: Array) -> None:
        """Writes the other sides of slots."""
        for side in (0, 1):
            own = sides != side
            self.put(slots[own], side, [array[own] for array in memory], begun[own])

    def put_first(self, slots: Array, first: list[Array]) -> None:
        """Writes what `reset` goes back to."""
        for kept, new in zip(self.first, first, strict=True):
            kept[slots] = new

    def first_of(self, slots: Array) -> list[Array]:
        """Copies of what `reset` goes back to."""
        return [array[slots] for array in self.first]

    def of(self, moment: Moment) -> list[Array]:
        """Copies of the present memories of all rows."""
        if moment.sides is None:
            return [array[moment.slots] for array in self.sides[moment.side]]
        other = moment.sides == 1
        made: list[Array] = []
        for one, two in zip(*self.sides, strict=True):
            array = one[moment.slots]
            array[other] = two[moment.slots[other]]
            made.append(array)
        return made

    def state(self, moment: Moment) -> Any:
        """The same in the structure of the memory."""
        return rebuild(self.specs, self.of(moment))

    def carry(self, slots: Array, side: int) -> None:
        """Copies the other side of slots to this one."""
        for here, there in zip(self.sides[side], self.sides[1 - side], strict=True):
            here[slots] = there[slots]
        self.begun[side][slots] = self.begun[1 - side][slots]

    def move(self, moment: Moment, rows: Array) -> None:
        """Writes to the other side of each row the present memory of the row that it goes on from. All rows
        are on one side.
        """
        before, after = moment.side, 1 - moment.side
        old = *self.sides[before], self.begun[before]
        new = *self.sides[after], self.begun[after]
        for source, target in zip(old, new, strict=True):
            if moment.in_order:
                np.take(source, rows, axis=0, out=target[: len(rows)], mode="clip")  # needs no buffer
            else:
                target[moment.slots] = source[moment.slots[rows]]
