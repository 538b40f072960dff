"""The rows of a stream at a moment, with the slots and sides of their memories."""

from typing import cast

import numpy as np

from stepnet.compiler.values.records import dataclass

Array = np.ndarray
FEW = 64
"""The largest number of slots that Python looks through faster than NumPy."""


@dataclass
class Moment:
    """The rows of a stream (sequences that step side by side) between two steps.

    A row's memories lie in a slot, an index into the arrays of all layers. Each slot has two sides: a step
    reads the memory of one and writes that of the other. Only `number` changes, and only where all rows take
    a step: adding one to it takes that step in all layers at once. Everything else is a new `Moment`.

    number: the number of turns that all rows took together. A turn is a step, or another change of side.
    slots: the slot of each row.
    turns: the number of turns that each row took besides. The parity of all its turns is its side.
    odd: the number of rows with an odd number of such turns.
    ahead: the number of steps that each row has taken beyond all its turns.
    """

    number: int
    slots: Array
    turns: Array
    odd: int
    ahead: Array

    @classmethod
    def of(cls, slots: Array, sides: Array, begun: Array) -> "Moment":
        """Makes the state of a stream's rows between two steps.

        slots: the position of each row in the layers' arrays, where it has two memories (a step reads one and
            writes the other).
        sides: the memory, 0 or 1, that the next step of the row reads.
        begun: the number of steps that the row has taken.
        """
        odd = int(np.count_nonzero(sides))
        return cls(0, slots, sides, odd, begun - sides)

    @property
    def in_order(self) -> bool:
        """True if row i lies in slot i."""
        return is_in_order(self.slots)

    @property
    def side(self) -> int | None:
        """The side of all rows: the memory, 0 or 1, that the next step reads; None if rows differ."""
        if not self.odd:
            return self.number & 1
        return 1 - (self.number & 1) if self.odd == len(self.turns) else None

    @property
    def free_side(self) -> int:
        """The side of new rows: the side of the other rows if these agree, else 0."""
        return self.side or 0

    @property
    def all_sides(self) -> Array:
        """The side of each row: the number, 0 or 1, of its present memory."""
        return (self.turns + self.number) & 1

    @property
    def begun(self) -> Array:
        """The number of steps that each row of the stream has taken."""
        return self.ahead + self.turns + self.number

    def sides_of(self, rows: Array) -> Array:
        """Returns the sides of some rows: the present one of the two memories of each. rows: the indices of
        the rows.
        """
        return (self.turns[rows] + self.number) & 1

    def stepped(self, rows: Array, side: int) -> "Moment":
        """Returns a stream's state after some rows took a step. rows: the indices of these rows, each once.
        side: the one of their two memories that the step read, 0 or 1.
        """
        turns = self.turns.copy()
        turns[rows] += 1
        odd = self.odd + (-len(rows) if (side ^ self.number) & 1 else len(rows))
        return Moment(self.number, self.slots, turns, odd, self.ahead)

    def after(self, rows: Array, begun: Array) -> "Moment":
        """Returns a stream's state after the other of their two memories was written for some rows. rows: the
        indices of these rows. begun: the number of steps that each of them has then taken.
        """
        sides, steps = self.all_sides, self.begun
        sides[rows] = 1 - sides[rows]
        steps[rows] = begun
        return Moment.of(self.slots, sides, steps)

    def reordered(self, sources: Array) -> "Moment":
        """Returns the stream's state after row i took over the memory of row sources[i], which all rows had
        on the same side.

        Each row has two memories; the other one was written. So `number` grows by one as in a step; `ahead`,
        a row's steps beyond its turns, falls by one, as no step was taken.
        """
        ahead = (self.ahead + self.turns)[sources]
        ahead -= self.turns + 1
        return Moment(self.number + 1, self.slots, self.turns, self.odd, ahead)

    def without(self, rows: Array) -> "Moment":
        """Returns the stream's state without these rows; later rows may use their positions in the arrays."""
        kept = np.empty(len(self.slots), bool)
        kept.fill(True)
        kept[rows] = False
        slots, turns = self.slots[kept], self.turns[kept]
        odd = int(np.count_nonzero(turns & 1)) if self.odd else 0
        return Moment(self.number, slots, turns, odd, self.ahead[kept])

    def only(self, rows: Array) -> "Moment":
        """Returns the stream's state with these rows alone, in this order."""
        return Moment.of(self.slots[rows], self.sides_of(rows), self.begun[rows])

    def with_rows(self, slots: Array, begun: Array) -> "Moment":
        """Returns the stream's state with new rows after the others.

        slots: the positions of their memories in the arrays, in the one of two arrays that `self.free_side`
            says.
        begun: the number of steps that each new row has taken.
        """
        turns, own = (self.free_side ^ self.number) & 1, np.zeros(len(slots), np.int64)
        own += turns
        return Moment(
            self.number,
            np.concatenate((self.slots, slots)),
            np.concatenate((self.turns, own)),
            self.odd + turns * len(slots),
            np.concatenate((self.ahead, begun - (self.number + turns))),
        )

    def replaced(self, rows: Array, slots: Array, begun: Array) -> "Moment":
        """Returns the stream's state after the memories of some rows were written to other positions of the
        arrays.

        rows: the indices of these rows. slots: their new positions in the arrays; the memories are in the one
        of two arrays that `self.free_side` says. begun: the number of steps that each of these rows has
        taken.
        """
        all_slots, sides, steps = self.slots.copy(), self.all_sides, self.begun
        all_slots[rows], sides[rows], steps[rows] = slots, self.free_side, begun
        return Moment.of(all_slots, sides, steps)

    def free(self, count: int) -> Array:
        """Returns, for new rows of a stream, the first `count` slots that no row uses, in order."""
        if len(self.slots) + count <= FEW:  # in Python, in a third of the time
            used = {*self.slots.tolist()}
            return np.array([n for n in range(len(used) + count) if n not in used][:count], np.int64)
        occupied = np.zeros(len(self.slots) + count + int(self.slots.max(initial=-1)) + 1, bool)
        occupied[self.slots] = True
        return cast("Array", np.flatnonzero(~occupied)[:count])


def is_in_order(slots: Array) -> bool:
    """Returns whether row i lies in slot (position) i of the arrays, so that no indexing is needed."""
    return bool((slots == np.arange(len(slots))).all())
