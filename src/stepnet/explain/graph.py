"""Collects the contents of a drawing of a graph: a box for each part that runs, and the values between them.

    x i64[]  -->  [GRU, 16 units; gather; llvm]  -->  f32[16]  -->  [mean over steps; numpy]  -->  mood

A part is one pass over all steps, so all operations of a box run in that pass.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Type, extent_text
from stepnet.compiler.plan.recognise import Recognised, recognise
from stepnet.compiler.plan.schedule import Part, Schedule
from stepnet.compiler.targets import Engine, Order, engines_of
from stepnet.compiler.targets.assignment import choice
from stepnet.compiler.values.records import dataclass
from stepnet.explain.value_names import is_reading

HIDDEN = ("input", "constant", "index", "result", "recur", "detach")
EACH = {ROWS: "a sequence", STEPS: "a step"}


@dataclass(frozen=True)
class Arrow:
    """Value in a drawing of a graph, which goes from one box to others.

    source, targets: boxes by their indices. type: the type of the value. name: its name if it is an output of
    the graph, else "".
    """

    source: int
    targets: tuple[int, ...]
    type: Type
    name: str = ""

    @property
    def text(self) -> str:
        """Label of the arrow's value: its type, such as `f32[16]`, after its name if it has one."""
        return f"{self.name} {self.type.element}".strip()


@dataclass(frozen=True)
class Box:
    """Box in a drawing of a graph: an input, or a part of the schedule.

    title: the name of the input, or what the part computes.
    lines: further operations of the part.
    engine: the engines that run the part; "" for an input.
    """

    title: str
    lines: tuple[str, ...] = ()
    engine: str = ""

    @property
    def is_input(self) -> bool:
        """True if this box of a drawing is an input of the graph, and not a part that an engine runs."""
        return not self.engine


@dataclass(frozen=True)
class Picture:
    """Content of a drawing of a graph: boxes in the order they run, inputs first, and values between them."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    def __str__(self) -> str:
        """Formats the picture as text, with a line for each input and each part, and the values that it reads
        and gives. Values without a name are %1, %2 and so on.
        """
        names = dict[int, str]()
        width = max(len(box.title) for box in self.boxes) + 2
        lines = list[str]()
        for index, box in enumerate(self.boxes):
            own = [(number, arrow) for number, arrow in enumerate(self.arrows) if arrow.source == index]
            for number, arrow in own:
                unnamed = arrow.name or f"%{1 + sum(name.startswith('%') for name in names.values())}"
                names[number] = box.title if box.is_input else unnamed
            if box.is_input:
                lines.append(
                    f"{box.title:<{width}}{own[0][1].type.element} at {extent_words(own[0][1].type)}"
                )
                continue
            reads = [names[number] for number, arrow in enumerate(self.arrows) if index in arrow.targets]
            gives = [f"{names[number]} {arrow.type.element}" for number, arrow in own]
            goes = f"{', '.join(reads)} -> {', '.join(gives)}".lstrip()
            lines.append(f"{box.title:<{width}}{goes}  ({box.engine})")
            lines += [f"    {line}" for line in box.lines]
        return "\n".join(lines)


def extent_words(type_: Type) -> str:
    """Returns words for the extent of a type, such as "a step" or "a sequence"."""
    return EACH.get(type_.extent, extent_text(type_.extent))


def picture(net: Net, schedule: Schedule, outputs: Sequence[str], engine: Order) -> Picture:
    """Makes the content of a drawing of a graph: a box for each input and for each part of its schedule
    (nodes that run together).

    net: the graph as it was traced. outputs: the names of its results. engine: the engines that the user asks
    for.
    """
    engines = engines_of(engine)
    shown, known = schedule.net, [node for node in net.nodes if node.operation == "recur"]
    read = {*shown.results, *(number for part in schedule.parts for number in part.reads)}
    inputs = [number for number in shown.inputs if number in read]
    boxes = [Box(shown.nodes[number].name) for number in inputs]
    boxes += [part_box(part, schedule, known, engine_of(part, engines)) for part in schedule.parts]
    gives = [(port, number) for port, number in enumerate(inputs)]
    readers = dict[int, list[int]]()
    for port, part in enumerate(schedule.parts, len(inputs)):
        gives += [(port, number) for number in part.results if number >= 0]
        for number in dict.fromkeys(part.reads):
            readers.setdefault(number, []).append(port)
    named = dict[int, str]()
    for number, name in zip(shown.results, outputs, strict=True):
        named[number] = f"{named[number]}, {name}" if number in named else name
    arrows = [
        Arrow(port, tuple(readers.get(number, ())), shown.type_of(number), named.get(number, ""))
        for port, number in gives
        if number in readers or number in named
    ]
    return Picture(tuple(boxes), tuple(arrows))


def engine_of(part: Part, engines: Sequence[Engine]) -> str:
    """Returns the name of the engine that runs a part of a schedule (a net cut into parts), or the names of
    all engines that run the parts in each step of a loop: "numpy" for parts that no engine compiles
    (repetitions of values, reductions, sums over the batch, and loops of only these), and "no engine" for a
    part that all engines refuse.

    engines: the engines to choose from, in order of preference.
    """
    if part.kind in ("across", "total"):
        return "numpy"
    plans = [part.plan] if part.inner is None else [*part.inner.plans]
    chosen = [choice(plan, engines).engine for plan in plans if plan is not None]
    names = ["no engine" if engine is None else engine.name for engine in chosen]
    return ", ".join(dict.fromkeys(names)) or "numpy"


def part_box(part: Part, schedule: Schedule, known: list[Node], engine: str) -> Box:
    """Makes the box of a part of a schedule (a net cut into parts) in the drawing of a graph: a title, its
    operations and its engine.

    A recurrence has the title of the largest recurrence of the user's graph that is contained in it. known:
    all recurrences of that graph, as traced, before passes of the compiler changed them. engine: the name of
    the engine that runs the part.
    """
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
    if known_cell(traced):  # the title stands for the cell's operations
        inside = without_cell(inside, Counter(operations(traced.recur.body.nodes)))
    return Box(cell_title(traced), wrapped(inside + rest), engine)


def without_cell(names: Iterable[str], cell_counts: Counter[str]) -> list[str]:
    """Removes the operations of a known cell, such as a GRU, from the names of operations in a box of a
    drawn graph: the box has the cell's name as its title instead.

    cell_counts: how often each operation is in the cell.
    """
    remaining, others = cell_counts.copy(), list[str]()
    for name in names:
        if remaining[name]:
            remaining[name] -= 1
        else:
            others.append(name)
    return others


def nodes_of(part: Part, net: Net) -> list[Node]:
    """Lists the nodes of a net that a part of its schedule (its division into parts) runs: all between the
    values that it reads and its results, without parameters and constants.
    """
    pending, seen = [number for number in part.results if number >= 0], set[int]()
    while pending:
        number = pending.pop()
        if number not in seen and number not in part.reads and net.nodes[number].types[0].extent != CONST:
            seen.add(number)
            pending += net.nodes[number].inputs
    return [net.nodes[number] for number in sorted(seen)]


def is_within(traced: Node, node: Node) -> bool:
    """Returns True if the recurrence `node` of a compiled net contains the recurrence `traced` of the user's
    graph: it has memories of the same types, the same direction, and at least the same operations. The
    compiler may have moved further operations into `node`.
    """
    small, large = traced.recur, node.recur
    carried, carries = ([recur.body.type_of(n) for n in recur.memories] for recur in (small, large))
    inner, outer = (Counter(operations(recur.body.nodes)) for recur in (small, large))
    return carried == carries and small.reverse == large.reverse and inner <= outer


def known_cell(node: Node) -> Recognised | None:
    """Returns the known cell that a recurrence computes, such as GRU, to title its box; None for others."""
    known = recognise(node)
    return known if isinstance(known, Recognised) else None


def cell_title(node: Node) -> str:
    """Makes the title of the box of a recurrence in a drawn graph: its cell and units, or the types of its
    memories if no cell is known, and its direction.
    """
    known, recur = known_cell(node), node.recur
    direction = ", backwards" if recur.reverse else ""
    if known is not None:
        return f"{known.cell.upper()}, {known.hidden} units{direction}"
    sizes = ", ".join(recur.body.type_of(number).element for number in recur.memories)
    return f"recurrence{f' of {sizes}' if sizes else ''}{direction}"


def operations(nodes: Iterable[Node]) -> Iterator[str]:
    """Yields the names of the operations of nodes, to list them in a box of a drawn graph; views, inputs and
    the like are left out.
    """
    for node in nodes:
        if node.operation == "reduce":
            yield f"{node.attributes['how']} over steps"
        elif node.operation == "expand" and node.type.extent != ROWS:
            yield (
                "repeat at each step" if node.type.extent == STEPS else f"repeat at {extent_words(node.type)}"
            )
        elif node.operation not in HIDDEN and not is_reading(node):
            yield node.operation


def wrapped(names: Iterable[str], width: int = 30) -> tuple[str, ...]:
    """Joins names of operations to lines of about `width` characters for a box in a drawing. Equal names are
    counted, as in "2 add, tanh".
    """
    lines = list[str]()
    for name, count in Counter(names).items():
        text = f"{count} {name}" if count > 1 else name
        if lines and len(lines[-1]) + len(text) < width:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return tuple(lines)
