"""The plan of a recurrence: what is done once, before the loop, in it by phase, after it, and in the end.

    stage     how many             known
    once      const                when parameters are bound
    sequence  rows                 when a sequence is there
    before    rows/steps           ahead of the loop
    loop      rows, in the body    in it
    after     rows/steps           behind it
    ended     rows                 behind the last step of a sequence
    total     const                behind all steps of all rows

A phase is work in which every number depends on others of its own unit alone, so it can be done unit block by
unit block. A new phase starts wherever a result is needed across unit blocks: a product with this step's own
results, a reduction over features, features in another order.
"""

from dataclasses import dataclass, replace

import numpy as np

from stepnet.errors import NetError
from stepnet.net.digest import digest
from stepnet.net.ends import Ends
from stepnet.net.ir import Net, Node, all_nodes
from stepnet.net.types import CONST, ROWS, STEPS, Extent, extent_text
from stepnet.plan.passes import optimised
from stepnet.plan.passes.rewrite import value_read, view_chain
from stepnet.plan.passes.when import When, when
from stepnet.values.once import computed_once

STAGES: dict[Extent, tuple[tuple[When, str], ...]] = {
    CONST: ((When.ONCE, "once"), (When.TOTAL, "total")),
    ROWS: ((When.PER_SEQUENCE, "sequence"), (When.AFTER, "ended")),
    STEPS: ((When.BEFORE, "before"), (When.AFTER, "after")),
}
"""Per extent the stages of values that there are so many of, and until when one is known to be done there."""


@dataclass(frozen=True)
class Plan:
    """The traced net, the net after all passes, and when each node of that is done (numbers of nodes).

    ends: the inputs and results of both nets, by kind. reduced: values of a row that are computed from all of
    its steps, with which the work after the loop begins.
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

    @property
    def recurrence(self) -> Node:
        """The node of the loop."""
        return self.net.nodes[self.recur]

    @property
    def body(self) -> Net:
        """The step-net of the loop."""
        return self.recurrence.recur.body

    @property
    def reverse(self) -> bool:
        """Whether each sequence runs from its own last step."""
        return self.recurrence.recur.reverse

    def turned(self, traced: Net) -> "Plan":
        """The plan of a net that is as this one's, but may run in the other direction."""
        (recurrence,) = (node.recur for node in traced.nodes if node.operation == "recur")
        return replace(self, traced=traced, net=directed(self.net, recurrence.reverse))

    @computed_once
    def key(self) -> str:
        """A digest of what is computed; plans that are equal but for their direction have the same."""
        stages = (self.once, self.sequence, self.before, self.loop, self.after, self.ended, self.total)
        return digest(directed(self.net, reverse=False), self.ends, self.recur, *stages)

    @property
    def unroll(self) -> int:
        """The number of steps that one turn of the loop's code runs."""
        return self.recurrence.recur.unroll

    @property
    def stages(self) -> tuple[tuple[str, Net, tuple[tuple[int, ...], ...]], ...]:
        """Each stage's name, net and phases, in the order they run."""
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
        """For each memory the node of its last value; None where nobody reads it."""
        picked = [number for number in range(len(self.net.nodes)) if picks(self.net, number, self.recur)]
        by_place = {self.net.nodes[number].attributes["of"]: number for number in picked}
        places = range(len(self.recurrence.types))
        return [by_place.get(place) for place in self.recurrence.recur.results_by_kind(places).memories]

    @property
    def read_in_the_end(self) -> set[int]:
        """The nodes that reductions over steps and totals read."""
        return {n for made in (*self.reduced, *self.total) for n in self.net.nodes[made].inputs}

    def results(self, places: tuple[int, ...]) -> list[int]:
        """The nodes of the results at these places."""
        return [self.net.results[place] for place in places]


def plan(traced: Net) -> Plan:
    """The plan of a net with one recurrence."""
    net = optimised(traced)
    loops = [number for number, node in enumerate(net.nodes) if node.operation == "recur"]
    if len(loops) != 1:
        raise NetError(f"a plan is made of one recurrence; this net has {len(loops)}")
    recur = loops[0]
    known = when(net)
    check_one_pass(net, known)
    stages: dict[str, list[int]] = {name: [] for row in STAGES.values() for _, name in row}
    reduced: list[int] = []
    for number, node in enumerate(net.nodes):
        if node.operation in ("input", "recur") or picks(net, number, recur):
            continue
        if is_of_steps(net, number):
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
        phases(body, [n for n in inside if body.nodes[n].types[0].extent != CONST]),
        phases(net, stages["after"]),
        tuple(reduced),
        phases(net, stages["ended"]),
        tuple(stages["total"]),
    )


def directed(net: Net, reverse: bool) -> Net:
    """The net with all of its recurrences in one direction."""

    def node_in_direction(node: Node) -> Node:
        pairs = tuple((name, reverse if name == "reverse" else value) for name, value in node.pairs)
        return node if pairs == node.pairs else replace(node, pairs=pairs)

    return replace(net, nodes=tuple(map(node_in_direction, net.nodes)))


class Plans:
    """The plans of nets of one recurrence: those that are equal but for their direction are made once."""

    def __init__(self) -> None:
        self.known = dict[tuple[Net, tuple[str, ...]], Plan]()

    def of(self, traced: Net) -> Plan:
        """The plan of a net. No pass and no phase depends on the direction."""
        forward = directed(traced, reverse=False)
        key = forward, tuple(node.source for node in all_nodes(forward))
        if key not in self.known:
            self.known[key] = plan(forward)
        return self.known[key].turned(traced)


def stage(node: Node, known: When) -> str:
    """The stage in which a node is computed, by its extent and by when it is known."""
    extent = node.types[0].extent
    if extent not in STAGES:
        raise NetError(
            f"a plan is of flat sequences; {node.operation} gives a value at {extent_text(extent)}"
        )
    return next(name for latest, name in STAGES[extent] if known <= latest)


def check_one_pass(net: Net, known: list[When]) -> None:
    """Raises `NetError` where one pass over the steps is not enough: a step needs a value of all steps."""
    for number, node in enumerate(net.nodes):
        if "how" in node.attributes and node.operation == "expand":
            raise NetError(
                f"%{number} = expand is of one step of each sequence; a schedule runs it by itself"
            )
        extent = node.types[0].extent if node.types else CONST
        late = [n for n in node.inputs if known[n] > latest_operand(net, n, node, extent)]
        if late:
            raise NetError(
                f"%{number} = {node.operation} reads %{late[0]}, {net.type_of(late[0])}, known behind "
                "all steps: a plan goes over them once; a schedule runs such a net part by part"
            )


def latest_operand(net: Net, operand: int, node: Node, extent: Extent) -> When:
    """When an operand of a node is known at the latest."""
    if node.operation == "recur":
        return When.BEFORE
    if extent == CONST:
        return When.TOTAL
    into_steps = extent == STEPS and net.nodes[operand].types[0].extent == ROWS
    return When.PER_SEQUENCE if into_steps else When.AFTER


def picks(net: Net, number: int, recur: int) -> bool:
    """Whether a node reads one of the recurrence's results."""
    return net.nodes[number].operation == "result" and net.nodes[number].inputs[0] == recur


def is_of_recurrence(net: Net, number: int) -> bool:
    """Whether a node is a result of a recurrence."""
    node = net.nodes[number]
    return node.operation == "result" and net.nodes[node.inputs[0]].operation == "recur"


def is_of_steps(net: Net, number: int) -> bool:
    """Whether a node computes one value of a row from the values of all its steps."""
    node = net.nodes[number]
    return node.operation == "reduce" and node.type.extent == ROWS


def phases(net: Net, numbers: list[int]) -> tuple[tuple[int, ...], ...]:
    """The nodes by phase. Views and inputs are in none, as nothing is computed for them."""
    later = set[int]()
    while torn := torn_nodes(net, phase := phase_of_each(net, numbers, later)):
        later |= torn
    phase = postponed(net, numbers, phase)
    count = max(phase.values(), default=-1) + 1
    return tuple(tuple(n for n in numbers if phase.get(n) == level) for level in range(count))


def phase_of_each(net: Net, numbers: list[int], later: set[int]) -> dict[int, int]:
    """The phase of each node. later: nodes that begin a phase behind all that they read."""
    phase: dict[int, int] = {}
    inside = set(numbers)
    for number in numbers:
        node = net.nodes[number]
        if node.is_view or node.operation in ("expand", "index"):
            continue
        if node.operation == "result":
            phase[number] = phase[node.inputs[0]]
            continue
        own_phase = 0
        for operand in node.inputs:
            root = value_read(net, operand)
            if root in phase and root in inside:
                along = node.kind == "pointwise" and number not in later and joins(net, operand, node)
                own_phase = max(own_phase, phase[root] + (0 if along else 1))
        phase[number] = own_phase
    return phase


def postponed(net: Net, numbers: list[int], phase: dict[int, int]) -> dict[int, int]:
    """The phases, with pointwise work where its value is read, if it needs no value of its own phase's.

        1  a = f * C                     1
        2  C' = a + k * v        ->      2  a = f * C;  C' = a + k * v

    A value that is read in a later phase alone is written and read again. Where C is a matrix for each row,
    that is most of what a step reads and writes.
    """
    readers = dict[int, list[tuple[int, int]]]()
    for number in numbers:
        if not net.nodes[number].is_view:
            for operand in net.nodes[number].inputs:
                readers.setdefault(view_chain(net, operand)[0], []).append((number, operand))
    for number in reversed(numbers):
        node, reads = net.nodes[number], readers.get(number, [])
        if node.kind != "pointwise" or not reads or any(reader not in phase for reader, _ in reads):
            continue
        first = min(phase[reader] for reader, _ in reads)
        stays = any(
            phase.get(view_chain(net, operand)[0]) == phase[number] and joins(net, operand, node)
            for operand in node.inputs
        )
        along = all(
            net.nodes[reader].kind == "pointwise" and joins(net, operand, net.nodes[reader])
            for reader, operand in reads
            if phase[reader] == first
        )
        moved = {**phase, number: first}
        if first > phase[number] and along and not stays and not torn_nodes(net, moved):
            phase = moved
    return phase


def torn_nodes(net: Net, phase: dict[int, int]) -> set[int]:
    """The nodes that read in their own phase what another thread may compute.

    Threads share products, and the pointwise work of their size, by unit; all other work by row.
    """

    def kind(number: int) -> tuple[int, Extent, int]:
        type_ = net.nodes[number].types[0]
        return phase[number], type_.extent, type_.size

    products = {kind(number) for number in phase if net.nodes[number].kind == "matmul"}

    def by_unit(number: int) -> bool:
        node = net.nodes[number]
        shared = node.kind in ("pointwise", "matmul") or node.operation == "result"
        return shared and kind(number) in products

    return {
        number
        for number in phase
        if net.nodes[number].kind == "pointwise"
        for operand in net.nodes[number].inputs
        if (root := view_chain(net, operand)[0]) in phase
        and phase[root] == phase[number]
        and by_unit(root) != by_unit(number)
    }


def joins(net: Net, operand: int, user: Node) -> bool:
    """Whether a pointwise node may run in the phase of the value that it reads. A reduction over a sequence
    ends its phase, and so do a value that is repeated along one and an inner recurrence.
    """
    root, _ = view_chain(net, operand)
    ends = net.nodes[root].operation in ("expand", "reduce") or is_of_recurrence(net, root)
    return not ends and reads_along(net, operand, user)


def reads_along(net: Net, operand: int, user: Node) -> bool:
    """Whether each element of a pointwise result needs only the element at its own place in the source."""
    root, _ = view_chain(net, operand)
    places = view_places(net, operand)
    if net.type_of(root).size != user.type.size:
        return False
    spread = np.broadcast_to(places, user.type.shape).ravel()
    return bool(np.array_equal(spread, np.arange(user.type.size)))


def view_places(net: Net, number: int) -> np.ndarray:
    """For each element of a view, its place in the source: the view applied to an array of places."""
    root, chain = view_chain(net, number)
    shape = net.type_of(root).shape
    places = np.arange(net.type_of(root).size, dtype=np.int64).reshape(shape)
    for node in chain:
        places = node.row.meaning(places[None], **node.attributes)[0]
    return places
