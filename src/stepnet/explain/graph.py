"""The contents of a drawing of a graph: a box for each part that runs, and the values between them.

    x i64[]  -->  [GRU, 16 units; gather; llvm]  -->  f32[16]  -->  [mean over steps; numpy]  -->  mood

A part is one pass over all steps, so all operations of a box run in that pass.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type, extent_text
from stepnet.compiler.plan.recognise import Recognised, recognise
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.targets import Engine, Order, engines_of
from stepnet.compiler.targets.assignment import choice
from stepnet.explain.value_names import is_reading

HIDDEN = ("input", "constant", "index", "result", "recur", "detach")
EACH = {ROWS: "a sequence", STEPS: "a step"}


@dataclass(frozen=True)
class Arrow:
    """A value that a box gives: its name, "" for one that only boxes read, its type, and who reads it.

    source, targets: boxes by their places.
    name: that of an output of the graph.
    """

    source: int
    targets: tuple[int, ...]
    type: Type
    name: str = ""

    @property
    def text(self) -> str:
        """The label of the value: f32[16]."""
        return f"{self.name} {self.type.element}".strip()


@dataclass(frozen=True)
class Box:
    """An input, or a part of the schedule: its title, what else it does, and the engine that runs it."""

    title: str
    lines: tuple[str, ...] = ()
    engine: str = ""

    @property
    def is_input(self) -> bool:
        """True for an input of the graph, false for a part that an engine runs."""
        return not self.engine


@dataclass(frozen=True)
class Picture:
    """Boxes in the order they run, inputs first, and the values that go from one to another."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    def __str__(self) -> str:
        names = dict[int, str]()
        width = max(len(box.title) for box in self.boxes) + 2
        lines = list[str]()
        for place, box in enumerate(self.boxes):
            own = [(number, arrow) for number, arrow in enumerate(self.arrows) if arrow.source == place]
            for number, arrow in own:
                unnamed = arrow.name or f"%{1 + sum(name.startswith('%') for name in names.values())}"
                names[number] = box.title if box.is_input else unnamed
            if box.is_input:
                lines.append(f"{box.title:<{width}}{own[0][1].type.element} at {each(own[0][1].type)}")
                continue
            reads = [names[number] for number, arrow in enumerate(self.arrows) if place in arrow.targets]
            gives = [f"{names[number]} {arrow.type.element}" for number, arrow in own]
            goes = f"{', '.join(reads)} -> {', '.join(gives)}".lstrip()
            lines.append(f"{box.title:<{width}}{goes}  ({box.engine})")
            lines += [f"    {line}" for line in box.lines]
        return "\n".join(lines)


def each(type_: Type) -> str:
    """The entry of a value's extent in words: a step, a sequence."""
    return EACH.get(type_.extent, extent_text(type_.extent))


def picture(net: Net, schedule: Schedule, outputs: Sequence[str], engine: Order) -> Picture:
    """The picture of a net and its schedule. outputs: the names of its results. engine: those asked for."""
    engines = engines_of(engine)
    shown, known = schedule.net, [node for node in net.nodes if node.operation == "recur"]
    read = {*shown.results, *(number for part in schedule.parts for number in part.reads)}
    inputs = [number for number in shown.inputs if number in read]
    boxes = [Box(shown.nodes[number].name) for number in inputs]
    boxes += [part_box(part, schedule, known, engine_of(part, engines)) for part in schedule.parts]
    gives = [(place, number) for place, number in enumerate(inputs)]
    readers = dict[int, list[int]]()
    for place, part in enumerate(schedule.parts, len(inputs)):
        gives += [(place, number) for number in part.results if number >= 0]
        for number in dict.fromkeys(part.reads):
            readers.setdefault(number, []).append(place)
    named = dict[int, str]()
    for number, name in zip(shown.results, outputs, strict=True):
        named[number] = f"{named[number]}, {name}" if number in named else name
    arrows = [
        Arrow(place, tuple(readers.get(number, ())), shown.type_of(number), named.get(number, ""))
        for place, number in gives
        if number in readers or number in named
    ]
    return Picture(tuple(boxes), tuple(arrows))


def engine_of(part: Part, engines: Sequence[Engine]) -> str:
    """The engine that runs a part, or those of the parts in each step of a loop, by name."""
    if part.kind in ("across", "total"):
        return "numpy"
    plans = [part.plan] if part.inner is None else [*part.inner.plans]
    chosen = [choice(plan, engines).engine for plan in plans if plan is not None]
    names = ["no engine" if each is None else each.name for each in chosen]
    return ", ".join(dict.fromkeys(names)) or "numpy"


def part_box(part: Part, schedule: Schedule, known: list[Node], engine: str) -> Box:
    """The box of a part. known: the recurrences of the graph as it was traced."""
    nodes = nodes_of(part, schedule.net)
    rest = list(operations(nodes))
    recurrences = [node for node in nodes if node.operation == "recur"]
    if part.kind in ("across", "total"):
        return Box(", ".join(rest) or "repeat for each sequence", engine=engine)
    if not recurrences:
        return Box(f"operations of {EACH.get(part.extent, extent_text(part.extent))}", wrapped(rest), engine)
    (node, *_) = recurrences
    alike = [other for other in known if is_within(other, node)]
    traced = max(alike, key=lambda other: len(other.recur.body.nodes), default=node)
    inside = list(operations(node.recur.body.nodes))
    if known_cell(traced):  # the name tells what it computes
        inside = without_cell(inside, Counter(operations(traced.recur.body.nodes)))
    return Box(cell_title(traced), wrapped(inside + rest), engine)


def without_cell(names: Iterable[str], own: Counter[str]) -> list[str]:
    """Names of operations without those of a cell, of which the first are its own."""
    remaining, others = own.copy(), list[str]()
    for name in names:
        if remaining[name]:
            remaining[name] -= 1
        else:
            others.append(name)
    return others


def nodes_of(part: Part, net: Net) -> list[Node]:
    """The nodes of a net that a part runs: those that its results need, up to what it reads."""
    pending, seen = [number for number in part.results if number >= 0], set[int]()
    while pending:
        number = pending.pop()
        if number not in seen and number not in part.reads and net.nodes[number].types[0].extent != CONST:
            seen.add(number)
            pending += net.nodes[number].inputs
    return [net.nodes[number] for number in sorted(seen)]


def is_within(traced: Node, node: Node) -> bool:
    """True if a traced recurrence became a scheduled one, into which passes moved more work."""
    small, large = traced.recur, node.recur
    carried, carries = ([recur.body.type_of(n) for n in recur.memories] for recur in (small, large))
    inner, outer = (Counter(operations(recur.body.nodes)) for recur in (small, large))
    return carried == carries and small.reverse == large.reverse and inner <= outer


def known_cell(node: Node) -> Recognised | None:
    """The known cell that a recurrence computes, if it is one."""
    known = recognise(node)
    return known if isinstance(known, Recognised) else None


def cell_title(node: Node) -> str:
    """The cell of a recurrence, its units, and its direction."""
    known, recur = known_cell(node), node.recur
    way = ", backwards" if recur.reverse else ""
    if known is not None:
        return f"{known.cell.upper()}, {known.hidden} units{way}"
    sizes = ", ".join(recur.body.type_of(number).element for number in recur.memories)
    return f"recurrence{f' of {sizes}' if sizes else ''}{way}"


def operations(nodes: Iterable[Node]) -> Iterator[str]:
    """The names of the operations that nodes compute."""
    for node in nodes:
        if node.operation == "reduce":
            yield f"{node.attributes['how']} over steps"
        elif node.operation == "expand" and node.type.extent != ROWS:
            yield "repeat at each step" if node.type.extent == STEPS else f"repeat at {each(node.type)}"
        elif node.operation not in HIDDEN and not is_reading(node):
            yield node.operation


def wrapped(names: Iterable[str], width: int = 30) -> tuple[str, ...]:
    """The names of operations with their counts, in short lines."""
    lines = list[str]()
    for name, count in Counter(names).items():
        text = f"{count} {name}" if count > 1 else name
        if lines and len(lines[-1]) + len(text) < width:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return tuple(lines)
