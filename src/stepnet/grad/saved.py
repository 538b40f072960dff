"""What a forward recurrence saves of each step for its adjoint."""

from stepnet.net.ir import Recur
from stepnet.net.types import ROWS


def saved_values(recur: Recur) -> list[int]:
    """The nodes of a body whose values at every step are given to the adjoint; all else is computed again.

    The memory ahead of a step is always among them, and so is the count of steps, which would run from the
    wrong end.
    """
    body = recur.body
    counted = [number for number, node in enumerate(body.nodes) if node.operation == "index"]
    memories = [number for number in recur.memories if body.type_of(number).extent == ROWS]
    return [*memories, *counted]
