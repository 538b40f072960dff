"""The stage of a plan in which each node is computed; a net that needs more than one pass is refused."""

from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.type_rules import BETWEEN_STEPS
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, extent_text
from stepnet.compiler.plan.fibers import Fibers, fibers
from stepnet.compiler.plan.load import FiberCosts
from stepnet.compiler.plan.passes import optimised
from stepnet.compiler.plan.passes.when import When, is_of_steps, when
from stepnet.compiler.plan.phases import phases
from stepnet.compiler.plan.phases import units_are_alone as units_are_alone
from stepnet.compiler.plan.plan import Plan, Planning, picks
from stepnet.compiler.plan.views import without_reshape
from stepnet.errors import NetError

STAGES: dict[Extent, tuple[tuple[When, str], ...]] = {
    CONST: ((When.ONCE, "once"), (When.TOTAL, "total")),
    ROWS: ((When.PER_SEQUENCE, "sequence"), (When.AFTER, "ended")),
    STEPS: ((When.BEFORE, "before"), (When.AFTER, "after")),
}
"""For each extent its stages in order, each with the latest time at which a value of the stage may become
known."""


def staged(traced: Net, planning: Planning) -> Plan:
    """Makes the plan of a net; see `stepnet.compiler.plan.plan.plan`, which keeps it and has the errors."""
    net = optimised(traced, planning.pipeline)
    loops = [number for number, node in enumerate(net.nodes) if node.operation == "recur"]
    if len(loops) != 1:
        raise NetError(f"a plan needs a net with exactly one recurrence; this net has {len(loops)}")
    recur = loops[0]
    known = when(net)
    check_one_pass(net, known)
    stages: dict[str, list[int]] = {name: [] for row in STAGES.values() for _, name in row}
    reduced: list[int] = []
    for number, node in enumerate(net.nodes):
        if node.operation in ("input", "recur") or picks(net, number, recur):
            continue
        if is_of_steps(node):
            reduced.append(number)
        else:
            stages[stage(node, known[number])].append(number)
    body = net.nodes[recur].recur.body
    inside = [n for n, node in enumerate(body.nodes) if node.operation != "input"]
    return Plan(
        traced,
        net,
        Ends.of(traced),
        recur,
        tuple(stages["once"]),
        phases(net, stages["sequence"]),
        phases(net, stages["before"]),
        phases(
            body,
            [n for n in inside if body.nodes[n].types[0].extent != CONST],
            step_fibers(net.nodes[recur], planning.costs.fibers),
        ),
        phases(net, stages["after"]),
        tuple(reduced),
        phases(net, stages["ended"]),
        tuple(stages["total"]),
        planning,
    )


def step_fibers(recurrence: Node, costs: FiberCosts) -> Fibers:
    """Finds how the matrices in a step are cut into fibers: the elements that a reduction combines for one
    unit (result). recurrence: the node whose step it is. costs: the sizes from which it pays to cut them.
    """
    recur = recurrence.recur
    statics = [number for number in recur.others if recur.body.type_of(number).extent == ROWS]
    return fibers(recur.body, carried(recurrence), statics, costs)


def carried(recurrence: Node) -> dict[int, int]:
    """Maps each memory of a step to the node of its next value before reshapes, by numbers of the body."""
    recur = recurrence.recur
    following = (without_reshape(recur.body, number) for number in recur.following)
    return dict(zip(recur.memories, following, strict=True))


def stage(node: Node, known: When) -> str:
    """Returns the name of the stage of a plan (a net's operations in their order) in which a node is
    computed: one of the times at which work runs, such as "before" (ahead of the loop over steps) or "loop".

    known: the earliest time at which the node's value is known. Raises `NetError` for a value of a sequence
        inside a step.
    """
    extent = node.types[0].extent
    if extent not in STAGES:
        raise NetError(
            f"a plan runs over flat sequences, but {node.operation} has a value at {extent_text(extent)}"
        )
    return next(name for latest, name in STAGES[extent] if known <= latest)


def check_one_pass(net: Net, known: list[When]) -> None:
    """Raises `NetError` if one pass over the steps is not enough for a net: because a step needs a value that
    is known only after all steps, or because an operation reads or writes single other steps.

    known: for each node, the earliest time at which its value is known.
    """
    for number, node in enumerate(net.nodes):
        if "how" in node.attributes and node.operation == "expand":
            raise NetError(
                f"%{number} = expand writes to a single step of each sequence; a plan cannot run it, a "
                "schedule can"
            )
        if node.operation in BETWEEN_STEPS:
            raise NetError(
                f"%{number} = {node.operation} reads other steps of a sequence; a plan cannot run it, a "
                "schedule can"
            )
        extent = node.types[0].extent if node.types else CONST
        late = [n for n in node.inputs if known[n] > latest_operand(net, n, node, extent)]
        if late:
            raise NetError(
                f"%{number} = {node.operation} reads %{late[0]}, {net.type_of(late[0])}, known only after "
                "all steps: a plan goes over the steps once; use a schedule, which runs such a net part by "
                "part"
            )


def latest_operand(net: Net, operand: int, node: Node, extent: Extent) -> When:
    """Returns the latest time at which an operand may become known so that `node` can still run in a single
    pass over the steps: before the loop for a recurrence, at the end for a constant, at the start of a
    sequence for a value per sequence that is read at each step, and after the loop for all others.

    extent: the extent of the node's value, such as one per row or one per step.
    """
    if node.operation == "recur":
        return When.BEFORE
    if extent == CONST:
        return When.TOTAL
    into_steps = extent == STEPS and net.nodes[operand].types[0].extent == ROWS
    return When.PER_SEQUENCE if into_steps else When.AFTER
