"""Parallel products joined.

    x @ Wz, x @ Wr, x @ Wn   ->   products(x; Wz, Wr, Wn)

Products of one left side and one width are computed together: the left side is read once for all of them, and
the gates of one unit meet on registers.
"""

from stepnet.ir import Builder, Net
from stepnet.types import CONST


def join(net: Net) -> Net:
    """The net with products of one left side and one width as one node each."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, node in enumerate(net.nodes):
        if node.operation == "matmul" and node.type.extent != CONST:
            groups.setdefault((node.inputs[0], node.type.shape[-1]), []).append(number)
    builder = Builder()
    place: dict[int, int] = {}
    order = sorted(range(len(net.nodes)), key=lambda number: not known_first(net, number))
    for number in order:
        if number in place:
            continue
        node = net.nodes[number]
        group = (
            groups.get((node.inputs[0], node.type.shape[-1]))
            if node.operation == "matmul" and node.type.extent != CONST
            else None
        )
        if group is not None and len(group) > 1:
            rights = [place[net.nodes[one].inputs[1]] for one in group]
            joint = builder.add("products", place[node.inputs[0]], *rights, source=node.source)
            place |= {one: builder.add("result", joint, of=port) for port, one in enumerate(group)}
            continue
        told = dict(node.attributes)
        if "body" in told:
            told["body"] = join(told["body"])
        operands = [place[operand] for operand in node.inputs]
        place[number] = builder.add(node.operation, *operands, name=node.name, source=node.source, **told)
    return builder.net(place[result] for result in net.results)


def known_first(net: Net, number: int) -> bool:
    """Whether a node is an input or known before any sequence: first, so that every right side is there."""
    node = net.nodes[number]
    return node.operation == "input" or all(type_.extent == CONST for type_ in node.types)
