"""The values that a forward recurrence saves at each step for its adjoint.

    z = sigmoid(x @ W + h @ R); n = tanh(...); h' = (1 - z) * n + z * h     ->     h, z, n and the products

It saves every value that costs more to compute than to read. Cheap values between them are recomputed. Sums
may then be added in another order, so no adjoint compares a recomputed value with a saved one. The pass
`prune` removes saved values that are not read.
"""

from stepnet.compiler.net.cut import is_expensive
from stepnet.compiler.net.ir import Node, Recur
from stepnet.compiler.net.types import ROWS


def saved_values(recur: Recur) -> list[int]:
    """Lists the nodes of a recurrence's body (the net of its step) whose values are saved at every step for
    its adjoint, in place of computing them again: by node number, the memories first.

    The memory before a step is always saved, and so is the step index, which the adjoint, as it runs from the
    last step, would count from the wrong end.
    """
    body = recur.body
    memories = [number for number in recur.memories if body.type_of(number).extent == ROWS]
    return [*memories, *(number for number, node in enumerate(body.nodes) if is_saved(node))]


def is_saved(node: Node) -> bool:
    """Tells whether a node's value is saved for the backward pass: the step index, or costly values."""
    flat = len(node.types) == 1 and node.type.extent == ROWS and node.kind not in ("gather", "extent")
    return flat and (node.operation == "index" or is_expensive(node))
