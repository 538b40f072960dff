"""Pieces: some recurrences of a net and the nodes between them as a net of their own.

The inputs of a piece are the values outside that it reads; its results are its values that are read outside.
So the results of an engine that runs the piece in one call can be compared with those of the net.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepnet.net.ir import Builder, Net, Node
from stepnet.net.types import CONST
from stepnet.plan.groups import results_of
from stepnet.plan.recognise import Recognised, Refused, recognise


@dataclass(frozen=True)
class Piece:
    """Some nodes of a net as a net of their own.

    reads, results: the inputs and results of the piece, by their numbers in the outer net.
    """

    net: Net
    reads: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Cells:
    """The recognised cells of a net's recurrences. Each recurrence is analysed once, at first use."""

    net: Net
    known: dict[int, Recognised | Refused] = field(default_factory=dict[int, Recognised | Refused])

    def of(self, number: int) -> Recognised | Refused:
        """The cell of a recurrence, or the reason why it is not a known cell."""
        if number not in self.known:
            self.known[number] = recognise(self.net.nodes[number])
        return self.known[number]

    def both(self, one: int, other: int) -> tuple[Recognised, Recognised] | str:
        """The cells of two recurrences, or the reason why they differ in more than their weights."""
        cells = self.of(one), self.of(other)
        for cell in cells:
            if isinstance(cell, Refused):
                return f"one is not a known cell: {cell.reason}"
        first, second = (cell for cell in cells if isinstance(cell, Recognised))
        return difference(first, second) or (first, second)


def piece_of(net: Net, numbers: Iterable[int]) -> Piece:
    """These nodes of a net as a piece, with the constants that they read."""
    inside, builder, place = sorted(numbers), Builder(is_model=True), dict[int, int]()
    operands = {operand for number in inside for operand in net.nodes[number].inputs}
    reads = [n for n in sorted(operands.difference(inside)) if net.nodes[n].operation != "constant"]
    for number in reads:
        place[number] = builder.input(net.type_of(number), net.nodes[number].name or f"value{number}")
    for number in inside:
        for operand in net.nodes[number].inputs:
            if operand not in place:
                place[operand] = builder.copy(net.nodes[operand], ())
        place[number] = builder.copy(net.nodes[number], [place[n] for n in net.nodes[number].inputs])
    users, members = net.users(), set(inside)
    results = [
        number
        for number in inside
        if net.nodes[number].operation != "recur"
        and (number in net.results or not members.issuperset(users[number]))
    ]
    return Piece(builder.net([place[number] for number in results]), tuple(reads), tuple(results))


def with_results(net: Net, *recurrences: int) -> list[int]:
    """The numbers of recurrences and of the nodes that read their results."""
    return [n for number in recurrences for n in (number, *results_of(net, number)) if n >= 0]


def only_output(net: Net, number: int) -> int | None:
    """The only output of a recurrence that is read; None if none or several are."""
    outputs = net.nodes[number].recur.results_by_kind(results_of(net, number)).outputs
    read = [output for output in outputs if output >= 0]
    return read[0] if len(read) == 1 else None


def difference(one: Recognised, other: Recognised) -> str | None:
    """How two known cells differ; None if they differ only in their weights."""
    if one.semantics != other.semantics:
        return f"they are different cells: {one.semantics.cell} and {other.semantics.cell}, or settings of it"
    if one.hidden != other.hidden:
        return f"they have {one.hidden} and {other.hidden} units"
    if one.names != other.names:
        return f"they have different arrays: {', '.join(one.names)} and {', '.join(other.names)}"
    return None


def sequences_of(node: Node) -> list[int]:
    """The sequences that a recurrence runs over."""
    return node.recur.operands_by_kind(node.inputs).sequences


def has_statics(net: Net, node: Node) -> bool:
    """Whether the step of a recurrence reads statics."""
    return any(net.type_of(n).extent != CONST for n in node.recur.operands_by_kind(node.inputs).others)
