"""Sums of products with different left sides computed as one.

    a + x @ A + y @ B   ->   a + products(x, y; A, B)

The accumulators run on from one product to the next. Apart, each product would have accumulators of its own:
fewer per tile, with more reads for each multiply-add. Gradients are full of such sums: the cotangent of a
memory comes from every gate.
"""

from stepnet.net.ir import Builder, Net, Node
from stepnet.net.types import CONST
from stepnet.plan.passes.regroup import terms
from stepnet.plan.passes.rewrite import at_every_level
from stepnet.plan.passes.when import When, known_once

ACROSS = ("matmul", "reduce", "scan")
"""Kinds of operations whose results are there only when all of their operands are, in another phase."""


def merge(net: Net) -> Net:
    """The net in which products that are added are one node, if their left sides are known at one time and
    their weights are encoded alike.
    """
    return at_every_level(net, merged)


def merged(net: Net, known: list[When]) -> Net:
    """The net with its own sums merged, those in bodies as they are."""
    users, parameters, phase = net.users(), known_once(net), phases(net)
    builder = Builder()
    place: list[int] = []
    for number, node in enumerate(net.nodes):
        products: dict[tuple[int, str], list[int]] = {}
        rest: list[int] = []
        is_sum = node.operation == "add" and node.type.is_float and node.type.extent != CONST
        for addend in terms(net, number, users) if is_sum else []:
            term = net.nodes[addend]
            own = term.operation == "matmul" and term.types == node.types and len(users[addend]) == 1
            if own and addend not in net.results and term.inputs[1] in parameters:
                weights = term.attributes.get("weights", "")
                products.setdefault((phase[term.inputs[0]], weights), []).append(addend)
            else:
                rest.append(addend)
        values = [place[addend] for addend in rest]
        for _, group in sorted(products.items()):
            values.append(added(builder, net, group, place))
        if all(len(group) == 1 for group in products.values()):
            place.append(builder.copy(node, [place[operand] for operand in node.inputs]))
            continue
        total = values[0]
        for value in values[1:]:
            total = builder.add("add", total, value, source=node.source)
        place.append(total)
    return builder.net(place[result] for result in net.results)


def added(builder: Builder, net: Net, group: list[int], place: list[int]) -> int:
    """The sum of some products."""
    if len(group) == 1:
        return place[group[0]]
    sides = [net.nodes[number].inputs for number in group]
    lefts, rights = [place[left] for left, _ in sides], [place[right] for _, right in sides]
    first = net.nodes[group[0]]
    sums = builder.add("products", *lefts, *rights, lefts=len(lefts), source=first.source, **encoding(first))
    return builder.add("result", sums, of=0)


def encoding(node: Node) -> dict[str, str]:
    """The encoding of a product's weights as an attribute; none where they have none."""
    return {name: value for name, value in node.pairs if name == "weights"}


def phases(net: Net) -> list[int]:
    """For each node how many products, reductions and scans lie one behind the other before its value."""
    count: list[int] = []
    for node in net.nodes:
        ahead = max((count[operand] for operand in node.inputs), default=0)
        count.append(ahead + (node.kind in ACROSS))
    return count
