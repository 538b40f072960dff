"""A gradient as text: the saved values, the costs of both halves, and the peak memory.

`gradient_explanation` collects the facts, `text` writes them. The plans of the halves are `explain`'s.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepnet.engines import Order
from stepnet.engines.pairs import PairChoice, between
from stepnet.net.ir import Net
from stepnet.net.types import CONST, ROWS, STEPS, Extent, Type, extent_text
from stepnet.plan.schedule import Schedule
from stepnet.rnn.checkpoint import InPieces
from stepnet.rnn.costs import Cost, Costs, Held, added, bytes_of, costs, held, sum_of
from stepnet.rnn.explain import explain, wrapped
from stepnet.rnn.explanation import choice, source
from stepnet.rnn.expressions import amount
from stepnet.rnn.gradient_runs import GradientRun, Halved
from stepnet.rnn.in_sections import AtOnce, Sectioned
from stepnet.rnn.paired import Paired
from stepnet.rnn.pieces import Checkpoint, piece_size

NAMES: dict[Extent, str] = {STEPS: "per step", ROWS: "per sequence", CONST: "once"}
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
    was asked for that has gradients of its own.
    """

    kinds: tuple[str, ...]
    checkpoint: Checkpoint
    engine: str | None
    saved: tuple[Saved, ...]
    halves: tuple[Half, ...]
    memory: Memory
    sizes: Sizes | None
    choices: tuple[PairChoice, ...] = ()

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
    made = GradientExplanation(kinds, checkpoint, chosen, saved, halves, memory, None, choices)
    if rows is None or steps is None:
        return made
    forward, backward = (
        total({extent: cost.flops for extent, cost in made.costs_of(*names).items()}, rows, steps)
        for names in ((FORWARD,), (AGAIN, BACKWARD))
    )
    between, most = (each(rows, steps, checkpoint) for each in (memory.between, memory.height))
    sizes = Sizes(rows, steps, forward, backward, between, most)
    return replace(made, sizes=sizes)


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


# ---- text --------------------------------------------------------------------------------------------------


def text(facts: GradientExplanation, engine: Order) -> str:
    """The facts for people, and the plans of all halves."""
    blocks = [head(facts), saved_lines(facts), work_lines(facts), memory_lines(facts)]
    blocks += [] if facts.sizes is None else [size_lines(facts.sizes)]
    nets = between(engine)
    plans = [f"{half.title}:\n{half.by or explain(half.schedule, nets)}" for half in facts.halves]
    return "\n\n".join(["\n".join(lines) for lines in blocks] + plans)


def head(facts: GradientExplanation) -> list[str]:
    """What it is of, and how it runs."""
    size = "sqrt(steps)" if isinstance(facts.checkpoint, str) else facts.checkpoint
    kept = "none: values of every step are saved" if size is None else f"memories ahead of every {size} steps"
    return [
        f"gradients of {', '.join(facts.kinds) or 'nothing'}",
        f"  engine      {facts.engine or 'none of those asked for'}",
        f"  checkpoint  {kept}",
        *choice_lines(facts.choices),
    ]


def choice_lines(choices: Sequence[PairChoice]) -> Iterator[str]:
    """The engine of each recurrence, and the refusals of those before it."""
    for place, made in enumerate(choices, 1):
        name = f"recurrence {place}" if len(choices) > 1 else "recurrence"
        yield f"  {name:<11} {made.engine}{f': {made.pair.text}' if made.pair else ''}"
        for engine, reason in made.refusals.items():
            yield from wrapped(f"    {engine:<10}", f"refuses: {reason}")


def saved_lines(facts: GradientExplanation) -> list[str]:
    """What is saved."""
    where = "" if facts.checkpoint is None else ", of one piece at a time"
    lines = [f"saved: {sizes_text(sum_of(*({value.extent: value.bytes} for value in facts.saved)))}{where}"]
    width = max((len(value.name) for value in facts.saved), default=0)
    return lines + [
        f"  {value.name:<{width}}  {value.element:<10}  {amount(value.bytes, 'B'):>8} {name_of(value.extent)}"
        for value in facts.saved
    ]


def work_lines(facts: GradientExplanation) -> list[str]:
    """What each half does."""
    lines = ["work"]
    for half in facts.halves:
        lines.append(f"  {half.title}")
        for extent, cost in half.costs.items():
            lines.append(f"    {name_of(extent):<13} {cost_text(cost)}")
    return lines


def cost_text(cost: Cost) -> str:
    """A cost as the titles of stages have it."""
    parts = [amount(cost.flops, "flop")]
    parts += [f"{amount(cost.weights, 'B')} of weights"] if cost.weights else []
    parts += [f"{amount(cost.values, 'B')} of values"] if cost.values else []
    return ", ".join(parts)


def memory_lines(facts: GradientExplanation) -> list[str]:
    """What is held."""
    memory = facts.memory
    lines = ["memory beyond arguments and results"]
    between = sizes_text(memory.kept)
    if memory.piece is not None:
        ahead = f"{amount(memory.ahead, 'B')} per sequence and piece"
        between = ahead if not any(memory.kept.values()) else f"{ahead}, {between}"
    lines.append(f"  between forward and backward  {between}")
    if any(memory.most.values()):
        lines.append(f"  besides, in the backward pass {sizes_text(memory.most)}")
    if memory.piece is not None:
        lines.append(f"  besides, of one piece         {sizes_text(memory.piece)}")
    return lines


def size_lines(sizes: Sizes) -> list[str]:
    """The figures of a batch."""
    return [
        f"for {sizes.rows} sequences of {sizes.steps} steps",
        f"  forward   {amount(sizes.forward, 'flop')}",
        f"  backward  {amount(sizes.backward, 'flop')}",
        f"  memory    {amount(sizes.between, 'B')} between them, {amount(sizes.most, 'B')} at most",
    ]


def sizes_text(each: Held) -> str:
    """Bytes by extent."""
    shown = [f"{amount(count, 'B')} {name_of(extent)}" for extent, count in sorted_by_depth(each) if count]
    return ", ".join(shown) or "nothing"


def sorted_by_depth(each: Held) -> Sequence[tuple[Extent, int]]:
    """Entries, the deepest first."""
    return sorted(each.items(), key=lambda pair: -len(pair[0]))


def name_of(extent: Extent) -> str:
    """What there is one for each of."""
    return NAMES.get(extent, f"per entry of {extent_text(extent)}")
