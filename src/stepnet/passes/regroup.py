"""Sums put in the order in which their terms are known.

    (x @ W + h @ R) + b   ->   (x @ W + b) + h @ R

What does not depend on a memory is added up first, and can then leave the loop as one value, however it was written.
"""

from stepnet.ir import Builder, Net, Node
from stepnet.passes.rewrite import rewritten


def regroup(net: Net) -> Net:
    """The net with the sums in each body regrouped."""
    def rule(builder: Builder, outer: Net, number: int, operands: list[int]) -> int | None:
        node = outer.nodes[number]
        if node.operation != "recur":
            return None
        body = regrouped(node.attributes["body"], node.attributes["sequences"], node.attributes["memories"])
        return builder.add("recur", *operands, **{**node.attributes, "body": body})

    return rewritten(net, rule)


def regrouped(body: Net, sequences: int, memories: int) -> Net:
    """A body with every sum's terms that need no memory added first."""
    late = depends_on(body, set(body.inputs[sequences : sequences + memories]))
    users = body.users()
    builder = Builder()
    place: list[int] = []
    for number, node in enumerate(body.nodes):
        operands = [place[operand] for operand in node.inputs]
        if node.operation != "add" or not late[number] or not node.type.is_float:
            place.append(builder.copy(node, operands))
            continue
        found = terms(body, number, users)
        early = [place[one] for one in found if not late[one]]
        total = None
        for one in early + [place[one] for one in found if late[one]]:
            total = one if total is None else builder.add("add", total, one, source=node.source)
        assert total is not None
        place.append(total if len(early) > 1 else builder.copy(node, operands))
    return builder.net(place[result] for result in body.results)


def terms(body: Net, number: int, users: list[list[int]]) -> list[int]:
    """The terms of a sum, through sums that are read nowhere else and change neither shape nor dtype."""
    node = body.nodes[number]
    found: list[int] = []
    for operand in node.inputs:
        inner: Node = body.nodes[operand]
        lone = len(users[operand]) == 1 and operand not in body.results
        if inner.operation == "add" and lone and inner.types == node.types:
            found += terms(body, operand, users)
        else:
            found.append(operand)
    return found


def depends_on(net: Net, sources: set[int]) -> list[bool]:
    """For each node, whether it needs one of the sources (or the step's index)."""
    late: list[bool] = []
    for number, node in enumerate(net.nodes):
        late.append(number in sources or any(late[operand] for operand in node.inputs))
    return late
