"""Rows of a value that another value selects, as chains of conditions write them in a net.

where(i == 2, x[2:3], where(i == 1, x[1:2], x[0:1]))    ->  row i of x, where i is 1 or 2, and else row 0

A net has no operation that takes the rows of a value at indices. An element of such a chain reads one
element, at an address that is computed, and not one of each row.
"""

from collections.abc import Mapping
from dataclasses import replace

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class RowChoice:
    """A value of which each element is one of a row of another value.

    value, index: the nodes of the rows, and of their numbers. last: the highest row; the row is 0 where the
    number is not one from 1 to this one.
    """

    value: int
    index: int
    last: int

    @property
    def before(self) -> "RowChoice":
        """The selection of one row less."""
        return replace(self, last=self.last - 1)


def selections_of(net: Net) -> Mapping[int, RowChoice]:
    """Returns the selections of a net, by the node of their result."""
    found = dict[int, RowChoice]()
    for number, node in enumerate(net.nodes):
        link = link_of(net, node) if node.operation == "where" else None
        if link is None:
            continue
        other, is_first = node.inputs[2], link.last == 1
        if row_of(net, other) == (link.value, 0) if is_first else found.get(other) == link.before:
            found[number] = link
    return found


def link_of(net: Net, node: Node) -> RowChoice | None:
    """Returns the value, the index and the row that a condition chooses; None for other conditions."""
    condition, chosen = net.nodes[node.inputs[0]], row_of(net, node.inputs[1])
    if condition.operation != "equal" or chosen is None:
        return None
    index, wanted = condition.inputs
    known, type_ = net.nodes[wanted], net.type_of(index)
    if known.operation != "constant" or type_.dtype != "int64":
        return None
    if known.attributes["value"].value.tolist() != chosen[1]:
        return None
    rows = net.type_of(chosen[0]).shape
    if len(type_.shape) != len(rows) or node.type.shape != (*type_.shape[:1], *rows[1:]):
        return None
    return RowChoice(chosen[0], index, chosen[1])


def row_of(net: Net, number: int) -> tuple[int, int] | None:
    """Returns the value and the row that a node is a slice of; None if it is no row."""
    node = net.nodes[number]
    if node.operation != "slice":
        return None
    shape, (first, *others) = net.type_of(node.inputs[0]).shape, node.attributes["slices"]
    is_whole = len(others) == len(shape) - 1 and all(
        cut == (0, size, 1) for cut, size in zip(others, shape[1:], strict=True)
    )
    return (node.inputs[0], first[0]) if is_whole and first[1:] == (first[0] + 1, 1) else None
