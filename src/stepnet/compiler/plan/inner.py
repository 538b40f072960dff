"""Nodes with values of inner sequences, which belong to one step of a sequence; recurrences without such."""

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.type_rules import recur_extent
from stepnet.compiler.net.types import CONST, ROWS, STEPS


def is_inner(node: Node) -> bool:
    """Tells whether a node has or reads values of sequences inside a step, or is a recurrence over them."""
    if node.operation in ("input", "result"):
        return False
    deep = any(len(type_.extent) > 1 for type_ in node.types)
    return deep or node.operation in ("recur", "reduce")


def has_inner(body: Net) -> bool:
    """Tells whether a step has values of inner sequences or of static sequences, or loops over them.

    An inner sequence belongs to one step of a sequence. A static sequence belongs to a row (sequence of the
    batch), and each of its steps reads it whole, such as the keys of attention.

    body: the net of the step.
    """
    types = [type_ for node in body.nodes for type_ in node.types]
    return any(type_.extent not in (CONST, ROWS) for type_ in types) or any(map(is_inner, body.nodes))


def flat_recurrences(net: Net) -> set[int]:
    """Finds the recurrences over the steps of the net's sequences whose step reads no other sequences: no
    inner sequences and no static ones (which a row has once). Returns the numbers of their nodes.
    """
    return {
        number
        for number, node in enumerate(net.nodes)
        if node.operation == "recur"
        and not has_inner(node.recur.body)
        and recur_extent([net.type_of(node.inputs[0])], node.attributes) == STEPS
    }
