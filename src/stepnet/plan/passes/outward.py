"""Nodes of a body made again in the net around it: what hoist, sink and lift share.

    recur(x, s; body)           ->   %1 = f(s)                   rows: the same at every step
        f(s), g(x), f(s) + g(x)      %2 = g(x)                   rows/steps
                                     expand(%1) + %2             rows/steps

A value that the body has one of per row there is one of per row outside if it is the same at every step, and
one of per step if it is not. Where the two meet the first is expanded; constants fit everywhere.
"""

from dataclasses import dataclass

from stepnet.net.ir import Builder, Net
from stepnet.net.type_rules import deeper
from stepnet.net.types import CONST, Extent
from stepnet.plan.passes.when import is_constant


@dataclass
class Outward:
    """The net around, a body, the extent of what it has one of per step, the nodes that are `fixed`, the same
    at every step, and where values of the body are outside already.
    """

    builder: Builder
    body: Net
    deep: Extent
    fixed: set[int]
    outside: dict[int, int]

    def extent(self, number: int) -> Extent:
        """The extent outside of a value with one entry, or one per row, in the body."""
        if number in self.outside:
            return self.builder.type_of(self.outside[number]).extent
        if is_constant(self.body.nodes[number]):
            return CONST
        return self.deep[:-1] if number in self.fixed else self.deep

    def number(self, number: int) -> int:
        """The number outside of a node of the body."""
        if number not in self.outside:
            node = self.body.nodes[number]
            if number in self.fixed or is_constant(node):
                inputs = [self.number(operand) for operand in node.inputs]
                self.outside[number] = self.builder.copy(node, inputs)
            else:
                inputs = [self.at_steps(operand) for operand in node.inputs]
                extent: Extent | None = node.attributes.get("extent")
                changed = {} if extent is None else {"extent": deeper(self.deep, extent)}
                self.outside[number] = self.builder.copy(node, inputs, **changed)
        return self.outside[number]

    def at_steps(self, number: int) -> int:
        """The number outside of a node of the body, expanded to every step where it has one value per row."""
        node = self.body.nodes[number]
        if node.operation == "expand" and is_constant(self.body.nodes[node.inputs[0]]):
            extent = deeper(self.deep, node.attributes["extent"])
            return self.builder.add("expand", self.number(node.inputs[0]), extent=extent)
        outside = self.number(number)
        if is_constant(node) or self.builder.nodes[outside].types[0].extent != self.deep[:-1]:
            return outside
        return self.builder.add("expand", outside, extent=self.deep)
