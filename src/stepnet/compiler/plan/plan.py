"""The plan of a recurrence: which nodes are computed in which stage, and in which phase of it.

    stage     extent               when it runs
    once      const                when parameters are bound
    sequence  rows                 when a sequence begins
    before    rows/steps           before the loop
    loop      rows, in the body    in the loop, at each step
    after     rows/steps           after the loop
    ended     rows                 after the last step of a sequence
    total     const                after all steps of all rows

Stages of values per row or step are lists of phases (`compiler/plan/phases.py`).
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.ir import Net, Node, all_nodes, unchecked_net
from stepnet.compiler.net.type_rules import BETWEEN_STEPS
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, Literal, extent_text
from stepnet.compiler.plan.fibers import Fibers, fibers
from stepnet.compiler.plan.load import CostModel, FiberCosts
from stepnet.compiler.plan.passes import Pipeline, optimised
from stepnet.compiler.plan.passes.when import When, is_of_steps, when
from stepnet.compiler.plan.phases import phases, units_are_alone
from stepnet.compiler.plan.views import without_reshape
from stepnet.compiler.values.once import computed_once, entry_of
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

STAGES: dict[Extent, tuple[tuple[When, str], ...]] = {
    CONST: ((When.ONCE, "once"), (When.TOTAL, "total")),
    ROWS: ((When.PER_SEQUENCE, "sequence"), (When.AFTER, "ended")),
    STEPS: ((When.BEFORE, "before"), (When.AFTER, "after")),
}
"""For each extent its stages in order, each with the latest time at which a value of the stage may become
known."""

MOST_PLANS = 128
"""The largest number of plans that are kept for later nets that are equal."""


@dataclass(frozen=True)
class Planning:
    """Passes and costs of an engine, by which nets are planned for it."""

    pipeline: Pipeline
    costs: CostModel


@dataclass(frozen=True)
class Plan:
    """Plan of a recurrence: the net before and after the passes, and the nodes that each stage computes.

    traced: the net as traced.
    net: the net after all passes; all node numbers refer to it.
    ends: the inputs and results of both nets, by kind.
    recur: the node of the recurrence.
    once, total: the nodes of these stages.
    sequence, before, loop, after, ended: the nodes of these stages, by phase; those of `loop` are nodes of
        the body.
    reduced: the values per row that are reduced over all steps, with which the stage `ended` begins.
    planning: the passes and costs of the engine that the plan is for.
    windows: the positions, among the inputs with a value per step, of windows of steps that products read
        where the steps lie, without a copy (`compiler/plan/groups.py`).
    """

    traced: Net
    net: Net
    ends: Ends
    recur: int
    once: tuple[int, ...]
    sequence: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    loop: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    reduced: tuple[int, ...]
    ended: tuple[tuple[int, ...], ...]
    total: tuple[int, ...]
    planning: Planning
    windows: tuple[int, ...] = ()

    @property
    def recurrence(self) -> Node:
        """The only recurrence of the plan's net, as a node; its body is the net of one step."""
        return self.net.nodes[self.recur]

    @property
    def body(self) -> Net:
        """The body of the plan's only recurrence: the net of one step."""
        return self.recurrence.recur.body

    @property
    def reverse(self) -> bool:
        """Tells whether the plan's recurrence runs each sequence from its last step to its first."""
        return self.recurrence.recur.reverse

    def with_traced(self, traced: Net) -> "Plan":
        """Returns this plan for the net `traced`, which differs from the plan's net only in direction."""
        (recurrence,) = (node.recur for node in traced.nodes if node.operation == "recur")
        is_same = recurrence.reverse == self.reverse
        return replace(self, traced=traced, net=self.net if is_same else directed(self.net, not self.reverse))

    def planned(self, planning: Planning) -> "Plan":
        """Returns the plan of the same net by the passes and costs of another engine."""
        return self if planning == self.planning else plan(self.traced, planning)

    @computed_once
    def fibers(self) -> Fibers:
        """The fibers of matrices in the plan's step: the elements that a reduction combines for one unit."""
        return step_fibers(self.recurrence, self.planning.costs.fibers)

    @computed_once
    def units_are_alone(self) -> bool:
        """Tells whether no unit of a step depends on others, so that threads that divide units never wait."""
        return len(self.loop) == 1 and units_are_alone(self.fibers, self.loop[0], carried(self.recurrence))

    @computed_once
    def key(self) -> str:
        """A digest of the plan (the order in which a net's operations run), to cache its code; equal for
        plans that differ only in whether the steps run last first.
        """
        stages = (self.once, self.sequence, self.before, self.loop, self.after, self.ended, self.total)
        costs = self.planning.costs.fibers
        return digest(directed(self.net, reverse=False), self.ends, self.recur, *stages, costs, self.windows)

    @property
    def unroll(self) -> int:
        """The number of steps that the compiled loop of the plan's recurrence does per iteration."""
        return self.recurrence.recur.unroll

    @property
    def stages(self) -> tuple[tuple[str, Net, tuple[tuple[int, ...], ...]], ...]:
        """Lists the stages of a call (the times at which work runs, such as "before" the loop) in order:
        name, net of its nodes, and phases, each a tuple of nodes that threads run without waiting. The stage
        "reduced" is the sums and other reductions over the steps of each row.
        """
        return (
            ("sequence", self.net, self.sequence),
            ("before", self.net, self.before),
            ("loop", self.body, self.loop),
            ("after", self.net, self.after),
            ("reduced", self.net, (self.reduced,) if self.reduced else ()),
            ("ended", self.net, self.ended),
        )

    @property
    def last(self) -> list[int | None]:
        """Lists, for each memory of the recurrence, the node that reads its final value; None for a memory
        whose final value nothing reads.
        """
        picked = [number for number in range(len(self.net.nodes)) if picks(self.net, number, self.recur)]
        by_index = {self.net.nodes[number].attributes["of"]: number for number in picked}
        indices = range(len(self.recurrence.types))
        return [by_index.get(index) for index in self.recurrence.recur.results_by_kind(indices).memories]

    @property
    def read_in_the_end(self) -> set[int]:
        """The operands of those reductions over steps and sums over rows that run after the loop of this plan
        (the operations of a net in their order).
        """
        return {
            n for total_number in (*self.reduced, *self.total) for n in self.net.nodes[total_number].inputs
        }

    def results(self, indices: tuple[int, ...]) -> list[int]:
        """Lists the nodes of the plan's results at these positions, such as those per step, in this order."""
        return [self.net.results[index] for index in indices]


KNOWN = OrderedDict[tuple[Net, tuple[str, ...], Planning], Plan]()
"""The plans that are kept, by the net, the user's line for each node, and the passes and costs."""


def plan(traced: Net, planning: Planning) -> Plan:
    """Returns the plan of a net: which node runs in which stage (before, in or after the loop over steps, for
    instance), after all passes. Raises `NetError` if the net has not exactly one recurrence, or if one pass
    over the steps is not enough.

    The plans of equal nets are made once, such as those of equal layers, unless they hold arrays, which would
    stay in memory. Nets that differ only in direction are planned once, forward, as nothing but the direction
    differs between their plans.

    planning: the passes and costs of the engine that the plan is for.
    """
    forward = directed(traced, reverse=False)
    if any(literal.value.size > 1 for literal in literals_of(forward)):
        return new_plan(forward, planning).with_traced(traced)
    key = forward, tuple(node.source for node in all_nodes(forward)), planning
    known: Plan = entry_of(KNOWN, key, lambda: new_plan(forward, planning), MOST_PLANS)
    # Stored schedules find the passes and costs by identity.
    return replace(known.with_traced(traced), planning=planning)


def new_plan(traced: Net, planning: Planning) -> Plan:
    """Makes the plan of a net; see `plan`, which keeps it."""
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
    """Maps each memory of a recurrence's step to the node of its next value, both as node numbers of the
    body, the net of the step. A reshape of the value is left out.
    """
    recur = recurrence.recur
    following = (without_reshape(recur.body, number) for number in recur.following)
    return dict(zip(recur.memories, following, strict=True))


def directed(net: Net, reverse: bool) -> Net:
    """Returns a net with all its recurrences in one direction, as nets that differ only in direction are
    planned once. reverse: whether they run from the last step to the first.
    """

    def node_in_direction(node: Node) -> Node:
        """Sets the direction of a recurrence; returns other nodes unchanged."""
        pairs = tuple((name, reverse if name == "reverse" else value) for name, value in node.pairs)
        return node if pairs == node.pairs else replace(node, pairs=pairs)

    return unchecked_net(tuple(map(node_in_direction, net.nodes)), net.inputs, net.results)


def literals_of(net: Net) -> Iterator[Literal]:
    """Yields the constant arrays and numbers in a net."""
    values = (value for node in all_nodes(net) for _, value in node.pairs)
    return (value for value in values if isinstance(value, Literal))


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


def picks(net: Net, number: int, recur: int) -> bool:
    """Tells whether node `number` is a `result` node that picks a result of the recurrence `recur`."""
    return net.nodes[number].operation == "result" and net.nodes[number].inputs[0] == recur
