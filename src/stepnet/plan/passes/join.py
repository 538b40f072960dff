"""Parallel products joined.

    x @ Wz, x @ Wr, x @ Wn   ->   products(x; Wz, Wr, Wn)

Products of one left side and one width are computed together: the left side is read once for all of them, and
the gates of one unit meet on registers.
"""

from stepnet.net.ir import Builder, Net, Node
from stepnet.net.types import CONST
from stepnet.plan.passes.when import known_once


def join(net: Net) -> Net:
    """The net in which products with the same left side and width are one node."""
    groups: dict[tuple[int, int], list[int]] = {}
    parameters = known_once(net)
    for number, node in enumerate(net.nodes):
        if (key := shared(node, parameters)) is not None:
            groups.setdefault(key, []).append(number)
    builder = Builder()
    place: dict[int, int] = {}
    # Inputs and parameters come first, so that every right side is there.
    first = parameters | set(net.inputs)
    order = sorted(range(len(net.nodes)), key=lambda number: number not in first)
    for number in order:
        if number in place:
            continue
        node = net.nodes[number]
        key = shared(node, parameters)
        group = [] if key is None else groups[key]
        if len(group) > 1:
            rights = [place[net.nodes[number].inputs[1]] for number in group]
            joint = builder.add("products", place[node.inputs[0]], *rights, source=node.source)
            place |= {number: builder.add("result", joint, of=port) for port, number in enumerate(group)}
            continue
        changed = {"body": join(node.attributes["body"])} if "body" in node.attributes else {}
        place[number] = builder.copy(node, [place[operand] for operand in node.inputs], **changed)
    return builder.net(place[result] for result in net.results)


def shared(node: Node, parameters: set[int]) -> tuple[int, int] | None:
    """The left side and width by which products are joined; None for a node that is no such product.

    A right side that is only known late is no parameter, and its product is not joined.
    """
    if node.operation != "matmul" or node.type.extent == CONST or node.inputs[1] not in parameters:
        return None
    return node.inputs[0], node.type.shape[-1]
