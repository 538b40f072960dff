"""The rows of a stream at a moment, with the slots and sides of their memories.

up to 64 rows    their numbers are lists of Python, as an operation of NumPy takes as long as dozens of theirs
more             arrays
"""

from typing import Any, Self, cast

import numpy as np

from stepnet.compiler.values.records import dataclass

Array = np.ndarray
Numbers = Any
"""A whole number for each row: a list of up to `FEW` of them, an array of more."""
FEW = 64
"""The largest number of rows whose numbers are in lists."""
NUMBERS = np.arange(1024)
NUMBERS.flags.writeable = False


@dataclass
class Moment:
    """The rows of a stream (sequences that step side by side) between two steps.

    A row's memories lie in a slot, an index into the arrays of all layers. Each slot has two sides: a step
    reads the memory of one and writes that of the other. Only `number` changes, and only where all rows take
    a step: adding one to it takes that step in all layers at once. Everything else is a new `Moment`.

    number: the number of turns that all rows took together. A turn is a step, or another change of side.
    slots: the slot of each row.
    odd: the number of rows with an odd number of the turns that each row took besides (`turns`). The parity
        of all turns of a row is its side.
    places: the slot of each row, as the numbers that follow.
    turns: the number of turns that each row took besides those of all rows.
    steps: the number of steps that each row has taken, less `number`.
    """

    number: int
    slots: Array
    odd: int
    places: Numbers
    turns: Numbers
    steps: Numbers

    @classmethod
    def of(cls, slots: Array, sides: Array, begun: Array) -> Self:
        """Makes the state of a stream's rows between two steps.

        slots: the position of each row in the layers' arrays, where it has two memories (a step reads one and
            writes the other).
        sides: the memory, 0 or 1, that the next step of the row reads.
        begun: the number of steps that the row has taken.
        """
        odd = int(np.count_nonzero(sides))
        return cls(0, slots, odd, numbers_of(slots), numbers_of(sides), numbers_of(begun))

    @property
    def in_order(self) -> bool:
        """True if row i lies in slot i."""
        places = self.places
        return places == [*range(len(places))] if len(places) <= FEW else is_in_order(self.slots)

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
    def all_sides(self) -> Array:
        """The side of each row: the number, 0 or 1, of its present memory."""
        return (np.array(self.turns, np.int64) + self.number) & 1

    @property
    def begun(self) -> Array:
        """The number of steps that each row of the stream has taken."""
        return np.array(self.steps, np.int64) + self.number

    def side_for(self, rows: Array) -> tuple[int, Array | None]:
        """Returns the side that most of some rows have (0 if as many have each), and those that have the
        other one; None if there are none. rows: the indices of the rows.
        """
        if (same := self.side) is not None:
            return same, None
        number, turns = self.number, self.turns
        if len(turns) <= FEW:
            sides: Any = [turns[row] + number & 1 for row in rows.tolist()]
            ones = sum(sides)
        else:
            sides = (turns[rows] + number) & 1
            ones = int(np.count_nonzero(sides))
        count = len(sides)
        side = int(2 * ones > count)
        return side, rows[np.array(sides) != side] if 0 < ones < count else None

    def stepped(self, rows: Array, side: int) -> "Moment":
        """Returns a stream's state after some rows took a step. rows: the indices of these rows, each once.
        side: the one of their two memories that the step read, 0 or 1.
        """
        turns, steps, number, count = self.turns.copy(), self.steps.copy(), self.number, len(rows)
        for row in rows.tolist() if len(turns) <= FEW else (rows,):
            turns[row] += 1
            steps[row] += 1
        odd = self.odd - count if (side ^ number) & 1 else self.odd + count
        return Moment(number, self.slots, odd, self.places, turns, steps)

    def after(self, rows: Array, begun: Array) -> "Moment":
        """Returns a stream's state after the other of their two memories was written for some rows. rows: the
        indices of these rows. begun: the number of steps that each of them has then taken.
        """
        sides, steps = self.all_sides, self.begun
        sides[rows] = 1 - sides[rows]
        steps[rows] = begun
        return self.of(self.slots, sides, steps)

    def reordered(self, sources: Array) -> "Moment":
        """Returns the stream's state after row i took over the memory of row sources[i], which all rows had
        on the same side.

        Each row has two memories; the other one was written. So `number` grows by one as in a step, though
        no step was taken.
        """
        before, listed = self.steps, sources.tolist() if len(sources) <= FEW else None
        steps = before[sources] - 1 if listed is None else [before[source] - 1 for source in listed]
        return Moment(self.number + 1, self.slots, self.odd, self.places, self.turns, steps)

    def without(self, rows: Array) -> "Moment":
        """Returns the stream's state without these rows; later rows may use their positions in the arrays."""
        if len(self.turns) <= FEW:
            places, turns, steps = self.places.copy(), self.turns.copy(), self.steps.copy()
            for row in sorted({*rows.tolist()}, reverse=True):
                del places[row], turns[row], steps[row]
            slots, odd = np.array(places, np.int64), sum([own & 1 for own in turns]) if self.odd else 0
        else:
            kept = np.ones(len(self.slots), bool)
            kept[rows] = False
            slots = self.slots[kept]
            places, turns, steps = (numbers_of(own) for own in (slots, self.turns[kept], self.steps[kept]))
            odd = int(np.count_nonzero(np.array(turns, np.int64) & 1))
        return Moment(self.number, slots, odd, places, turns, steps)

    def only(self, rows: Array) -> "Moment":
        """Returns the stream's state with these rows alone, in this order."""
        return self.of(self.slots[rows], self.all_sides[rows], self.begun[rows])

    def with_rows(self, slots: Array, begun: Array) -> "Moment":
        """Returns the stream's state with new rows after the others.

        slots: the positions of their memories in the arrays, in the one of two arrays that `self.free_side`
            says.
        begun: the number of steps that each new row has taken.
        """
        number, count, own = self.number, len(slots), (self.free_side ^ self.number) & 1
        odd = self.odd + own * count
        if len(self.turns) + count <= FEW:
            places, turns = self.places + slots.tolist(), self.turns + [own] * count
            steps = self.steps + [each - number for each in begun.tolist()]
            return Moment(number, np.array(places, np.int64), odd, places, turns, steps)
        places = np.concatenate((self.slots, slots))
        # A list without numbers has no dtype of integers.
        before = (np.array(numbers, np.int64) for numbers in (self.turns, self.steps))
        new = np.full(count, own), begun - number
        turns, steps = (np.concatenate(both) for both in zip(before, new, strict=True))
        return Moment(number, places, odd, places, turns, steps)

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

    def free(self, count: int) -> Array:
        """Returns, for new rows of a stream, the first `count` slots that no row uses, in order."""
        if len(self.places) <= FEW:
            free = {*range(len(self.places) + count)}.difference(self.places)
            return numbered(min(free)) if count == 1 else np.array(sorted(free)[:count], np.int64)
        occupied = np.zeros(len(self.slots) + count + int(self.slots.max(initial=-1)) + 1, bool)
        occupied[self.slots] = True
        return cast("Array", np.flatnonzero(~occupied)[:count])


def numbers_of(array: Array) -> Numbers:
    """Returns the numbers of rows as a list, if they are few, or as an array."""
    return array.tolist() if len(array) <= FEW else array


def numbered(number: int) -> Array:
    """Returns an array [1] of a number: if it is small, a view in a third of the time of a new array."""
    return NUMBERS[number : number + 1] if number < len(NUMBERS) else np.array([number])


def is_in_order(slots: Array) -> bool:
    """Returns whether row i lies in slot (position) i of the arrays, so that no indexing is needed."""
    return bool((slots == np.arange(len(slots))).all())
