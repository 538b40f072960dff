"""The forward net in the one that has its gradient: the same values, and recurrences that save some."""

from dataclasses import dataclass, field, replace

from stepnet.grad.saved import saved_values
from stepnet.net.ir import Builder, Net


@dataclass
class Forward:
    """Where the values of a net are in the net that is made.

    saved: by recurrence, the nodes of its body that are saved, and where their values at every step are. A
    recurrence gives everything that could be read; a pass takes away what nobody reads.
    """

    place: dict[int, int] = field(default_factory=dict[int, int])
    saved: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])

    def copy(self, builder: Builder, net: Net) -> "Forward":
        """The same with all nodes of the net, those besides that are there already."""
        for number, node in enumerate(net.nodes):
            if number in self.place or (node.operation == "result" and node.inputs[0] in self.saved):
                continue
            if node.operation == "recur":
                self.recur(builder, net, number)
            else:
                self.place[number] = builder.copy(node, [self.place[operand] for operand in node.inputs])
        return self

    def recur(self, builder: Builder, net: Net, number: int) -> None:
        """A recurrence with what it saves among its outputs, and what the net reads of it."""
        recur = net.nodes[number].recur
        saved = saved_values(recur)
        body = replace(recur.body, results=(*recur.outputs, *saved, *recur.following))
        operands = [self.place[operand] for operand in net.nodes[number].inputs]
        results = replace(recur, body=body).add_results(builder, operands)
        own = len(recur.outputs)
        self.saved[number] = dict(zip(saved, results.outputs[own:], strict=True))
        made = [*results.outputs[:own], *results.memories]
        for place, node in enumerate(net.nodes):
            if node.operation == "result" and node.inputs[0] == number:
                self.place[place] = made[node.attributes["of"]]
