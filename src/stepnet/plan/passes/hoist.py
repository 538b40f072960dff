"""Work that needs no memory moved out of the loop.

    recur(x, h): h' = tanh(x @ W + h @ R)   ->   a = x @ W recur(a, h): h' = tanh(a + h @ R)

One large product over all steps runs at the machine's peak, where many small ones wait for memory. Work that
depends on parameters only is then done once, on statics once per sequence, on inputs before the loop. Views
of inputs stay: they cost nothing where they are. So do outer products, k[:, None] * v, that pointwise work
reads from registers: they are larger than their operands, and outside they would be written to memory at
every step.
"""

from dataclasses import dataclass, replace

from stepnet.net.ir import Builder, Net, Node, Recur
from stepnet.net.types import CONST, STEPS
from stepnet.plan.passes.outward import Outward
from stepnet.plan.passes.rewrite import rewritten, view_chain
from stepnet.plan.passes.when import When, when_inside

GROWTH = 4
"""How many times as large as its operands a product is at least to count as an outer one."""


def hoist(net: Net) -> Net:
    """The net in which all work that can be done before a loop is done there."""
    return rewritten(net, hoisted)


def hoisted(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """The recurrence with a smaller body, and before it the work that left the body."""
    if net.nodes[number].operation != "recur":
        return None
    return Hoist.of(builder, net.nodes[number], operands).run()


@dataclass
class Hoist:
    """One recurrence: the nodes that stay in its body, and the move of the others outward."""

    recur: Recur
    stays: list[bool]
    outward: Outward

    @classmethod
    def of(cls, builder: Builder, node: Node, operands: list[int]) -> "Hoist":
        """The move for one recurrence, with its operands known outside."""
        recur = node.recur
        body, known = recur.body, when_inside(recur)
        outside = dict(zip(body.inputs, operands, strict=True))
        fixed = {number for number, time in enumerate(known) if time <= When.PER_SEQUENCE}
        stays = [time == When.IN for time in known]
        for number in reversed(range(len(body.nodes))):
            stays[number] = stays[number] or is_outer(body, number, stays)
        for number, other in enumerate(body.nodes):
            if other.kind == "view" and other.type.extent != CONST and not stays[number]:
                root, _ = view_chain(body, number)
                stays[number] = body.nodes[root].operation == "input" and all(
                    stays[user] or number in body.results for user in body.users()[number]
                )
        return cls(recur, stays, Outward(builder, body, STEPS, fixed, outside))

    @property
    def body(self) -> Net:
        """The body before the pass."""
        return self.recur.body

    def run(self) -> int:
        """Makes the new recurrence and returns its number."""
        inner = Builder()
        needed = self.needed()
        place: dict[int, int] = {}
        sequences = [n for n in needed if self.outward.extent(n) == STEPS] or [self.body.inputs[0]]
        others = [n for n in needed if n not in sequences]
        for number in (*sequences, *self.recur.memories, *others):
            type_ = self.body.type_of(number)
            place[number] = inner.input(type_, self.body.nodes[number].name or f"before{number}")
        for number, node in enumerate(self.body.nodes):
            if number not in place and self.is_inside(number):
                place[number] = inner.copy(node, [place[operand] for operand in node.inputs])
        body = inner.net(place[result] for result in self.body.results)
        outer = [self.outward.number(n) for n in (*sequences, *self.recur.memories, *others)]
        return replace(self.recur, body=body, sequence_count=len(sequences)).add(self.outward.builder, outer)

    def is_inside(self, number: int) -> bool:
        """Whether a node is part of the new body."""
        return self.stays[number] or self.body.nodes[number].operation in ("expand", "constant")

    def needed(self) -> list[int]:
        """The nodes outside that the new body reads, in order."""
        operands: set[int] = set()
        for number, node in enumerate(self.body.nodes):
            if node.operation != "input" and self.is_inside(number):
                operands.update(operand for operand in node.inputs if not self.is_inside(operand))
        operands.update(result for result in self.body.results if not self.is_inside(result))
        return sorted(operands - set(self.recur.memories))


def is_outer(body: Net, number: int, stays: list[bool]) -> bool:
    """Whether a node is an outer product that only pointwise work in the loop reads."""
    node = body.nodes[number]
    if node.kind != "pointwise" or node.type.extent == CONST or number in body.results:
        return False
    given = sum(
        body.type_of(operand).size for operand in node.inputs if body.type_of(operand).extent != CONST
    )
    users = body.users()[number]
    return node.type.size > GROWTH * given and all(
        stays[user] and body.nodes[user].kind == "pointwise" for user in users
    )
