"""Nets rebuilt node by node: the functions that passes share."""

from collections.abc import Callable

from stepnet.net.ir import Builder, Net, Node

Rule = Callable[[Builder, Net, int, list[int]], "int | None"]


def rewritten(net: Net, rule: Rule) -> Net:
    """The net with `rule` applied to every node, bodies first.

    The rule takes the new net's builder, the old net, the old number and the new operands. It returns the
    number to use instead, or None to copy the node.
    """
    builder = Builder()
    place: list[int] = []
    for number, node in enumerate(net.nodes):
        operands = [place[operand] for operand in node.inputs]
        replacement = rule(builder, net, number, operands)
        place.append(copied(builder, node, operands, rule) if replacement is None else replacement)
    return builder.net(place[result] for result in net.results)


def copied(builder: Builder, node: Node, operands: list[int], rule: Rule) -> int:
    """The same node on new operands, its body rewritten too."""
    if node.operation != "recur":
        return builder.copy(node, operands)
    return builder.copy(node, operands, body=rewritten(node.recur.body, rule))


def view_chain(net: Net | Builder, number: int) -> tuple[int, list[Node]]:
    """The first node before `number` that is no view of one value, and the views from it on in order."""
    chain: list[Node] = []
    while net.nodes[number].kind == "view" and len(net.nodes[number].inputs) == 1:
        chain.append(net.nodes[number])
        number = net.nodes[number].inputs[0]
    return number, chain[::-1]
