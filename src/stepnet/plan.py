"""The plan of a recurrence: what is done once, before the loop, in it by phase, and after it.

A phase is work in which every number depends on others of its own unit alone, so it can be done unit block by
unit block. A new phase starts wherever a result is needed across unit blocks: a product with this step's own
results, a reduction over features, features in another order.
"""

from dataclasses import dataclass

import numpy as np

from stepnet.errors import NetError
from stepnet.ir import Net, Node
from stepnet.passes import optimised
from stepnet.passes.rewrite import view_chain
from stepnet.types import CONST, ROWS, STEPS


@dataclass(frozen=True)
class Plan:
    """The traced net, the same after all passes, and when each node of that is done (numbers of nodes)."""

    traced: Net
    net: Net
    recur: int
    once: tuple[int, ...]
    sequence: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    loop: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    @property
    def recurrence(self) -> Node:
        """The node that is the loop."""
        return self.net.nodes[self.recur]

    @property
    def body(self) -> Net:
        """The step-net that is left in the loop."""
        return self.recurrence.recur.body

    @property
    def reverse(self) -> bool:
        """Whether each sequence runs from its own last step."""
        return self.recurrence.recur.reverse

    @property
    def unroll(self) -> int:
        """How many steps the loop's code holds one after the other."""
        return self.recurrence.recur.unroll

    @property
    def stages(self) -> tuple[tuple[str, Net, tuple[tuple[int, ...], ...]], ...]:
        """Each stage's name, net and phases, in the order they run."""
        return (
            ("sequence", self.net, self.sequence),
            ("before", self.net, self.before),
            ("loop", self.body, self.loop),
            ("after", self.net, self.after),
        )


def plan(traced: Net) -> Plan:
    """The plan of a net with one recurrence."""
    net = optimised(traced)
    loops = [number for number, node in enumerate(net.nodes) if node.operation == "recur"]
    if len(loops) != 1:
        raise NetError(f"a plan is made of one recurrence; this net has {len(loops)}")
    recur = loops[0]
    late = after_loop(net, recur)
    numbers = [
        n
        for n in range(len(net.nodes))
        if net.nodes[n].operation not in ("input", "recur") and not picks(net, n, recur)
    ]
    once = tuple(n for n in numbers if all(type_.extent == CONST for type_ in net.nodes[n].types))
    rows = [n for n in numbers if n not in once and net.nodes[n].types[0].extent == ROWS]
    steps = [n for n in numbers if n not in once and net.nodes[n].types[0].extent == STEPS]
    body: Net = net.nodes[recur].attributes["body"]
    inside = [n for n in range(len(body.nodes)) if body.nodes[n].operation != "input"]
    return Plan(
        traced,
        net,
        recur,
        once,
        phases(net, rows),
        phases(net, [n for n in steps if n not in late]),
        phases(body, [n for n in inside if body.nodes[n].types[0].extent != CONST]),
        phases(net, [n for n in steps if n in late]),
    )


def picks(net: Net, number: int, recur: int) -> bool:
    """Whether a node reads one of the recurrence's results."""
    return net.nodes[number].operation == "result" and net.nodes[number].inputs[0] == recur


def after_loop(net: Net, recur: int) -> set[int]:
    """The nodes that need a result of the recurrence."""
    found = {recur}
    for number, node in enumerate(net.nodes):
        if found & set(node.inputs):
            found.add(number)
    return found


def phases(net: Net, numbers: list[int]) -> tuple[tuple[int, ...], ...]:
    """The nodes by phase. Views are in none: they are how a value is read; nor is what is there already."""
    phase: dict[int, int] = {}
    inside = set(numbers)
    for number in numbers:
        node = net.nodes[number]
        if (node.kind == "view" and len(node.inputs) == 1) or node.operation in ("expand", "index"):
            continue
        if node.operation == "result":
            phase[number] = phase[node.inputs[0]]
            continue
        found = 0
        for operand in node.inputs:
            root, _ = view_chain(net, operand)
            if root in phase and root in inside:
                along = node.kind == "pointwise" and reads_along(net, operand, node)
                found = max(found, phase[root] + (0 if along else 1))
        phase[number] = found
    count = max(phase.values(), default=-1) + 1
    return tuple(tuple(n for n in numbers if phase.get(n) == one) for one in range(count))


def reads_along(net: Net, operand: int, user: Node) -> bool:
    """Whether each number of a pointwise result needs just the one at its own place in the source."""
    root, _ = view_chain(net, operand)
    places = view_places(net, operand)
    if net.type_of(root).size != user.type.size:
        return False
    spread = np.broadcast_to(places, user.type.shape).ravel()
    return bool(np.array_equal(spread, np.arange(user.type.size)))


def view_places(net: Net, number: int) -> np.ndarray:
    """For each number of a view, its place in what it is a view of: the views' meaning, on counted places."""
    root, chain = view_chain(net, number)
    shape = net.type_of(root).shape
    places = np.arange(net.type_of(root).size, dtype=np.int64).reshape(shape)
    for node in chain:
        places = node.row.meaning(places[None], **node.attributes)[0]
    return places
