"""The facts about a gradient: the saved values, the costs of both halves, and the peak memory.

`gradient_text.py` writes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepnet.engines import Order
from stepnet.engines.pairs import PairChoice, between
from stepnet.explain.costs import Cost, Costs, Held, added, bytes_of, costs, held, sum_of
from stepnet.explain.facts import choice, source
from stepnet.net.ir import Net
from stepnet.net.types import CONST, ROWS, STEPS, Extent, Type
from stepnet.plan.schedule import Schedule
from stepnet.rnn.checkpoint import InPieces
from stepnet.rnn.gradient_runs import GradientRun, Halved
from stepnet.rnn.in_sections import AtOnce, Sectioned
from stepnet.rnn.paired import Paired
from stepnet.rnn.pieces import Checkpoint, piece_size

FORWARD, AGAIN, BACKWARD = "forward", "forward again", "backward"


@dataclass(frozen=True)
class Saved:
    """One value that is saved for the backward half: its description, type, extent, and bytes per entry."""

    name: str
    element: str
    extent: Extent
    bytes: int


@dataclass(frozen=True)
class Half:
    """One net that is run: what it does it for, its schedule and costs. section: where a gradient runs in
    several, which it is, from 1. by: the engine whose own code does it in place of the schedule, and what
    that is. blocks: how many steps one step of the schedule is; costs are those of one of them.
    """

    name: str
    schedule: Schedule
    costs: Costs
    section: int | None = None
    by: str = ""
    blocks: int = 1

    @property
    def title(self) -> str:
        """Its name, with the section."""
        name = self.name if self.blocks == 1 else f"{self.name}, {self.blocks} steps at a time"
        return name if self.section is None else f"section {self.section}, {name}"


@dataclass(frozen=True)
class Memory:
    """The bytes that are held beyond arguments and results.

    kept: between forward and backward pass.
    most: additional bytes at the peak of the backward pass.
    ahead: with checkpoint, the initial memories per sequence and piece.
    piece: with checkpoint, the bytes of one piece at a time.
    """

    kept: Held
    most: Held
    ahead: int = 0
    piece: Held | None = None

    def between(self, rows: int, steps: int, checkpoint: Checkpoint) -> int:
        """The bytes between forward and backward, of sequences of one length."""
        count = 0 if checkpoint is None else pieces_of(checkpoint, steps) - 1
        return total(self.kept, rows, steps) + max(0, count) * rows * self.ahead

    def height(self, rows: int, steps: int, checkpoint: Checkpoint) -> int:
        """The most bytes."""
        size = 0 if checkpoint is None else min(steps, piece_size(checkpoint, steps))
        piece = total(self.piece or {}, rows, size)
        return self.between(rows, steps, checkpoint) + total(self.most, rows, steps) + piece


@dataclass(frozen=True)
class Sizes:
    """A batch of so many sequences of so many steps: its flops forward and backward, and what it holds."""

    rows: int
    steps: int
    forward: int
    backward: int
    between: int
    most: int


@dataclass(frozen=True)
class GradientExplanation:
    """The facts about a gradient. saved: what the backward half reads of the forward one; with checkpoint of
    one piece alone. sizes: for a batch that was asked for. choices: the engine of each recurrence, where one
    was asked for that has gradients of its own. blocks: how many steps each recurrence runs at a time, and
    the reason where that is one.
    """

    kinds: tuple[str, ...]
    checkpoint: Checkpoint
    engine: str | None
    saved: tuple[Saved, ...]
    halves: tuple[Half, ...]
    memory: Memory
    sizes: Sizes | None
    choices: tuple[PairChoice, ...] = ()
    blocks: tuple[str, ...] = ()

    def costs_of(self, *names: str) -> Costs:
        """What the halves of these names do."""
        return added(pair for half in self.halves if half.name in names for pair in half.costs.items())


def gradient_explanation(
    run: GradientRun,
    kinds: tuple[str, ...],
    checkpoint: Checkpoint,
    engine: Order,
    rows: int | None = None,
    steps: int | None = None,
) -> GradientExplanation:
    """The facts about how a gradient is run. rows, steps: of a batch whose costs are asked for too."""
    saved, halves, memory = in_sections(run) if isinstance(run, Sectioned) else at_once(run)
    choices = run.choices if isinstance(run, Sectioned) else ()
    chosen = engine_of(halves, choices, engine)
    blocks = blocks_of(run)
    made = GradientExplanation(kinds, checkpoint, chosen, saved, halves, memory, None, choices, blocks)
    if rows is None or steps is None:
        return made
    forward, backward = (
        total({extent: cost.flops for extent, cost in made.costs_of(*names).items()}, rows, steps)
        for names in ((FORWARD,), (AGAIN, BACKWARD))
    )
    between, most = (each(rows, steps, checkpoint) for each in (memory.between, memory.height))
    sizes = Sizes(rows, steps, forward, backward, between, most)
    return replace(made, sizes=sizes)


def blocks_of(run: GradientRun) -> tuple[str, ...]:
    """How many steps each recurrence runs at a time, with the reason where that is one."""
    assert isinstance(run, Sectioned | Halved)
    if isinstance(run, Sectioned) and run.checkpoint is not None:
        return ("1 step: a gradient with checkpoint= runs step by step",)
    if isinstance(run, Sectioned) and run.choices:
        return ("1 step: an engine with gradients of its own is asked for",)
    return run.blocks


def engine_of(halves: Sequence[Half], choices: Sequence[PairChoice], asked: Order) -> str | None:
    """The engines that run a gradient; None where none of those asked for does."""
    first = next((half.schedule for half in halves if not half.by), None)
    chosen = [] if first is None else [choice(first, between(asked))[0]]
    names = [*(each.engine for each in choices if each.pair is not None), *chosen]
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


# ---- the facts ---------------------------------------------------------------------------------------------


def at_once(run: GradientRun) -> tuple[tuple[Saved, ...], tuple[Half, ...], Memory]:
    """Of a gradient in two halves."""
    assert isinstance(run, Halved)
    first, second = run.first.schedule, run.second.schedule
    halves = Half(FORWARD, first, costs(first)), Half(BACKWARD, second, costs(second))
    values = [run.first.net.results[place] for place in run.saved]
    extra = {place for place in run.saved if place >= run.own}
    kept = bytes_of(run.first.net.type_of(run.first.net.results[place]) for place in extra)
    return tuple(saved_values(run.first.net, values)), halves, Memory(kept, held(second))


def in_sections(run: Sectioned) -> tuple[tuple[Saved, ...], tuple[Half, ...], Memory]:
    """Of a gradient that runs section by section."""
    from stepnet.rnn.in_blocks import InBlocks  # late: not everybody trains

    saved, halves = list[Saved](), list[Half]()
    crossing = bytes_of(run.net.type_of(number) for number in run.others)
    kept, most, ahead = dict(crossing), dict(crossing), 0
    piece, once = dict[Extent, int](), dict[Extent, int]()
    for place, part in enumerate(run.sections, 1):
        section = place if len(run.sections) > 1 else None
        if isinstance(part, AtOnce):
            values, both, memory = at_once(part.halved)
            saved += values
            halves += [replace(half, section=section) for half in both]
            if run.checkpoint is None:
                kept, most = sum_of(kept, memory.kept), max_of(most, memory.most)
        elif isinstance(part, InBlocks):
            values, both, memory = at_once(part.by_blocks)
            saved += [of_one(value, part.size) for value in values]
            halves += [replace(of_steps(half, part.size), section=section) for half in both]
            kept, most = (
                sum_of(kept, a_step(memory.kept, part.size)),
                max_of(most, a_step(memory.most, part.size)),
            )
        elif isinstance(part, Paired):
            name = f"kept by {part.choice.engine}"
            own = Saved(name, "bytes", part.extent, part.bytes_per_step)
            saved.append(own)
            kept = sum_of(kept, {own.extent: own.bytes})
            halves += halves_of(part, section)
        elif isinstance(part, InPieces):
            programs = {FORWARD: part.forward, AGAIN: part.again, BACKWARD: part.backward}
            for name, program in programs.items():
                if program is not None:
                    halves.append(Half(name, program.schedule, costs(program.schedule), section))
            net = part.section.net
            memories = (net.type_of(number) for number in net.inputs[len(part.section.reads) :])
            ahead += bytes_of(memories)[ROWS]
            if part.again is not None:
                saved += saved_values(part.again.net, [part.again.net.results[place] for place in part.saved])
            own_piece = of_a_piece(part)
            piece = max(piece, own_piece, key=lambda sizes: sizes.get(STEPS, 0))
            once = max(once, bytes_of(types_of(part.backward.net)), key=lambda sizes: sizes.get(CONST, 0))
    fixed = {extent: count for extent, count in once.items() if extent in (CONST, ROWS)}
    # What crosses has a cotangent too.
    most = sum_of(most, fixed)
    if run.checkpoint is None:
        return tuple(saved), tuple(halves), Memory(kept, most)
    return tuple(saved), tuple(halves), Memory(kept, most, ahead, piece)


def halves_of(part: Paired, section: int | None) -> list[Half]:
    """Both ways of a recurrence on an engine of its own; their costs are those of its gradient as a net."""
    net = part.section.net
    floats = [place for place, number in enumerate(net.inputs) if net.type_of(number).is_float]
    both = Halved.of(net, floats)
    by = f"{part.choice.engine}: {part.pair.text}"
    programs = {FORWARD: both.first, BACKWARD: both.second}
    return [
        Half(name, program.schedule, costs(program.schedule), section, by)
        for name, program in programs.items()
    ]


def of_steps(half: Half, size: int) -> Half:
    """A half that runs blocks of so many steps, with the costs of one step."""
    costs = {
        extent: Cost(*(-(-count // size) for count in (cost.flops, cost.weights, cost.values)))
        if extent == STEPS
        else cost
        for extent, cost in half.costs.items()
    }
    return replace(half, costs=costs, blocks=size)


def of_one(value: Saved, size: int) -> Saved:
    """A value that is saved once for so many steps, with the bytes of one step."""
    if value.extent != STEPS:
        return value
    return replace(value, name=f"{value.name}, for {size} steps", bytes=-(-value.bytes // size))


def a_step(each: Held, size: int) -> dict[Extent, int]:
    """Bytes of blocks of so many steps as those of steps."""
    return {extent: -(-count // size) if extent == STEPS else count for extent, count in each.items()}


def max_of(first: Held, second: Held) -> Held:
    """The larger of two amounts, extent by extent."""
    return {extent: max(first.get(extent, 0), second.get(extent, 0)) for extent in {**first, **second}}


def of_a_piece(part: InPieces) -> dict[Extent, int]:
    """What is held of each step of a piece: copies of what is read and given, what is saved, and what the
    backward half holds and gives.
    """
    net, backward = part.section.net, part.backward
    read = [net.type_of(number) for number in net.inputs]
    again = [] if part.again is None else types_of(part.again.net)
    types = [*read, *types_of(net), *again, *types_of(backward.net)]
    whole = sum_of(bytes_of(types), held(backward.schedule))
    return {extent: count for extent, count in whole.items() if len(extent) > 1}


def types_of(net: Net) -> list[Type]:
    """The types of the results of a net."""
    return [net.type_of(number) for number in net.results]


def saved_values(net: Net, numbers: Iterable[int]) -> Iterator[Saved]:
    """The values of a net that are saved, by what they are in the step."""
    for number in numbers:
        type_ = net.type_of(number)
        yield Saved(said(net, number), type_.element, type_.extent, type_.size * type_.itemsize)


def said(net: Net, number: int) -> str:
    """What a value is: the operation that makes it, in the step of its recurrence."""
    node = net.nodes[number]
    if node.operation == "result" and net.nodes[node.inputs[0]].operation == "recur":
        body = net.nodes[node.inputs[0]].recur.body
        of: int = node.attributes["of"]
        net, number = body, body.results[of]
    origin = net.nodes[source(net, number)]
    what = origin.name or origin.operation
    return what if source(net, number) == number else f"part of {what}"


def total(each: Held, rows: int, steps: int) -> int:
    """The bytes or flops of a batch, those of deeper sequences left out."""
    counts = {CONST: 1, ROWS: rows, STEPS: rows * steps}
    return sum(count * counts[extent] for extent, count in each.items() if extent in counts)


def pieces_of(checkpoint: "int | str", steps: int) -> int:
    """How many pieces there are."""
    return -(-steps // piece_size(checkpoint, steps))
