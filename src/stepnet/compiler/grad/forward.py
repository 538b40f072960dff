"""The forward net inside the gradient net: the same values, with recurrences that save values for the
backward pass.

    z = sigmoid(x @ W + h @ R); n = tanh(...); h' = (1 - z) * n + z * h     ->     h, z, n and the products

A recurrence saves every value that costs more to compute than to read. Cheap values between them are
recomputed. Sums may then be added in another order, so no adjoint compares a recomputed value with a saved
one. The pass `prune` removes saved values that are not read.
"""

from dataclasses import field, replace

from stepnet.compiler.net.cut import is_expensive
from stepnet.compiler.net.ir import Builder, Net, Node, Recur
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.values.records import dataclass


@dataclass
class Forward:
    """Copies of a net's values in its gradient net.

    copy_of: for each node, its copy.
    saved: for each recurrence: the saved nodes of its body, and the nodes of their values at every step.

    A recurrence saves everything that could be read; the pass `prune` removes what is not read.
    """

    copy_of: dict[int, int] = field(default_factory=dict[int, int])
    saved: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])

    def copy(self, builder: Builder, net: Net) -> "Forward":
        """Copies all nodes of a net that are not copied yet, with their values, into the gradient net, which
        computes results and cotangents; returns itself. Recurrences become ones that also return the values
        saved for their adjoints. builder: the builder of the gradient net.
        """
        for number, node in enumerate(net.nodes):
            if number in self.copy_of or (node.operation == "result" and node.inputs[0] in self.saved):
                continue
            if node.operation == "recur":
                self.recur(builder, net, number)
            else:
                self.copy_of[number] = builder.copy(node, [self.copy_of[operand] for operand in node.inputs])
        return self

    def recur(self, builder: Builder, net: Net, number: int) -> None:
        """Copies a recurrence and its `result` nodes into the gradient net. The copy has further outputs for
        the values that its adjoint may read.
        """
        recur = net.nodes[number].recur
        saved = saved_values(recur)
        body = replace(recur.body, results=(*recur.outputs, *saved, *recur.following))
        operands = [self.copy_of[operand] for operand in net.nodes[number].inputs]
        results = replace(recur, body=body).add_results(builder, operands)
        own = len(recur.outputs)
        self.saved[number] = dict(zip(saved, results.outputs[own:], strict=True))
        results_by_index = [*results.outputs[:own], *results.memories]
        for position, node in enumerate(net.nodes):
            if node.operation == "result" and node.inputs[0] == number:
                self.copy_of[position] = results_by_index[node.attributes["of"]]


def saved_values(recur: Recur) -> list[int]:
    """Lists the nodes of a recurrence's body (the net of its step) whose values are saved at every step for
    its adjoint, in place of computing them again: by node number, the memories first.

    The memory before a step is always saved, and so is the step index, which the adjoint, as it runs from the
    last step, would count from the wrong end.
    """
    body = recur.body
    memories = [number for number in recur.memories if body.type_of(number).extent == ROWS]
    return [*memories, *(number for number, node in enumerate(body.nodes) if is_saved(node))]


def is_saved(node: Node) -> bool:
    """Tells whether a node's value is saved for the backward pass: the step index, or costly values."""
    flat = len(node.types) == 1 and node.type.extent == ROWS and node.kind not in ("gather", "extent")
    return flat and (node.operation == "index" or is_expensive(node))
