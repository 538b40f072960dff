"""The additional arrays that the work after the loop needs.

    final    the final value of each memory that is read, or is a result
    kept     outputs of all steps, for values that are computed from them
    reduced  one value from the steps of each sequence
    ended    values computed once per sequence at its end

A value that is a result is written to the caller's array, and read from there.
"""

from dataclasses import dataclass

from stepnet.net.types import ROWS, STEPS
from stepnet.plan.plan import Plan


@dataclass(frozen=True)
class Slot:
    """An array for a value: its number in the net, and its position among the results per row, -1 if it is
    none.
    """

    number: int
    place: int


@dataclass(frozen=True)
class Needs:
    """The arrays, each kind in the order of its words. finals: for each memory; None if its final value is
    not read.
    """

    finals: tuple[Slot | None, ...]
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    ended: tuple[Slot, ...]

    @classmethod
    def of(cls, plan: Plan) -> "Needs":
        """The needs of a plan."""
        net, rows = plan.net, plan.results(plan.ends.rows)
        last = plan.last
        finals = tuple(
            None if number is None else Slot(number, rows.index(number) if number in rows else -1)
            for number in last
        )
        taken = {slot.place for slot in finals if slot is not None}
        asked = [Slot(number, place) for place, number in enumerate(rows) if place not in taken]
        read = {n for n in plan.read_in_the_end if net.nodes[n].operation != "input"}
        there = {*last, *plan.reduced, *rows}
        hidden = [n for n in sorted(read) if net.type_of(n).extent == ROWS and n not in there]
        return cls(
            finals,
            tuple(n for n in sorted(read) if net.type_of(n).extent == STEPS),
            plan.reduced,
            (*asked, *(Slot(number, -1) for number in hidden)),
        )

    @property
    def are_none(self) -> bool:
        """Whether a call is done when its loop is done, except for totals."""
        return not (self.kept or self.reduced or self.ended)
