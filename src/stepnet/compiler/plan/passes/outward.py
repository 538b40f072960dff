"""Copies of a body's nodes in the net around it: shared by `hoist`, `sink` and `lift`.

    recur(x, s; body)           ->   %1 = f(s)                   rows: the same at every step
        f(s), g(x), f(s) + g(x)      %2 = g(x)                   rows/steps
                                     expand(%1) + %2             rows/steps

A value per row of the body becomes a value per row outside if it is the same at every step, and a value per
step otherwise. Where the two meet, the value per row is expanded. Constants need no expansion.
"""

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.type_rules import deeper
from stepnet.compiler.net.types import CONST, Extent
from stepnet.compiler.plan.passes.when import is_constant
from stepnet.compiler.values.records import dataclass


@dataclass
class Outward:
    """Copier of nodes of a recurrence's body into the net around it, so that they run outside the loop.

    builder: the builder of the outer net.
    deep: the outer extent of values per step.
    fixed: the nodes that are the same at every step.
    outside: for nodes of the body, their numbers outside so far.
    """

    builder: Builder
    body: Net
    deep: Extent
    fixed: set[int]
    outside: dict[int, int]

    def extent(self, number: int) -> Extent:
        """Returns the extent (constant, one value per row or per step) that a node of a recurrence's body
        (the net of its step) would have in the net around the recurrence: deeper by the steps, unless its
        value is the same at every step.
        """
        if number in self.outside:
            return self.builder.type_of(self.outside[number]).extent
        if is_constant(self.body.nodes[number]):
            return CONST
        return self.deep[:-1] if number in self.fixed else self.deep

    def number(self, number: int) -> int:
        """Returns the number that a node of a recurrence's body (the net of its step) has in the net around
        the recurrence, into which it is copied, with its operands, at first use. Unless it is the same at
        every step, the copy has a value per step.
        """
        pending = [number]  # a node, then an operand of it, and so on: chains may be deeper than calls
        while pending:
            missing = next((each for each in self.operands(pending[-1]) if each not in self.outside), None)
            if missing is not None:
                pending.append(missing)
            elif (last := pending.pop()) not in self.outside:
                self.outside[last] = self.copied(last)
        return self.outside[number]

    def is_still(self, number: int) -> bool:
        """Tells whether a node of the body is the same at every step, or a constant."""
        return number in self.fixed or is_constant(self.body.nodes[number])

    def constant_below(self, number: int) -> int | None:
        """Returns the number of the constant that a node of the body repeats; None for other nodes."""
        node = self.body.nodes[number]
        repeats = node.operation == "expand" and is_constant(self.body.nodes[node.inputs[0]])
        return node.inputs[0] if repeats else None

    def operands(self, number: int) -> list[int]:
        """Lists the nodes of the body that are copied before node `number`; none for one that has a copy."""
        if number in self.outside:
            return []
        inputs = list(self.body.nodes[number].inputs)
        if self.is_still(number):
            return inputs
        below = [self.constant_below(operand) for operand in inputs]
        return [own if const is None else const for own, const in zip(inputs, below, strict=True)]

    def copied(self, number: int) -> int:
        """Adds the copy of a node of the body whose operands have copies; returns its number outside."""
        node = self.body.nodes[number]
        if self.is_still(number):
            return self.builder.copy(node, [self.outside[operand] for operand in node.inputs])
        extent: Extent | None = node.attributes.get("extent")
        changed = {} if extent is None else {"extent": deeper(self.deep, extent)}
        return self.builder.copy(node, [self.at_steps(operand) for operand in node.inputs], **changed)

    def at_steps(self, number: int) -> int:
        """Returns the number in the net around a recurrence of node `number` of its body (the net of its
        step), copied there at first use, with a value per step: a value that is the same at every step is
        repeated, unless it is a constant.
        """
        node = self.body.nodes[number]
        if (constant := self.constant_below(number)) is not None:
            extent = deeper(self.deep, node.attributes["extent"])
            return self.builder.add("expand", self.number(constant), extent=extent)
        outside = self.number(number)
        if is_constant(node) or self.builder.nodes[outside].types[0].extent != self.deep[:-1]:
            return outside
        return self.builder.add("expand", outside, extent=self.deep)
