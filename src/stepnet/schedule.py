"""A net of nested recurrences as what is run, one after the other: a schedule.

    recurrence    a flat one, of the sequences at some depth: run by an engine, all rows at once
    plain         nodes without a recurrence: run by an engine as a recurrence that remembers nothing
    across        a value expanded to, or reduced from, a deeper extent: NumPy
    loop          a recurrence whose memory an inner one needs: step by step, each step a schedule of its own

Nothing here knows an engine; each part has a plan, and whatever runs plans runs it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.ir import Builder, Net, Node, without_unused
from stepnet.ops import recur_extent
from stepnet.passes.lift import is_constant, is_inner, lift
from stepnet.plan import Plan, plan
from stepnet.types import CONST, ROWS, STEPS, Extent, Type

Array = np.ndarray


def is_nested(net: Net) -> bool:
    """Whether a net has more than sequences of rows: inner ones, in values or in steps.

    >>> builder = Builder()
    >>> is_nested(builder.net([builder.input(Type(STEPS, (2,), "float32"), "x")]))
    False
    """
    types = [type_ for node in net.nodes for type_ in node.types]
    bodies = [node.attributes["body"] for node in net.nodes if node.operation == "recur"]
    return any(one.extent not in (CONST, ROWS, STEPS) for one in types) or any(map(has_inner, bodies))


def has_inner(body: Net) -> bool:
    """Whether a step has to do with sequences: inner ones of its input, or those that rows have besides."""
    types = [type_ for node in body.nodes for type_ in node.types]
    return any(one.extent not in (CONST, ROWS) for one in types) or any(map(is_inner, body.nodes))


@dataclass(frozen=True)
class Part:
    """One thing to run: which values of the net it reads and gives, by their numbers."""

    kind: str
    reads: tuple[int, ...]
    gives: tuple[int, ...]
    extent: Extent = CONST
    plan: Plan | None = None
    memories: int = 0
    statics: int = 0
    parameters: tuple[int, ...] = ()
    node: Node | None = None
    inner: "Schedule | None" = None


@dataclass(frozen=True)
class Schedule:
    """The parts of a net in the order they run."""

    net: Net
    parts: tuple[Part, ...]


def schedule(net: Net) -> Schedule:
    """What is run for a net, once inner recurrences are out of those whose memory they do not need."""
    return scheduled(lift(net))


def scheduled(net: Net) -> Schedule:
    """The parts of a net as it is."""
    levels = waves(net)
    groups: dict[tuple[int, int, Extent], list[int]] = {}
    for number, node in enumerate(net.nodes):
        if node.operation in ("input", "index", "result") or is_constant(node):
            continue
        alone = 0 if is_plain(node) else number + 1
        extent = node.types[0].extent if is_plain(node) else CONST
        groups.setdefault((levels[number], alone, extent), []).append(number)
    parts = [part_of(net, numbers) for _, numbers in sorted(groups.items())]
    return Schedule(net, tuple(parts))


def is_plain(node: Node) -> bool:
    """Whether a node works on values of one extent alone."""
    return node.operation not in ("recur", "expand", "reduce", "contract")


def waves(net: Net) -> list[int]:
    """For each node when it can run: plain nodes of one extent run together, all others by themselves."""
    found: list[int] = []
    for node in net.nodes:
        level = 0
        for operand in node.inputs:
            other = net.nodes[operand]
            if is_constant(other):
                continue
            together = is_plain(node) and is_plain(other) and node.operation != "result"
            together = together and other.operation not in ("input", "index", "result")
            same = together and node.types[0].extent == other.types[0].extent
            level = max(level, found[operand] + (0 if same or node.operation == "result" else 1))
        found.append(level)
    return found


def part_of(net: Net, numbers: list[int]) -> Part:
    """The part that these nodes are."""
    node = net.nodes[numbers[0]]
    if is_plain(node):
        return plain(net, numbers)
    if node.operation != "recur":
        return Part("across", node.inputs, tuple(numbers), node=node)
    body: Net = node.attributes["body"]
    if has_inner(body):
        return loop(net, numbers[0])
    return recurrence(net, numbers[0])


# ---- the nets of parts -------------------------------------------------------------------------------------


class Inside:
    """A net made of nodes of another one, with constants as they are needed."""

    def __init__(self, net: Net) -> None:
        self.net, self.builder = net, Builder()
        self.place: dict[int, int] = {}
        self.parameters: list[int] = []

    def input(self, number: int, type_: Type) -> int:
        """A value that is handed in."""
        self.place[number] = self.builder.input(type_, self.net.nodes[number].name or f"value{number}")
        return self.place[number]

    def of(self, number: int) -> int:
        """A node here: known, or a constant, which is made of what it is made of there."""
        if number not in self.place:
            node = self.net.nodes[number]
            if node.operation == "input":
                self.parameters.append(number)
                return self.input(number, node.type)
            self.place[number] = self.builder.copy(node, [self.of(one) for one in node.inputs])
        return self.place[number]


def plain(net: Net, numbers: list[int]) -> Part:
    """Nodes without a recurrence, as the step of one that remembers nothing and takes one step per value."""
    chosen = set(numbers)
    reads = sorted(
        {
            operand
            for number in numbers
            for operand in net.nodes[number].inputs
            if operand not in chosen and not is_constant(net.nodes[operand])
        }
    )
    used = {operand for n, node in enumerate(net.nodes) if n not in chosen for operand in node.inputs}
    gives = [number for number in numbers if number in used or number in net.results]
    body = Inside(net)
    for number in reads:
        body.input(number, net.type_of(number).at(ROWS))
    idle = body.builder.input(Type(ROWS, (), "float32"), "nothing")
    for number in numbers:
        node = net.nodes[number]
        body.place[number] = body.builder.copy(node, [body.of(one) for one in node.inputs])
    inner = body.builder.net([*(body.place[number] for number in gives), idle])
    outer = Builder()
    operands = [outer.input(net.type_of(number).at(STEPS), f"value{number}") for number in reads]
    operands.append(outer.input(Type(ROWS, (), "float32"), "nothing"))
    operands += [outer.input(net.type_of(number), f"value{number}") for number in body.parameters]
    made = whole(outer, operands, inner, len(reads), 1, reverse=False)
    extent = net.nodes[numbers[0]].types[0].extent
    return Part("plain", tuple(reads), tuple(gives), extent, plan(made), 1, parameters=tuple(body.parameters))


def whole(
    builder: Builder, operands: list[int], body: Net, sequences: int, memories: int, **told: Any
) -> Net:
    """The net of one recurrence, all of whose results it gives."""
    recur = builder.add("recur", *operands, body=body, sequences=sequences, memories=memories, **told)
    count = len(builder.nodes[recur].types)
    return builder.net([builder.add("result", recur, of=place) for place in range(count)])


def recurrence(net: Net, number: int) -> Part:
    """A recurrence over flat sequences, wherever they lie, with those outputs that somebody picks."""
    node = net.nodes[number]
    sequences, memories = node.attributes["sequences"], node.attributes["memories"]
    gives = gives_of(net, number)
    first = len(gives) - memories
    body = with_outputs(
        node.attributes["body"], [place for place in range(first) if gives[place] >= 0], first
    )
    gives = (*(one for one in gives[:first] if one >= 0), *gives[first:])
    extent = recur_extent([net.type_of(node.inputs[0])], node.attributes)
    outer = Inside(net)
    operands: list[int] = []
    reads: list[int] = []
    for place, operand in enumerate(node.inputs):
        type_ = body.type_of(body.inputs[place])
        if type_.extent == CONST:
            operands.append(outer.of(operand))
            continue
        reads.append(operand)
        here = STEPS if place < sequences else ROWS
        operands.append(outer.builder.input(type_.at(here), f"value{operand}"))
    told = {name: value for name, value in node.pairs if name in ("reverse", "unroll")}
    made = whole(outer.builder, operands, body, sequences, memories, **told)
    return Part(
        "recurrence",
        tuple(reads),
        gives,
        extent,
        plan(made),
        memories,
        len(reads) - sequences - memories,
        tuple(outer.parameters),
        node,
    )


def with_outputs(body: Net, places: list[int], count: int) -> Net:
    """A body that gives these of its `count` outputs alone, and its memories."""
    outputs = (body.results[place] for place in places)
    return without_unused(body.nodes, (*outputs, *body.results[count:]))


def gives_of(net: Net, number: int) -> tuple[int, ...]:
    """The nodes that pick a recurrence's results, in the results' order; -1 for one that nobody picks."""
    found = [-1] * len(net.nodes[number].types)
    for one, node in enumerate(net.nodes):
        if node.operation == "result" and node.inputs[0] == number:
            found[node.attributes["of"]] = one
    return tuple(found)


def loop(net: Net, number: int) -> Part:
    """A recurrence that runs step by step, as an inner one needs its memory."""
    node = net.nodes[number]
    extent = recur_extent([net.type_of(node.inputs[0])], node.attributes)
    body: Net = node.attributes["body"]
    return Part("loop", node.inputs, gives_of(net, number), extent, node=node, inner=scheduled(body))
