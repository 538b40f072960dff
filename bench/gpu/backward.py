"""The backward loop of a named cell as a step: the body of the plan that stepnet makes for its gradient.

The gates' cotangents are concatenated there before they are multiplied by the transposed weights. Here they
remain apart: the product becomes one sum of products with several left operands, which the IR has, and no
warp needs another one's units for it.
"""

from dataclasses import dataclass, field

from bench.gpu.cells import model
from bench.gpu.shape import Step
from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.recur import Order
from stepnet.compiler.net.types import Type
from stepnet.model.gradient_runs import Halved


def backward_step(name: str, width: int) -> Step:
    """Returns the step of the backward loop of a named cell."""
    net = model(name, width, [1]).rnn.net
    (plan,) = [
        part.plan for part in Halved.of(net, range(len(net.inputs))).second.schedule.parts if part.plan
    ]
    recur = plan.recurrence.recur
    apart = Apart(plan.body, width)
    return Step.of_body(
        apart.made(recur.outputs, recur.following), Order(recur.sequence_count, recur.memory_count)
    )


@dataclass
class Apart:
    """A copy of a step in which concatenated values are apart, and matrices in blocks of `width` rows."""

    body: Net
    width: int
    builder: Builder = field(default_factory=Builder)
    at: dict[int, int] = field(default_factory=dict[int, int])
    joined: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    def made(self, outputs: list[int], following: list[int]) -> Net:
        """Returns the copy. Parts of an output that is a concatenation are outputs of their own."""
        for number in self.body.inputs:
            if len(self.body.type_of(number).shape) < 2:
                self.at[number] = self.builder.input(self.body.type_of(number), self.body.nodes[number].name)
        for number, node in enumerate(self.body.nodes):
            if node.operation == "concatenate":
                self.joined[number] = node.inputs
            elif node.operation != "input":
                product = node.operation == "matmul" and node.inputs[0] in self.joined
                self.at[number] = self.product(node) if product else self.copied(node)
        parts = [part for output in outputs for part in self.joined.get(output, (output,))]
        return self.builder.net([self.at[n] for n in (*dict.fromkeys(parts), *following)])

    def copied(self, node: Node) -> int:
        """Adds a node as it is; returns its number in the copy."""
        return self.builder.copy(node, [self.at[operand] for operand in node.inputs])

    def product(self, node: Node) -> int:
        """Adds the product of a concatenated value as a sum of products of its parts."""
        parts, matrix = self.joined[node.inputs[0]], self.body.nodes[node.inputs[1]]
        shape = Type(matrix.type.extent, (self.width, self.width), matrix.type.dtype)
        blocks = [self.builder.input(shape, f"{matrix.name}_{place}") for place in range(len(parts))]
        lefts = [self.at[part] for part in parts]
        return self.builder.add(
            "result", self.builder.add("products", *lefts, *blocks, lefts=len(lefts)), of=0
        )
