"""The additional arrays that the work after the loop needs, and which of this work has machine code.

    final    the final value of each memory that is read after the loop or returned
    kept     outputs of all steps that are read after the loop
    reduced  reductions over the steps of each sequence
    ended    values computed once per sequence, after its last step

A value that is a result is written to the caller's array, and read from there.
"""

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.values.records import dataclass

FLOATS = ("float32", "float64")
WHOLE = ("int32", "int64")
"""The dtypes whose sums and maxima have code, beside `FLOATS`; means of whole numbers have none."""
HOW = ("sum", "mean", "max")


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
        """Finds the arrays that a call must allocate for the work of a plan (the operations of a part in
        their order) after its loop over the steps: final memories (recurrent states), values of all steps
        that this work reads, reductions over steps, and values computed last.
        """
        net, rows = plan.net, plan.results(plan.ends.rows)
        last = plan.last
        finals = tuple(
            None if number is None else Slot(number, rows.index(number) if number in rows else -1)
            for number in last
        )
        final_places = {slot.index for slot in finals if slot is not None}
        own = {rows.index(number) for number in direct(plan)}
        results = [
            Slot(number, index) for index, number in enumerate(rows) if index not in final_places | own
        ]
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


def direct(plan: Plan) -> dict[int, int]:
    """Finds the contracts (sums of outer products) over the steps of each sequence that are results of a
    plan. Their values are large, so they are computed in the arrays of the results, not copied there. Returns
    for each node its position among the results per row.
    """
    rows = plan.results(plan.ends.rows)
    contracts = (number for number in plan.reduced if plan.net.nodes[number].operation == "contract")
    return {number: rows.index(number) for number in contracts if number in rows}


def has_code(how: str, dtype: str) -> bool:
    """Tells whether a reduction of the values of each sequence has machine code. how: such as "sum"."""
    return how in HOW and (dtype in FLOATS or (dtype in WHOLE and how != "mean"))


def tasks_of(plan: Plan) -> set[int]:
    """Finds the reductions over steps, and the totals (values over all rows), that machine code computes
    after the loop of a plan (a net's operations in their order); returns their nodes. They read values of
    loops, and results of one another.
    """
    net, tasks = plan.net, set[int]()
    late = {*plan.reduced, *plan.total}
    for number in (*plan.reduced, *plan.total):
        node = net.nodes[number]
        types = [net.type_of(operand) for operand in node.inputs]
        known = all(operand not in late or operand in tasks for operand in node.inputs)
        if known and all(type_.extent != CONST for type_ in types) and is_task(node, types):
            tasks.add(number)
    return tasks


def is_task(node: Node, types: list[Type]) -> bool:
    """Tells whether machine code computes a node after the loop: a reduction over steps or a total."""
    if len({type_.dtype for type_ in types}) > 1 or not all(type_.size for type_ in types):
        return False
    if node.operation == "contract":
        return types[0].dtype in FLOATS
    how: str = node.attributes.get("how", "")
    over_all = node.type.extent == CONST
    return node.operation == "reduce" and has_code(how, types[0].dtype) and (how != "mean" or not over_all)
