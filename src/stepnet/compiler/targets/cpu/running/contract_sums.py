"""Sums over all rows that a contract computes on the way, as the gradient of a bias beside that of a weight.

    s  = reduce d        per sequence                       dW = contract d x, which packs the rows of d
    db = reduce s        over all sequences      ->         db   the sum of the rows as they are packed
    dW = contract d x

A task of its own would read all cotangents of the gates once more, from memory.
"""

from collections.abc import Collection

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, STEPS
from stepnet.compiler.values.records import dataclass

SIDES = ("left", "right")


@dataclass(frozen=True)
class ContractSum:
    """Sum over all rows of an operand of a contract (a sum of outer products), which the contract computes.

    number: the node of the sum. between: that of the sums of each sequence, which nothing else reads.
    side: "left" or "right", the operand of the contract.
    """

    number: int
    between: int
    side: str


def contract_sums(net: Net, tasks: Collection[int]) -> dict[int, ContractSum]:
    """Finds the sums over all rows that contracts (sums of outer products) can compute along the way; returns
    them by contract, at most one for each.

    net: the net. tasks: the nodes that machine code computes after the loop.
    """
    users, packs, sums = net.users(), dict[tuple[int, str], int](), dict[int, ContractSum]()
    for number in sorted(tasks):
        node = net.nodes[number]
        if node.operation == "contract" and node.type.extent == CONST:
            for side, operand in zip(SIDES, node.inputs, strict=True):
                packs.setdefault((operand, side), number)
    for number in sorted(tasks):
        between = net.nodes[number].inputs[0]
        rows = net.nodes[between]
        is_total = is_sum(net.nodes[number]) and net.type_of(number).extent == CONST
        if not is_total or not is_sum(rows) or between in net.results or users[between] != [number]:
            continue
        type_ = net.type_of(rows.inputs[0])
        if type_.extent != STEPS or len(type_.shape) != 1 or type_.size == 1:
            continue  # NumPy adds the numbers of a single column in another order.
        for side in SIDES:
            contract = packs.get((rows.inputs[0], side))
            if contract is not None and contract not in sums:
                sums[contract] = ContractSum(number, between, side)
                break
    return sums


def is_sum(node: Node) -> bool:
    """Tells whether a node is a sum over steps or rows."""
    return node.operation == "reduce" and node.attributes["how"] == "sum"
