"""The terms of sums reordered by the time at which they are known.

    ((x @ W + b) + h @ R) + d   ->   ((b + d) + x @ W) + h @ R

Constants are added once, values per sequence once per sequence, and values that need no memory before the
loop, however the sum was written.
"""

from dataclasses import replace

from stepnet.compiler.net.ir import Builder, Net, Recur
from stepnet.compiler.plan.passes.rewrite import rewritten
from stepnet.compiler.plan.passes.when import when_inside


def regroup(net: Net) -> Net:
    """Reorders the terms of sums in the step of each recurrence by the time at which they are known, so that
    the partial sums known earliest are computed once, or before the loop. Returns the new net.
    """

    def rule(builder: Builder, outer: Net, number: int, operands: list[int]) -> int | None:
        """Rewrite rule: rebuilds a recurrence with the sums of its step, and of recurrences inside it,
        reordered; None for other nodes, which are copied.
        """
        node = outer.nodes[number]
        if node.operation != "recur":
            return None
        recur = replace(node.recur, body=rewritten(node.recur.body, rule))
        return builder.copy(node, operands, body=regrouped(recur))

    return rewritten(net, rule)


def regrouped(recur: Recur) -> Net:
    """Reorders the terms of each sum of floats in a recurrence's body (the net of its step) by the time at
    which they are known, earliest first; returns the new body. Sums of two terms, or of several dtypes, stay
    as they are.
    """
    body, known = recur.body, when_inside(recur)
    users = body.users()
    builder = Builder()
    copy_of: list[int] = []
    for number, node in enumerate(body.nodes):
        addends = terms(body, number, users) if node.operation == "add" and node.type.is_float else []
        if len(addends) < 3 or any(body.type_of(addend).dtype != node.type.dtype for addend in addends):
            copy_of.append(builder.copy(node, [copy_of[operand] for operand in node.inputs]))
            continue
        first, *rest = sorted(addends, key=lambda addend: known[addend])
        total = copy_of[first]
        for addend in rest:
            total = builder.add("add", total, copy_of[addend], source=node.source)
        copy_of.append(total)
    return builder.net(copy_of[result] for result in body.results)


def terms(body: Net, number: int, users: list[list[int]]) -> list[int]:
    """Lists the terms of the sum at node `number`. An operand that is a sum of the same type, and that
    nothing else reads, is replaced by its own terms. users: for each node, its readers.
    """
    node = body.nodes[number]
    addends: list[int] = []
    for operand in node.inputs:
        inner = body.nodes[operand]
        lone = len(users[operand]) == 1 and operand not in body.results
        if inner.operation == "add" and lone and inner.types == node.types:
            addends += terms(body, operand, users)
        else:
            addends.append(operand)
    return addends
