"""The reverse sweep over a net, which accumulates the cotangent of each value.

y = tanh(a)      a node whose result has the cotangent d     ->   d * (1 - y * y) is added to that of a
y = x @ W        in a body, which cannot sum over rows       ->   x and d, operands of a contract, are outputs
"""

from collections.abc import Callable
from dataclasses import field

import numpy as np

from stepnet.compiler.grad.adjoints import ADJOINTS
from stepnet.compiler.grad.extents import Total
from stepnet.compiler.grad.forward import Forward
from stepnet.compiler.grad.stretches import added
from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST, ROWS, is_static_extent
from stepnet.compiler.values.records import dataclass


@dataclass
class Sweep:
    """Reverse sweep over a net, which accumulates the cotangents of its values.

    builder: the builder of the gradient net.
    net: the net to be differentiated.
    forward: the copies of its values in the gradient net.
    transpose: the rule for recurrences.
    inside: whether the net is a body.
    cotangents: for each node, its cotangent so far.
    totals: for a body, the sums for its parameters.
    """

    builder: Builder
    net: Net
    forward: Forward
    transpose: "Callable[[Sweep, int], None]"
    inside: bool = False
    cotangents: dict[int, Value] = field(default_factory=dict[int, Value])
    totals: list[tuple[int, Total]] = field(default_factory=list[tuple[int, Total]])

    def value(self, number: int) -> Value:
        """Returns the copy, in the gradient net, of the value of a node."""
        return Value(self.builder, self.forward.copy_of[number])

    def run(self) -> None:
        """Does the reverse sweep of a gradient: visits the nodes of the original net that have a cotangent,
        from the last to the first, and adds their contributions to the cotangents of their operands.
        """
        for number in reversed(range(len(self.net.nodes))):
            node = self.net.nodes[number]
            if node.operation == "recur":
                self.transpose(self, number)
            elif number in self.cotangents:
                self.step(node, number)

    def step(self, node: Node, number: int) -> None:
        """Adds a node's contributions to the cotangents of its operands, by the rule for its operation in the
        table `ADJOINTS`. Nothing is added for operations that have none, such as comparisons, and for
        operands that are no floats.
        """
        row = ADJOINTS[node.operation]
        if isinstance(row, str):
            return
        operands = [self.value(operand) for operand in node.inputs]
        cotangents = row(node, self.cotangents[number], self.value(number), *operands)
        for operand, cotangent in zip(node.inputs, cotangents, strict=True):
            if cotangent is not None and self.net.type_of(operand).is_float:
                self.add(operand, cotangent)

    def add(self, number: int, cotangent: Value | Total) -> None:
        """Adds a contribution, from one reader of a node, to the node's cotangent, in its compute dtype.

        In a body (the net of a recurrence's step), a sum over all rows is noted in `totals` instead, as a
        body cannot compute it. Sums over all rows for `constant` nodes are dropped, as nothing reads them.
        """
        type_ = self.net.type_of(number).computed
        if isinstance(cotangent, Value):
            cotangent = fitted(cotangent, type_.shape).cast(type_.dtype)
            if type_.extent == CONST and cotangent.type.extent != CONST:
                cotangent = Total("sum", (cotangent,))
        if isinstance(cotangent, Total):
            if self.net.nodes[number].operation == "constant":
                return
            if self.inside:
                self.totals.append((number, handed_out(cotangent)))
                return
            cotangent = fitted(cotangent.built, type_.shape).cast(type_.dtype)
        known = self.cotangents.get(number)
        self.cotangents[number] = cotangent if known is None else added(known, cotangent)

    def of_input(self, number: int) -> Value:
        """Returns the cotangent of an input, in the input's dtype; zeros if no result depends on it."""
        type_ = self.net.type_of(number)
        if number in self.cotangents:
            return self.cotangents[number].cast(type_.dtype)
        zeros = self.builder.constant(np.zeros(type_.shape, type_.dtype))
        return Value(self.builder, zeros).like(type_.extent)

    def of_results(self, number: int) -> dict[int, Value]:
        """Returns the cotangents of the results of recurrence `number`, by position among its results;
        results without a cotangent are left out.
        """
        return {
            node.attributes["of"]: self.cotangents[result_number]
            for result_number, node in enumerate(self.net.nodes)
            if node.operation == "result" and node.inputs[0] == number and result_number in self.cotangents
        }


def fitted(value: Value, shape: tuple[int, ...]) -> Value:
    """Reduces a cotangent to an operand's shape: sums over the axes along which the operand was broadcast."""
    lead = value.rank - len(shape)
    wide = value.type.shape
    grown = [axis for axis, size in enumerate(shape) if size == 1 and wide[lead + axis] != 1]
    axes = [*range(lead), *(lead + axis for axis in grown)]
    return value.sum(*(axis - value.rank for axis in axes)).reshape(*shape)


def handed_out(total: Total) -> Total:
    """Returns a sum over all rows that is equal to `total` and whose operands a body (the net of a step) can
    return as outputs: if it sums values at the steps of static sequences, of which a row has several, the
    operand of the new sum is their sum for each row.
    """
    if is_static_extent(total.operands[0].type.extent):
        return Total("sum", (total.terms.reduced(ROWS),))
    return total
