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
    """Lists the nodes of a body whose values at every step are saved for its adjoint, not computed again.

    The memory before a step is always saved, and so is the step index, which would count from the wrong end.
    """
    body = recur.body
    memories = [number for number in recur.memories if body.type_of(number).extent == ROWS]
    return [*memories, *(number for number, node in enumerate(body.nodes) if is_saved(node))]


def is_saved(node: Node) -> bool:
    """Tells whether a node's value is saved for the backward pass: the step index, or costly values."""
    flat = len(node.types) == 1 and node.type.extent == ROWS and node.kind not in ("gather", "extent")
    return flat and (node.operation == "index" or is_expensive(node))
