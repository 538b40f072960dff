"""What needs no memory moved out of the loop.

    recur(x, h): h' = tanh(x @ W + h @ R)   ->   a = x @ W
                                                 recur(a, h): h' = tanh(a + h @ R)

One large product over all steps runs at the machine's peak, where many small ones wait for memory. What
depends on parameters alone leaves to be done once, on statics alone to be done once per sequence, on inputs
to be done before the loop. Views of inputs stay: they cost nothing where they are; and so do outer products,
k[:, None] * v, that are read on registers: they are larger than what they are made of, and would be put into
memory at every step.
"""

from dataclasses import dataclass, replace

from stepnet.ir import Builder, Net, Node, Recur
from stepnet.passes.regroup import IN_LOOP, known_at
from stepnet.passes.rewrite import rewritten, view_chain
from stepnet.types import CONST, ROWS, STEPS, Extent

GROWTH = 4
"""How many times as large as its operands a product is at least to count as an outer one."""


def hoist(net: Net) -> Net:
    """The net with everything that can be done before its loops done there."""
    return rewritten(net, hoisted)


def hoisted(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """The recurrence with a smaller body, and what left it in front."""
    if net.nodes[number].operation != "recur":
        return None
    return Hoist.of(builder, net.nodes[number], operands).run()


@dataclass
class Hoist:
    """One recurrence on its way out: what stays, and where the values outside are."""

    builder: Builder
    recur: Recur
    operands: list[int]
    stays: list[bool]
    outside: dict[int, int]

    @classmethod
    def of(cls, builder: Builder, node: Node, operands: list[int]) -> "Hoist":
        """The work on one recurrence, with the operands known outside."""
        recur = node.recur
        body, inside = recur.body, set(recur.memories)
        outside = {
            inner: outer for inner, outer in zip(body.inputs, operands, strict=True) if inner not in inside
        }
        stays = [when == IN_LOOP for when in known_at(recur)]
        for number in reversed(range(len(body.nodes))):
            stays[number] = stays[number] or is_outer(body, number, stays)
        for number, one in enumerate(body.nodes):
            if one.kind == "view" and one.type.extent != CONST and not stays[number]:
                root, _ = view_chain(body, number)
                stays[number] = body.nodes[root].operation == "input" and all(
                    stays[user] or number in body.results for user in body.users()[number]
                )
        return cls(builder, recur, operands, stays, outside)

    @property
    def body(self) -> Net:
        """The body as it was."""
        return self.recur.body

    def run(self) -> int:
        """The number of the new recurrence."""
        inner = Builder()
        needed = self.needed()
        place: dict[int, int] = {}
        sequences = [n for n in needed if self.extent_outside(n) == STEPS] or [self.body.inputs[0]]
        others = [n for n in needed if n not in sequences]
        for number in (*sequences, *self.recur.memories, *others):
            type_ = self.body.type_of(number)
            place[number] = inner.input(type_, self.body.nodes[number].name or f"before{number}")
        for number, node in enumerate(self.body.nodes):
            if number not in place and self.is_inside(number):
                place[number] = inner.copy(node, [place[operand] for operand in node.inputs])
        body = inner.net(place[result] for result in self.body.results)
        outer = [self.number_outside(n) for n in sequences]
        outer += self.recur.given(self.operands).memories
        outer += [self.number_outside(n) for n in others]
        return replace(self.recur, body=body, sequence_count=len(sequences)).add(self.builder, outer)

    def is_inside(self, number: int) -> bool:
        """Whether a node is part of the new body."""
        return self.stays[number] or self.body.nodes[number].operation in ("expand", "constant")

    def needed(self) -> list[int]:
        """The nodes outside that the new body reads, in order."""
        found: set[int] = set()
        for number, node in enumerate(self.body.nodes):
            if node.operation != "input" and self.is_inside(number):
                found.update(operand for operand in node.inputs if not self.is_inside(operand))
        found.update(result for result in self.body.results if not self.is_inside(result))
        return sorted(found - set(self.recur.memories))

    def number_outside(self, number: int) -> int:
        """The node outside that a node of the body has become."""
        if number not in self.outside:
            node = self.body.nodes[number]
            extents = {self.extent_outside(operand) for operand in node.inputs}
            deepest = max(extents, key=len, default=CONST)
            inputs = [self.raised(operand, deepest, node) for operand in node.inputs]
            self.outside[number] = self.builder.copy(node, inputs)
        return self.outside[number]

    def raised(self, operand: int, extent: Extent, node: Node) -> int:
        """An operand at the extent that its operation has outside; constants fit everywhere."""
        number = self.number_outside(operand)
        here = self.builder.type_of(number).extent
        if (
            (here == CONST and self.body.type_of(operand).extent == CONST)
            or here == extent
            or node.operation == "expand"
        ):
            return number
        return self.builder.add("expand", number, extent=extent)

    def extent_outside(self, number: int) -> Extent:
        """How many there will be of a value outside: one per step, per row, or one."""
        if number in self.outside:
            return self.builder.type_of(self.outside[number]).extent
        node = self.body.nodes[number]
        if node.operation == "expand":
            return ROWS
        return max((self.extent_outside(operand) for operand in node.inputs), key=len, default=CONST)


def is_outer(body: Net, number: int, stays: list[bool]) -> bool:
    """Whether a node is an outer product that only pointwise work in the loop reads."""
    node = body.nodes[number]
    if node.kind != "pointwise" or node.type.extent == CONST or number in body.results:
        return False
    given = sum(body.type_of(one).size for one in node.inputs if body.type_of(one).extent != CONST)
    users = body.users()[number]
    return node.type.size > GROWTH * given and all(
        stays[user] and body.nodes[user].kind == "pointwise" for user in users
    )
