"""A net as text: a line for each node, and below a recurrence the lines of its body.

`ir.py` imports this file, so that `str` gives the text; nets and nodes therefore have no types here.
"""

from collections.abc import Iterable
from typing import Any

from stepnet.compiler.net.types import Type

INFIX = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "remainder": "%",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "left_shift": "<<",
}
"""Operations that Python and C write with the same operator between their operands."""


def value_names(net: Any) -> list[str]:
    """Returns the name of each node in the text of a net: an input's own name, unless an earlier input has
    it, or a number such as %3.
    """
    names: list[str] = []
    for number, node in enumerate(net.nodes):
        named = node.operation == "input" and node.name and node.name not in names
        names.append(node.name if named else f"%{number}")
    return names


def net_lines(net: Any, title: str = "net", indent: str = "") -> list[str]:
    """Formats a net (a graph of operations) as lines of text, one per node. indent: the spaces ahead of each
    line. title: "net", or "body" for the net of a recurrence's step.
    """
    names, results = value_names(net), tuple[int, ...](net.results)
    inputs = [f"{names[number]}: {net.nodes[number].type}" for number in net.inputs]
    lines = [f"{indent}{title}("]
    lines += [f"{indent}    {line}," for line in inputs]
    lines += [f"{indent}):"]
    for number, node in enumerate(net.nodes):
        if node.operation != "input":
            lines += node_lines(node, names, number, indent + "  ")
    return [*lines, f"{indent}  return {', '.join(names[result] for result in results)}"]


def node_lines(node: Any, names: list[str], number: int, indent: str) -> list[str]:
    """Writes a node as a line of text: its name, operation, operands, attributes (without types and bodies)
    and result types. For a recurrence, the lines of its body, the net of a step, follow.

    names: the name of each node of the net. number: the number of the node. indent: the spaces ahead of a
    line.
    """
    inputs: Iterable[int] = node.inputs
    pairs: Iterable[tuple[str, Any]] = node.pairs
    operands = " ".join(names[operand] for operand in inputs)
    attributes = " ".join(
        f"{key}={attribute_text(value)}"
        for key, value in pairs
        if key != "body" and not isinstance(value, Type)
    )
    types = ", ".join(map(str, node.types))
    head = " ".join(
        text for text in (f"{indent}{names[number]} = {node.operation}", operands, attributes) if text
    )
    lines = [f"{head} : {types}"]
    body = node.attributes.get("body")
    return lines if body is None else [*lines, *net_lines(body, "body", indent + "  ")]


def attribute_text(value: Any) -> str:
    """Writes an attribute's value as text without spaces, as spaces separate the attributes of a node."""
    return str(value).replace(" ", "")
