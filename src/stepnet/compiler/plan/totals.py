"""Totals that the part of a recurrence computes, because they are totals of its results.

    part 0   da = recur(...)               part 0   da = recur(...)
    part 1   s  = reduce da                         db = reduce reduce da
    part 2   db = reduce s          ->              dW = contract x da
    part 3   dW = contract x da

An engine sums the values of one part in machine code. Otherwise NumPy sums between parts. Such parts cannot
be prepared for later calls, nor read the caller's sequences in place.
"""

from collections.abc import Collection

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS


def totals_by_recurrence(
    net: Net, once: Collection[int], recurrences: Collection[int]
) -> dict[int, tuple[int, ...]]:
    """Finds the sums, and sums of outer products ("contract"), of a recurrence's results that an engine can
    compute along with it, so that NumPy need not. Returns their nodes, in order, for each recurrence that has
    some.

    Their other operands are known before the recurrence. Sums per row are only found if one of the sums over
    all rows reads them, or if there is a contract per row beside them, as in gradients of each sequence.

    once: the constants that are known when parameters are bound.
    recurrences: the recurrences to look at: without sequences inside a step, and with all outputs needed.
    """
    owner: dict[int, int] = {}
    for number, node in enumerate(net.nodes):
        if node.operation == "result" and node.inputs[0] in recurrences:
            owner[number] = node.inputs[0]
        elif node.operation in ("reduce", "contract") and node.type.extent in (ROWS, CONST):
            latest = max((owner.get(operand, -1) for operand in node.inputs), default=-1)
            if latest >= 0 and all(
                owner.get(operand) == latest or is_there(net, operand, latest, once)
                for operand in node.inputs
            ):
                owner[number] = latest
    totals: dict[int, tuple[int, ...]] = {}
    for recurrence in recurrences:
        own = [n for n in owner if owner[n] == recurrence and net.nodes[n].operation != "result"]
        needed, nodes = set[int](), [net.nodes[number] for number in own]
        each = any(node.operation == "contract" and node.type.extent == ROWS for node in nodes)
        for number in reversed(own):
            if each or net.type_of(number).extent == CONST or number in needed:
                needed |= {number, *net.nodes[number].inputs}
        if needed:
            totals[recurrence] = tuple(number for number in own if number in needed)
    return totals


def is_there(net: Net, number: int, recurrence: int, once: Collection[int]) -> bool:
    """Tells whether the value of node `number` is certainly known before the node `recurrence` runs, so that
    sums of the recurrence's results may read it.

    once: the constants that are known when parameters are bound.
    """
    return number in once or (number < recurrence and net.type_of(number).extent == STEPS)
