"""The additional arrays that the work after the loop needs.

    final    the final value of each memory that is read after the loop or returned
    kept     outputs of all steps that are read after the loop
    reduced  reductions over the steps of each sequence
    ended    values computed once per sequence, after its last step

A value that is a result is written to the caller's array, and read from there.
"""

from dataclasses import dataclass

from stepnet.compiler.net.types import ROWS, STEPS
from stepnet.compiler.plan.plan import Plan


@dataclass(frozen=True)
class Slot:
    """Array for a value that the work after the loop needs.

    number: the value's number in the net.
    index: its position among the results per row (sequence); -1 if it is not a result.
    """

    number: int
    index: int


@dataclass(frozen=True)
class Needs:
    """Arrays that the work after a plan's loop needs, each kind in the order of the call's arguments.

    finals: for each memory, the array of its final value; None if that is not read.
    kept, reduced: the numbers of the values.
    ended: the arrays of the values computed after the last step.
    """

    finals: tuple[Slot | None, ...]
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    ended: tuple[Slot, ...]

    @classmethod
    def of(cls, plan: Plan) -> "Needs":
        """Finds the arrays that a call must allocate for the work after a plan's loop over the steps: final
        memories, values of all steps that this work reads, reductions over steps, and values computed last.
        """
        net, rows = plan.net, plan.results(plan.ends.rows)
        last = plan.last
        finals = tuple(
            None if number is None else Slot(number, rows.index(number) if number in rows else -1)
            for number in last
        )
        final_places = {slot.index for slot in finals if slot is not None}
        results = [Slot(number, index) for index, number in enumerate(rows) if index not in final_places]
        read = {n for n in plan.read_in_the_end if net.nodes[n].operation != "input"}
        stored = {*last, *plan.reduced, *rows}
        hidden = [n for n in sorted(read) if net.type_of(n).extent == ROWS and n not in stored]
        return cls(
            finals,
            tuple(n for n in sorted(read) if net.type_of(n).extent == STEPS),
            plan.reduced,
            (*results, *(Slot(number, -1) for number in hidden)),
        )

    @property
    def are_none(self) -> bool:
        """Tells whether nothing is computed after the loop over steps, except totals (values over all rows):
        no values of all steps are kept for it, and it has no results per sequence.
        """
        return not (self.kept or self.reduced or self.ended)
