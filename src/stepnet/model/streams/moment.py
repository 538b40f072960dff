"""The rows of a stream at a moment, with the slots and sides of their memories."""

from dataclasses import dataclass
from typing import cast

import numpy as np

Array = np.ndarray


@dataclass
class Moment:
    """The rows of a stream (sequences that step side by side) between two steps.

    A row's memories lie in a slot, an index into the arrays of all layers. Each slot has two sides: a step
    reads the memory of one and writes that of the other. Only `number` changes, and only where all rows take
    a step: adding one to it takes that step in all layers at once. Everything else is a new `Moment`.

    number: the number of steps that all rows took together; its parity (0 or 1) is their side.
    slots: the slot of each row.
    sides: the side of each row; None where all rows are on the side of `number`.
    ahead: the number of steps that each row has taken beyond `number`.
    in_order: whether row i lies in slot i.
    """

    number: int
    slots: Array
    sides: Array | None
    ahead: Array
    in_order: bool

    @classmethod
    def of(cls, slots: Array, sides: Array, begun: Array) -> "Moment":
        """Makes the state of a stream's rows between two steps.

        slots: the position of each row in the layers' arrays, where it has two memories (a step reads one and
            writes the other).
        sides: the one of the two, 0 or 1, that the next step of the row reads.
        begun: the number of steps that the row has taken.

        The field `number`, whose parity says which memory the next step of all rows reads, becomes that 0 or
        1; 0 if the rows differ.
        """
        mixed = len(sides) > 0 and bool((sides != sides[0]).any())
        number = int(sides[0]) if len(sides) and not mixed else 0
        return cls(number, slots, sides if mixed else None, begun - number, is_in_order(slots))

    @property
    def side(self) -> int:
        """The one of each row's two memories, 0 or 1, that the next step reads, for all rows of the stream;
        where `sides` has one for each row, that counts instead.
        """
        return self.number & 1

    @property
    def all_sides(self) -> Array:
        """The side of each row: the one of its two memories, 0 or 1, that is the present one."""
        return np.full(len(self.slots), self.side) if self.sides is None else self.sides

    @property
    def begun(self) -> Array:
        """The number of steps that each row of the stream has taken."""
        return self.ahead + self.number

    def after(self, rows: Array, begun: Array) -> "Moment":
        """Returns a stream's state after some rows took a step, which wrote the other of their two memories.

        rows: the indices of these rows.
        begun: the number of steps that each of them has then taken.
        """
        sides, steps = self.all_sides.copy(), self.begun
        sides[rows] = 1 - sides[rows]
        steps[rows] = begun
        return Moment.of(self.slots, sides, steps)

    def reordered(self, sources: Array) -> "Moment":
        """Returns the stream's state after row i took over the memory of row sources[i].

        Each row has two memories; the other one was written, and the parity of `number` tells which is in
        use. So `number` grows by one as in a step; `ahead`, a row's steps beyond `number`, falls by one, as
        no step was taken.
        """
        return Moment(self.number + 1, self.slots, None, self.ahead[sources] - 1, self.in_order)

    def without(self, rows: Array) -> "Moment":
        """Returns the stream's state without these rows; later rows may use their positions in the arrays."""
        kept = np.ones(len(self.slots), bool)
        kept[rows] = False
        if self.sides is None:
            slots = self.slots[kept]
            return Moment(self.number, slots, None, self.ahead[kept], is_in_order(slots))
        return Moment.of(self.slots[kept], self.sides[kept], self.begun[kept])

    def only(self, rows: Array) -> "Moment":
        """Returns the stream's state with these rows alone, in this order."""
        return Moment.of(self.slots[rows], self.all_sides[rows], self.begun[rows])

    def with_rows(self, slots: Array, begun: Array) -> "Moment":
        """Returns the stream's state with new rows after the others.

        slots: the positions of their memories in the arrays, in the one of two arrays that `self.side` says.
        begun: the number of steps that each new row has taken.
        """
        all_slots = np.concatenate([self.slots, slots])
        ahead = np.concatenate([self.ahead, begun - self.number])
        sides = self.sides
        if sides is not None:
            sides = np.concatenate([sides, np.full(len(slots), self.side)])
        return Moment(self.number, all_slots, sides, ahead, is_in_order(all_slots))

    def replaced(self, rows: Array, slots: Array, begun: Array) -> "Moment":
        """Returns the stream's state after the memories of some rows were written to other positions of the
        arrays.

        rows: the indices of these rows. slots: their new positions in the arrays; the memories are in the one
        of two arrays that `self.side` says. begun: the number of steps that each of these rows has taken.
        """
        all_slots, sides, steps = self.slots.copy(), self.all_sides.copy(), self.begun
        all_slots[rows], sides[rows], steps[rows] = slots, self.side, begun
        return Moment.of(all_slots, sides, steps)

    def free(self, count: int) -> Array:
        """Returns, for new rows of a stream, the first `count` slots (positions in the layers' arrays) that
        no row uses.
        """
        occupied = np.zeros(len(self.slots) + count + int(self.slots.max(initial=-1)) + 1, bool)
        occupied[self.slots] = True
        return cast("Array", np.flatnonzero(~occupied)[:count])


def is_in_order(slots: Array) -> bool:
    """Returns whether row i lies in slot (position) i of the arrays, so that no indexing is needed."""
    return bool(np.array_equal(slots, np.arange(len(slots))))
