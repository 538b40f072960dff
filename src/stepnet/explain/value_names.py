"""Names the values in an explanation: they are numbered in the order in which they are computed."""

from collections.abc import Iterable
from dataclasses import field

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.plan.plan import Plan, picks
from stepnet.compiler.values.records import dataclass
from stepnet.explain.expressions import constant, view


@dataclass
class Names:
    """Names of the values of one net.

    known: the names of values that are not views, by number of the node; they are added as values are
    numbered.
    """

    net: Net
    known: dict[int, str] = field(default_factory=dict[int, str])

    def of(self, number: int) -> str:
        """Returns the name of a node's value; for a view, an expression such as `W[:, :64]`."""
        node = self.net.nodes[number]
        if number in self.known:
            return self.known[number]
        if node.operation == "constant":
            return constant(node.attributes["value"].value)
        if not is_reading(node):
            return node.name or node.operation
        return view(self.of(node.inputs[0]), self.net.type_of(node.inputs[0]).shape, node)

    def number(self, numbers: Iterable[int], count: int) -> int:
        """Assigns the names %1, %2 and so on to values, from `count` on; returns the next free number. Inputs
        and views, and nodes with several values, get no number.

        numbers: the nodes that compute the values, in order.
        """
        for number in numbers:
            node = self.net.nodes[number]
            is_one = len(node.types) == 1 and node.operation != "recur"
            if (is_work(node) and is_one) or node.operation == "result":
                self.known[number] = f"%{count}"
                count += 1
        return count


def is_reading(node: Node) -> bool:
    """Tells whether a node only views or repeats a value; explanations call it by the name of that value."""
    return node.operation == "expand" or node.is_view


def is_work(node: Node) -> bool:
    """Tells whether a node computes something, so that it has a line in an explanation."""
    return not is_reading(node) and node.operation not in ("input", "constant", "index", "result")


def names_of_plan(plan: Plan) -> tuple[Names, Names]:
    """Names the values of a plan (which operation runs when) for an explanation, numbered in the order in
    which stages run.

    Returns (names of values outside the loop, names of values in the loop's body, the net of one step).
    """
    outer, inner = Names(plan.net), Names(plan.body)
    count = 1
    for phases in ((plan.once,), plan.sequence, plan.before):
        count = outer.number((n for phase in phases for n in phase), count)
    memories = plan.recurrence.recur.memories
    for inside, outside in zip(plan.body.inputs, plan.recurrence.inputs, strict=True):
        # A memory has the name of its initial value if that is an input of the call, else its name in the
        # step.
        begins = plan.net.nodes[outside].operation == "input"
        if begins or inside not in memories:
            inner.known[inside] = outer.of(outside)
    count = inner.number((n for phase in plan.loop for n in phase), count)
    for number, node in enumerate(plan.net.nodes):
        if picks(plan.net, number, plan.recur):
            position: int = node.attributes["of"]
            outer.known[number] = inner.of(plan.body.results[position])
    for phases in (plan.after, (plan.reduced,), plan.ended, (plan.total,)):
        count = outer.number((n for phase in phases for n in phase), count)
    return outer, inner


def of_inner_step(outer: Names, number: int) -> Names:
    """Returns the names of the values in one step of an inner recurrence, for an explanation: the first value
    in the recurrence that computes %3 is %3.1.

    outer: the names of the net around the recurrence. number: the node of the recurrence in that net.
    """
    node = outer.net.nodes[number]
    recur = node.recur
    names = Names(recur.body)
    for inside, outside in zip(recur.body.inputs, node.inputs, strict=True):
        if inside not in recur.memories:
            names.known[inside] = outer.of(outside)
    results = [n for n, user in enumerate(outer.net.nodes) if user.operation == "result"]
    first = next(outer.of(n) for n in results if outer.net.nodes[n].inputs[0] == number)
    known = {*names.known}
    names.number((n for n in range(len(recur.body.nodes)) if n not in known), 1)
    for own in names.known.keys() - known:
        names.known[own] = f"{first}.{names.known[own].removeprefix('%')}"
    return names
