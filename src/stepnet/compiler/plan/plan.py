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
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.ir import Net, Node, all_nodes, unchecked_net
from stepnet.compiler.net.types import Literal
from stepnet.compiler.plan.load import CostModel
from stepnet.compiler.plan.passes import Pipeline
from stepnet.compiler.values.fork_guard import imported_late
from stepnet.compiler.values.once import computed_once, entry_of
from stepnet.compiler.values.records import dataclass

if TYPE_CHECKING:
    from stepnet.compiler.plan.fibers import Fibers

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
        return self if planning == self.planning else planned(self.traced, planning)

    @computed_once
    def fibers(self) -> "Fibers":
        """The fibers of matrices in the plan's step: the elements that a reduction combines for one unit."""
        found: Fibers = from_stages("step_fibers")(self.recurrence, self.planning.costs.fibers)
        return found

    @computed_once
    def units_are_alone(self) -> bool:
        """Tells whether no unit of a step depends on others, so that threads that divide units never wait."""
        if len(self.loop) != 1:
            return False
        following = from_stages("carried")(self.recurrence)
        alone: bool = from_stages("units_are_alone")(self.fibers, self.loop[0], following)
        return alone

    @computed_once
    def key(self) -> str:
        """A digest of the plan, to cache its code; the same for steps in either direction."""
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
        """Lists for each memory the node that reads its final value; None if nothing reads it."""
        picked = [number for number in range(len(self.net.nodes)) if picks(self.net, number, self.recur)]
        by_index = {self.net.nodes[number].attributes["of"]: number for number in picked}
        indices = range(len(self.recurrence.types))
        return [by_index.get(index) for index in self.recurrence.recur.results_by_kind(indices).memories]

    @property
    def read_in_the_end(self) -> set[int]:
        """The operands of reductions over steps and of sums over rows that run after this plan's loop."""
        return {
            n for total_number in (*self.reduced, *self.total) for n in self.net.nodes[total_number].inputs
        }

    def results(self, indices: tuple[int, ...]) -> list[int]:
        """Lists the nodes of the plan's results at these positions, such as those per step, in this order."""
        return [self.net.results[index] for index in indices]


KNOWN = OrderedDict[tuple[Net, tuple[str, ...], Planning], Plan]()
"""The plans that are kept, by the net, the user's line for each node, and the passes and costs."""


def planned(traced: Net, planning: Planning) -> Plan:
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
    made: Plan = from_stages("staged")(traced, planning)
    return made


def from_stages(name: str) -> Callable[..., Any]:
    """Returns a function of `stages.py`, which is imported at its first use; stored plans need none."""
    found: Callable[..., Any] = imported_late("stepnet.compiler.plan", name, "stages")
    return found


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


def picks(net: Net, number: int, recur: int) -> bool:
    """Tells whether node `number` is a `result` node that picks a result of the recurrence `recur`."""
    return net.nodes[number].operation == "result" and net.nodes[number].inputs[0] == recur
