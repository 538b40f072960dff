"""What a forward recurrence saves of each step for its adjoint.

    z = sigmoid(x @ W + h @ R); n = tanh(...); h' = (1 - z) * n + z * h     ->     h, z, n and the products

All that costs more to compute than to read. What lies between, sums and products of numbers, is computed
again from these, with the same bits; and of what is saved a pass takes away what nobody reads.
"""

from stepnet.net.ir import Node, Recur
from stepnet.net.types import ROWS

DEAR = 10
"""How many operations a function takes at least for each number to be worth an array of its values."""


def saved_values(recur: Recur) -> list[int]:
    """The nodes of a body whose values at every step are given to the adjoint; all else is computed again.

    The memory ahead of a step is always among them, and so is the count of steps, which would run from the
    wrong end.
    """
    body = recur.body
    memories = [number for number in recur.memories if body.type_of(number).extent == ROWS]
    return [*memories, *(number for number, node in enumerate(body.nodes) if is_dear(node))]


def is_dear(node: Node) -> bool:
    """Whether a value of each row is saved: the count of steps, products, reductions and dear functions."""
    if len(node.types) != 1 or node.type.extent != ROWS:
        return False
    return node.operation == "index" or node.kind in ("matmul", "reduce", "scan") or node.row.flops >= DEAR
