"""Bidirectional layers found in a net: a forward and a reverse recurrence over the same sequences, and their
merge.

    f = recur x, forward                     Pair(forward=f, backward=b, merge="concat", output=y)
    b = recur x, reverse              ->
    y = concatenate f b,  or  add f b

It pays if an engine runs both directions in one call. The net is not changed: a pair describes the nodes to
an engine that asks for it. Two recurrences are a pair if

- both run over the same sequences, in the same order, one forward and one in reverse; - both compute the same
known cell of the same size; - the output of each is its memory h, which only the merge reads, forward first;
final memories may be read elsewhere; - the merge is a concatenation of features or a sum of exactly these
two; - neither depends on the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stepnet.net.ir import Net
from stepnet.plan.groups import flat_recurrences
from stepnet.plan.passes.pieces import (
    Cells,
    Piece,
    has_statics,
    only_output,
    piece_of,
    sequences_of,
    with_results,
)

MERGES = {"concatenate": "concat", "add": "sum"}


@dataclass(frozen=True)
class Pair:
    """A bidirectional layer of a net: the numbers of its recurrences and of its output.

    merge: "concat" or "sum".
    """

    forward: int
    backward: int
    merge: str
    output: int

    def piece(self, net: Net) -> Piece:
        """The layer as a separate net."""
        return piece_of(net, [*with_results(net, self.forward, self.backward), self.output])


def pairs(net: Net, cells: Cells | None = None) -> tuple[Pair, ...]:
    """The pairs of a net, in the order of their outputs; no recurrence is in two of them.

    cells: the cells recognised in the net so far; None to start anew.
    """
    return tuple(made for _, made in candidates(net, cells or Cells(net)) if isinstance(made, Pair))


def candidates(net: Net, cells: Cells) -> Iterator[tuple[int, Pair | str]]:
    """For each node that merges two recurrences: its number, and the pair or the reason why they are none."""
    flat = flat_recurrences(net)
    for number, node in enumerate(net.nodes):
        picked = [net.nodes[operand] for operand in node.inputs]
        made = [each.inputs[0] for each in picked if each.operation == "result" and each.inputs[0] in flat]
        if len({*made}) > 1:
            yield number, pair_of(net, number, made, cells)


def pair_of(net: Net, merge: int, made: list[int], cells: Cells) -> Pair | str:
    """The pair of recurrences that a node merges, or the reason why they are none."""
    node = net.nodes[merge]
    nodes = [net.nodes[number] for number in made]
    if node.operation not in MERGES or len(node.inputs) != 2:
        return (
            f"they are merged by {node.operation} of {len(node.inputs)} values, not by concat or sum of two"
        )
    reverse = [each.recur.reverse for each in nodes]
    if reverse == [True, False] and node.operation == "add":
        made = made[::-1]
    elif reverse != [False, True]:
        return "they are not a forward recurrence followed by a reverse one"
    forward, backward = made
    return reason_against(net, merge, made, cells) or Pair(forward, backward, MERGES[node.operation], merge)


def reason_against(net: Net, merge: int, made: list[int], cells: Cells) -> str | None:
    """The reason why a forward and a reverse recurrence are not a pair; None if they are."""
    forward, backward = nodes = [net.nodes[number] for number in made]
    if sequences_of(forward) != sequences_of(backward):
        return "they run over different sequences"
    if any(has_statics(net, node) for node in nodes):
        return "their steps read statics"
    known = cells.both(*made)
    if isinstance(known, str):
        return known
    users = net.users()
    for number, cell in zip(made, known, strict=True):
        output = only_output(net, number)
        if output is None or cell.outputs[net.nodes[output].attributes["of"]] != "h":
            return "one has another output than its memory h"
        if users[output] != [merge] or output in net.results:
            return "an output is also read elsewhere"
    return "one depends on the other" if depends(net, *made) or depends(net, *made[::-1]) else None


def depends(net: Net, number: int, other: int) -> bool:
    """Whether a node is computed from another one."""
    reached = {other}
    for each in range(other + 1, number + 1):
        if reached.intersection(net.nodes[each].inputs):
            reached.add(each)
    return number in reached
