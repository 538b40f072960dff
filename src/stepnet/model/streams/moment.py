"""The rows of a stream at a moment, with the slots and sides of their memories.

up to 64 rows    lists of Python, as each operation of NumPy takes as long as dozens of theirs
more             arrays
"""

from abc import ABC, abstractmethod
from typing import Self, cast

import numpy as np

from stepnet.compiler.values.records import dataclass

Array = np.ndarray
FEW = 64
"""The largest number of rows whose numbers are in lists."""
NUMBERS = np.arange(1024)
NUMBERS.flags.writeable = False


@dataclass
class Moment(ABC):
    """The rows of a stream (sequences that step side by side) between two steps.

    A row's memories lie in a slot, an index into the arrays of all layers. Each slot has two sides: a step
    reads the memory of one and writes that of the other. Only `number` changes, and only where all rows take
    a step: adding one to it takes that step in all layers at once. Everything else is a new `Moment`.

    number: the number of turns that all rows took together. A turn is a step, or another change of side.
    slots: the slot of each row.
    odd: the number of rows with an odd number of the turns that each row took besides (`turns`). The parity
        of all turns of a row is its side.
    """

    number: int
    slots: Array
    odd: int

    @classmethod
    @abstractmethod
    def of(cls, slots: Array, sides: Array, begun: Array) -> Self:
        """Makes the state of a stream's rows between two steps.

        slots: the position of each row in the layers' arrays, where it has two memories (a step reads one and
            writes the other).
        sides: the memory, 0 or 1, that the next step of the row reads.
        begun: the number of steps that the row has taken.
        """

    @property
    @abstractmethod
    def in_order(self) -> bool:
        """True if row i lies in slot i."""

    @property
    def side(self) -> int | None:
        """The side of all rows: the memory, 0 or 1, that the next step reads; None if rows differ."""
        if not self.odd:
            return self.number & 1
        return 1 - (self.number & 1) if self.odd == len(self.slots) else None

    @property
    def free_side(self) -> int:
        """The side of new rows: the side of the other rows if these agree, else 0."""
        return self.side or 0

    @property
    @abstractmethod
    def all_sides(self) -> Array:
        """The side of each row: the number, 0 or 1, of its present memory."""

    @property
    @abstractmethod
    def begun(self) -> Array:
        """The number of steps that each row of the stream has taken."""

    @abstractmethod
    def side_for(self, rows: Array) -> tuple[int, Array | None]:
        """Returns the side that most of some rows have (0 if as many have each), and those that have the
        other one; None if there are none. rows: the indices of the rows.
        """

    @abstractmethod
    def stepped(self, rows: Array, side: int) -> "Moment":
        """Returns a stream's state after some rows took a step. rows: the indices of these rows, each once.
        side: the one of their two memories that the step read, 0 or 1.
        """

    def odd_after(self, rows: int, side: int) -> int:
        """Returns `odd` after a step of some rows, that read the side `side`. rows: their number."""
        return self.odd + (-rows if (side ^ self.number) & 1 else rows)

    def after(self, rows: Array, begun: Array) -> "Moment":
        """Returns a stream's state after the other of their two memories was written for some rows. rows: the
        indices of these rows. begun: the number of steps that each of them has then taken.
        """
        sides, steps = self.all_sides, self.begun
        sides[rows] = 1 - sides[rows]
        steps[rows] = begun
        return self.of(self.slots, sides, steps)

    @abstractmethod
    def reordered(self, sources: Array) -> "Moment":
        """Returns the stream's state after row i took over the memory of row sources[i], which all rows had
        on the same side.

        Each row has two memories; the other one was written. So `number` grows by one as in a step, though
        no step was taken.
        """

    @abstractmethod
    def without(self, rows: Array) -> "Moment":
        """Returns the stream's state without these rows; later rows may use their positions in the arrays."""

    def only(self, rows: Array) -> "Moment":
        """Returns the stream's state with these rows alone, in this order."""
        return self.of(self.slots[rows], self.all_sides[rows], self.begun[rows])

    @abstractmethod
    def with_rows(self, slots: Array, begun: Array) -> "Moment":
        """Returns the stream's state with new rows after the others.

        slots: the positions of their memories in the arrays, in the one of two arrays that `self.free_side`
            says.
        begun: the number of steps that each new row has taken.
        """

    def replaced(self, rows: Array, slots: Array, begun: Array) -> "Moment":
        """Returns the stream's state after the memories of some rows were written to other positions of the
        arrays.

        rows: the indices of these rows. slots: their new positions in the arrays; the memories are in the one
        of two arrays that `self.free_side` says. begun: the number of steps that each of these rows has
        taken.
        """
        all_slots, sides, steps = self.slots.copy(), self.all_sides, self.begun
        all_slots[rows], sides[rows], steps[rows] = slots, self.free_side, begun
        return self.of(all_slots, sides, steps)

    @abstractmethod
    def free(self, count: int) -> Array:
        """Returns, for new rows of a stream, the first `count` slots that no row uses, in order."""


@dataclass
class ManyRows(Moment):
    """The rows of a stream as arrays.

    turns: the number of turns that each row took besides those of all rows.
    steps: the number of steps that each row has taken, less `number`.
    """

    turns: Array
    steps: Array

    @classmethod
    def of(cls, slots: Array, sides: Array, begun: Array) -> Self:
        """Makes the state of rows."""
        return cls(0, slots, int(np.count_nonzero(sides)), sides, begun)

    @property
    def in_order(self) -> bool:
        """True if row i lies in slot i."""
        return is_in_order(self.slots)

    @property
    def all_sides(self) -> Array:
        """The side of each row."""
        return (self.turns + self.number) & 1

    @property
    def begun(self) -> Array:
        """The number of steps that each row of the stream has taken."""
        return self.steps + self.number

    def side_for(self, rows: Array) -> tuple[int, Array | None]:
        """Returns the side that most rows have, and those that have the other one."""
        if (same := self.side) is not None:
            return same, None
        sides = (self.turns[rows] + self.number) & 1
        ones = int(np.count_nonzero(sides))
        side = int(2 * ones > len(sides))
        return side, rows[sides != side] if 0 < ones < len(sides) else None

    def stepped(self, rows: Array, side: int) -> Moment:
        """Returns the state after some rows took a step."""
        turns, steps = self.turns.copy(), self.steps.copy()
        turns[rows] += 1
        steps[rows] += 1
        return ManyRows(self.number, self.slots, self.odd_after(len(rows), side), turns, steps)

    def reordered(self, sources: Array) -> Moment:
        """Returns the state after rows took over the memories of others."""
        return ManyRows(self.number + 1, self.slots, self.odd, self.turns, self.steps[sources] - 1)

    def without(self, rows: Array) -> Moment:
        """Returns the state without these rows."""
        kept = np.ones(len(self.slots), bool)
        kept[rows] = False
        slots, turns = self.slots[kept], self.turns[kept]
        odd = int(np.count_nonzero(turns & 1)) if self.odd else 0
        return ManyRows(self.number, slots, odd, turns, self.steps[kept])

    def with_rows(self, slots: Array, begun: Array) -> Moment:
        """Returns the state with new rows after the others."""
        turns = (self.free_side ^ self.number) & 1
        return ManyRows(
            self.number,
            np.concatenate((self.slots, slots)),
            self.odd + turns * len(slots),
            np.concatenate((self.turns, np.full(len(slots), turns))),
            np.concatenate((self.steps, begun - self.number)),
        )

    def free(self, count: int) -> Array:
        """Returns the first `count` slots that no row uses, in order."""
        occupied = np.zeros(len(self.slots) + count + int(self.slots.max(initial=-1)) + 1, bool)
        occupied[self.slots] = True
        return cast("Array", np.flatnonzero(~occupied)[:count])


@dataclass
class FewRows(Moment):
    """A few rows of a stream, with their numbers in lists.

    places: the slot of each row. turns, steps: as in `ManyRows`.
    """

    places: list[int]
    turns: list[int]
    steps: list[int]

    @classmethod
    def of(cls, slots: Array, sides: Array, begun: Array) -> Self:
        """Makes the state of rows."""
        turns = sides.tolist()
        return cls(0, slots, sum(turns), slots.tolist(), turns, begun.tolist())

    @property
    def in_order(self) -> bool:
        """True if row i lies in slot i."""
        return self.places == [*range(len(self.places))]

    @property
    def all_sides(self) -> Array:
        """The side of each row."""
        return np.array([turns + self.number & 1 for turns in self.turns], np.int64)

    @property
    def begun(self) -> Array:
        """The number of steps that each row of the stream has taken."""
        return np.array([steps + self.number for steps in self.steps], np.int64)

    def side_for(self, rows: Array) -> tuple[int, Array | None]:
        """Returns the side that most rows have, and those that have the other one."""
        if (same := self.side) is not None:
            return same, None
        number, turns, listed = self.number, self.turns, rows.tolist()
        ones = [row for row in listed if turns[row] + number & 1]
        side = int(2 * len(ones) > len(listed))
        if not 0 < len(ones) < len(listed):
            return side, None
        return side, np.array([row for row in listed if (turns[row] + number & 1) != side])

    def stepped(self, rows: Array, side: int) -> Moment:
        """Returns the state after some rows took a step."""
        turns, steps = self.turns.copy(), self.steps.copy()
        for row in rows.tolist():
            turns[row] += 1
            steps[row] += 1
        return FewRows(self.number, self.slots, self.odd_after(len(rows), side), self.places, turns, steps)

    def reordered(self, sources: Array) -> Moment:
        """Returns the state after rows took over the memories of others."""
        before, listed = self.steps, cast("list[int]", sources.tolist())
        steps = [before[source] - 1 for source in listed]
        return FewRows(self.number + 1, self.slots, self.odd, self.places, self.turns, steps)

    def without(self, rows: Array) -> Moment:
        """Returns the state without these rows."""
        places, turns, steps = self.places.copy(), self.turns.copy(), self.steps.copy()
        for row in sorted({*rows.tolist()}, reverse=True):
            del places[row], turns[row], steps[row]
        odd = sum([own & 1 for own in turns]) if self.odd else 0
        return FewRows(self.number, np.array(places, np.int64), odd, places, turns, steps)

    def with_rows(self, slots: Array, begun: Array) -> Moment:
        """Returns the state with new rows after the others; as `ManyRows` if they are no longer few."""
        number, turns = self.number, (self.free_side ^ self.number) & 1
        places, own = self.places + slots.tolist(), self.turns + [turns] * len(slots)
        counts: list[int] = begun.tolist()
        steps = self.steps + [count - number for count in counts]
        all_slots, odd = np.array(places, np.int64), self.odd + turns * len(slots)
        if len(places) > FEW:
            return ManyRows(number, all_slots, odd, np.array(own), np.array(steps))
        return FewRows(number, all_slots, odd, places, own, steps)

    def free(self, count: int) -> Array:
        """Returns the first `count` slots that no row uses, in order."""
        free = {*range(len(self.places) + count)}.difference(self.places)
        return numbered(min(free)) if count == 1 else np.array(sorted(free)[:count], np.int64)


def moment_of(slots: Array, sides: Array, begun: Array) -> Moment:
    """Makes the state of a stream's rows, few or many; the arguments are as of `Moment.of`."""
    return (FewRows if len(slots) <= FEW else ManyRows).of(slots, sides, begun)


def numbered(number: int) -> Array:
    """Returns an array [1] of a number: if it is small, a view in a third of the time of a new array."""
    return NUMBERS[number : number + 1] if number < len(NUMBERS) else np.array([number])


def is_in_order(slots: Array) -> bool:
    """Returns whether row i lies in slot (position) i of the arrays, so that no indexing is needed."""
    return bool((slots == np.arange(len(slots))).all())
