"""What a forward recurrence saves of each step for its adjoint.

    z = sigmoid(x @ W + h @ R); n = tanh(...); h' = (1 - z) * n + z * h     ->     h, z, n and the products

All that costs more to compute than to read. What lies between, sums and products of numbers, is computed
again from these. Sums may be added in another order then, so no adjoint compares such a number with one that
was saved. Of what is saved a pass takes away what nobody reads.
"""

from stepnet.net.cut import is_expensive
from stepnet.net.ir import Node, Recur
from stepnet.net.types import ROWS


def saved_values(recur: Recur) -> list[int]:
    """The nodes of a body whose values at every step are given to the adjoint; all else is computed again.

    The memory ahead of a step is always among them, and so is the count of steps, which would run from the
    wrong end.
    """
    body = recur.body
    memories = [number for number in recur.memories if body.type_of(number).extent == ROWS]
    return [*memories, *(number for number, node in enumerate(body.nodes) if is_saved(node))]


def is_saved(node: Node) -> bool:
    """Whether a node's value is not computed again: the count of steps, and dear values of each row."""
    flat = len(node.types) == 1 and node.type.extent == ROWS and node.kind not in ("gather", "extent")
    return flat and (node.operation == "index" or is_expensive(node))
