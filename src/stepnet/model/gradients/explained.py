"""The data about a gradient that `explain` prints: saved values, costs of both halves, and peak memory.

`explain/gradients.py` turns them into an explanation.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, Type
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import Order
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.explain.costs import Cost, Costs, Held, added, bytes_of, costs, held_bytes, sum_of
from stepnet.explain.facts import choice, source
from stepnet.model.gradients.checkpoint import InPieces
from stepnet.model.gradients.in_sections import AtOnce, Sectioned, SectionRun
from stepnet.model.gradients.pieces import Checkpoint, piece_size
from stepnet.model.gradients.runs import GradientRun, Halved

FORWARD, AGAIN, BACKWARD = "forward", "forward again", "backward"


@dataclass(frozen=True)
class SavedValue:
    """One value that is saved for the backward half: its description, type, extent, and bytes per entry."""

    name: str
    element: str
    extent: Extent
    bytes: int


@dataclass(frozen=True)
class Half:
    """One net that runs in a gradient, forward or backward.

    name: FORWARD, AGAIN (the recomputation of saved values) or BACKWARD.
    schedule: the parts of the net in the order they run, with their plans.
    costs: the costs of a single step, also where the schedule runs blocks of steps.
    section: the number of its section, from 1, in a gradient of several sections (parts of a net, each with a
        forward and a backward pass of its own); else None.
    blocks: the number of steps of the recurrence in one step of the schedule.
    """

    name: str
    schedule: Schedule
    costs: Costs
    section: int | None = None
    blocks: int = 1

    @property
    def title(self) -> str:
        """The title of a pass, forward or backward, in the text of `explain`.

        It has the number of steps that are computed as one, if several, and the number of the section (part
        of the net), if the gradient is taken in sections.
        """
        name = self.name if self.blocks == 1 else f"{self.name}, {self.blocks} steps at a time"
        return name if self.section is None else f"section {self.section}, {name}"


@dataclass(frozen=True)
class MemoryUse:
    """The bytes of a gradient beyond its arguments and results, by extent (per parameter, sequence or step).

    kept: the bytes held between the forward and the backward pass.
    most: the further bytes at the peak of the backward pass.
    ahead: with a checkpoint, the bytes of the memories before a piece (range of steps), per sequence.
    piece: with a checkpoint, the bytes of a single piece; else None.
    """

    kept: Held
    most: Held
    ahead: int = 0
    piece: Held | None = None

    def between(self, rows: int, steps: int, checkpoint: Checkpoint) -> int:
        """Returns the bytes of saved values that a gradient holds between its forward and its backward pass.

        rows, steps: the number of sequences, and of the steps of each.
        checkpoint: the steps of a piece (range of steps), or "sqrt", whose initial memories are held; None
            without a checkpoint.
        """
        count = 0 if checkpoint is None else -(-steps // piece_size(checkpoint, steps)) - 1
        return total(self.kept, rows, steps) + max(0, count) * rows * self.ahead

    def height(self, rows: int, steps: int, checkpoint: Checkpoint) -> int:
        """Returns the peak bytes of a gradient: with a checkpoint, its backward pass holds a piece (range of
        steps) at a time.

        rows, steps: the number of sequences, and of the steps of each.
        checkpoint: the steps of a piece, or "sqrt"; None for a gradient that saves all values.
        """
        size = 0 if checkpoint is None else min(steps, piece_size(checkpoint, steps))
        piece = total(self.piece or {}, rows, size)
        return self.between(rows, steps, checkpoint) + total(self.most, rows, steps) + piece


@dataclass(frozen=True)
class BatchSizes:
    """The flops and bytes of a gradient for a batch of `rows` sequences of `steps` steps each.

    forward, backward: the flops of both passes.
    between: the bytes held between the passes.
    most: the largest number of bytes held at a time.
    """

    rows: int
    steps: int
    forward: int
    backward: int
    between: int
    most: int


@dataclass(frozen=True)
class GradientExplanation:
    """The data about a gradient that `explain` prints.

    kinds: the arguments that have gradients.
    checkpoint, engine: the `checkpoint` argument, and the name of the engine that runs the forward half.
    saved: the values of the forward half that the backward half reads; with a checkpoint, the values of one
        piece.
    halves, memory: the nets that run, and the bytes that they hold.
    sizes: the costs of a batch, if its size was given.
    blocks: for each recurrence the number of steps that it runs at a time, and if that is 1, the reason.
    """

    kinds: tuple[str, ...]
    checkpoint: Checkpoint
    engine: str | None
    saved: tuple[SavedValue, ...]
    halves: tuple[Half, ...]
    memory: MemoryUse
    sizes: BatchSizes | None
    blocks: tuple[str, ...] = ()

    def costs_of(self, *names: str) -> Costs:
        """Returns the costs of the passes with these names, by extent (per parameter, sequence or step)."""
        return added(pair for half in self.halves if half.name in names for pair in half.costs.items())


def gradient_explanation(
    run: GradientRun,
    kinds: tuple[str, ...],
    checkpoint: Checkpoint,
    engine: Order,
    rows: int | None = None,
    steps: int | None = None,
) -> GradientExplanation:
    """Collects the data about a gradient for `explain`.

    run: the programs of the gradient.
    kinds: the arguments that have gradients.
    checkpoint, engine: the arguments of the call.
    rows, steps: the size of a batch whose costs are added; None for no batch.
    """
    assert isinstance(run, Sectioned | Halved)
    facts = of_sections(run, engine) if isinstance(run, Sectioned) else of_halves(run, engine)
    chosen = choice(facts.halves[0].schedule, engine)[0] if facts.halves else None
    made = GradientExplanation(
        kinds, checkpoint, chosen, facts.saved, facts.halves, facts.memory, None, run.blocks
    )
    if rows is None or steps is None:
        return made
    forward, backward = (
        total({extent: cost.flops for extent, cost in made.costs_of(*names).items()}, rows, steps)
        for names in ((FORWARD,), (AGAIN, BACKWARD))
    )
    memory = facts.memory
    between, most = (each(rows, steps, checkpoint) for each in (memory.between, memory.height))
    sizes = BatchSizes(rows, steps, forward, backward, between, most)
    return replace(made, sizes=sizes)


# ---- the facts of a section --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SectionFacts:
    """Facts on a section (part) of a net for `explain`: saved values, forward and backward nets, memory."""

    saved: tuple[SavedValue, ...]
    halves: tuple[Half, ...]
    memory: MemoryUse


def of_sections(run: Sectioned, engine: Order) -> SectionFacts:
    """Returns facts for `explain` on a gradient that runs section by section: values, passes and memory.

    With checkpoints (memories saved every few steps, from which the other values are recomputed), the
    backward pass holds the values between two checkpoints of one section at a time: the memory of the section
    that needs most is enough. Values that go from one section to another are held with their cotangents.

    run: the programs of the sections (parts of the net). engine: the engines in order of preference.
    """
    parts = [of_section(part, engine) for part in run.sections]
    numbers = range(1, len(parts) + 1) if len(parts) > 1 else [None]
    halves = [
        replace(half, section=number)
        for number, part in zip(numbers, parts, strict=True)
        for half in part.halves
    ]
    saved = [value for part in parts for value in part.saved]
    crossing = bytes_of(run.net.type_of(number) for number in run.others)
    kept, most = crossing, crossing  # a value that goes from one section to another has a cotangent too
    ahead, piece, once = 0, dict[Extent, int](), dict[Extent, int]()
    for section, memory in zip(run.sections, (part.memory for part in parts), strict=True):
        if memory.piece is not None:
            ahead += memory.ahead
            piece = max(piece, memory.piece, key=lambda sizes: sizes.get(STEPS, 0))
            once = max(once, memory.most, key=lambda sizes: sizes.get(CONST, 0))
        elif run.checkpoint is None or not isinstance(section, AtOnce):
            kept, most = sum_of(kept, memory.kept), max_of(most, memory.most)
    most = sum_of(most, {extent: count for extent, count in once.items() if extent in (CONST, ROWS)})
    pieces = (0, None) if run.checkpoint is None else (ahead, piece)
    return SectionFacts(tuple(saved), tuple(halves), MemoryUse(kept, most, *pieces))


def of_section(part: SectionRun, engine: Order) -> SectionFacts:
    """Returns facts for `explain` on one section (part of a net): its saved values, passes and memory. Raises
    `AssertionError` for programs of an unknown kind.

    part: the programs of the section. engine: the engines in order of preference.
    """
    with IMPORTS:  # late: few processes train
        from stepnet.model.gradients.in_blocks import InBlocks

    match part:
        case AtOnce():
            return of_halves(part.halved, engine)
        case InBlocks():
            return per_step(of_halves(part.by_blocks, engine), part.size)
        case InPieces():
            return of_pieces(part, engine)
        case _:
            raise AssertionError(f"no facts are known of {type(part).__name__}")


def of_halves(run: Halved, engine: Order) -> SectionFacts:
    """Returns facts for `explain` on a gradient that runs at once: its saved values, passes and memory.

    Saved values that are results of the net count as no memory, as the caller has them anyway.

    run: the programs of the forward and of the backward half. engine: the engines in order of preference.
    """
    first, second = run.first.schedule_for(engine), run.second.schedule_for(engine)
    halves = Half(FORWARD, first, costs(first)), Half(BACKWARD, second, costs(second))
    values = [run.first.net.results[place] for place in run.saved]
    extra = {place for place in run.saved if place >= run.own}
    kept = bytes_of(run.first.net.type_of(run.first.net.results[place]) for place in extra)
    return SectionFacts(
        tuple(saved_values(run.first.net, values)), halves, MemoryUse(kept, held_bytes(second))
    )


def of_pieces(part: InPieces, engine: Order) -> SectionFacts:
    """Returns facts for `explain` on a section (part of a net) that runs by ranges of steps.

    Its `memory.most` is the bytes of the backward pass's results.

    part: the programs of the section. engine: the engines in order of preference.
    """
    net, backward, again = part.section.net, part.backward, part.again
    programs = {FORWARD: part.forward, AGAIN: again, BACKWARD: backward}
    halves = (
        Half(name, schedule, costs(schedule))
        for name, program in programs.items()
        if program is not None
        for schedule in [program.schedule_for(engine)]
    )
    read = () if again is None else saved_values(again.net, [again.net.results[at] for at in part.saved])
    memories = (net.type_of(number) for number in net.inputs[len(part.section.reads) :])
    memory = MemoryUse(
        {}, bytes_of(types_of(backward.net)), bytes_of(memories)[ROWS], piece_bytes(part, engine)
    )
    return SectionFacts(tuple(read), tuple(halves), memory)


def piece_bytes(part: InPieces, engine: Order) -> dict[Extent, int]:
    """Returns the bytes that a piece (range of steps) holds for each of its steps, by the extent of the
    values (one per step, or per step of a sequence inside it), for `explain`.

    They are copies of inputs and results, saved values, and the values that the backward half holds and
    returns.

    part: the programs of the section, a part of the net. engine: the engines in order of preference.
    """
    net, backward = part.section.net, part.backward
    read = [net.type_of(number) for number in net.inputs]
    again = [] if part.again is None else types_of(part.again.net)
    types = [*read, *types_of(net), *again, *types_of(backward.net)]
    every = sum_of(bytes_of(types), held_bytes(backward.schedule_for(engine)))
    return {extent: count for extent, count in every.items() if len(extent) > 1}


def per_step(facts: SectionFacts, size: int) -> SectionFacts:
    """Converts facts for `explain` on a section (part of a net) whose gradient runs by blocks of steps
    (several computed as one): from facts on a block to facts on one step. Divides the bytes of saved values
    (kept for the backward pass), the costs of the forward and backward nets, and the memory.

    size: the number of steps of a block.
    """
    saved = tuple(
        replace(value, name=f"{value.name}, for {size} steps", bytes=-(-value.bytes // size))
        if value.extent == STEPS
        else value
        for value in facts.saved
    )
    halves = tuple(replace(half, costs=divided_costs(half.costs, size), blocks=size) for half in facts.halves)
    memory = MemoryUse(divided(facts.memory.kept, size), divided(facts.memory.most, size))
    return SectionFacts(saved, halves, memory)


def divided_costs(costs: Costs, size: int) -> dict[Extent, Cost]:
    """Returns the costs of one step, from the costs of a block of `size` steps computed as one; rounded up.

    costs: the costs by extent (how often they arise). Only costs per step are divided.
    """
    return {
        extent: Cost(*(-(-count // size) for count in (cost.flops, cost.weights, cost.values)))
        if extent == STEPS
        else cost
        for extent, cost in costs.items()
    }


def divided(sizes: Held, size: int) -> dict[Extent, int]:
    """Returns the bytes of one step, from the bytes of a block of `size` steps computed as one; rounded up.
    sizes: the bytes by extent (how often the value occurs). Only bytes per step are divided.
    """
    return {extent: -(-count // size) if extent == STEPS else count for extent, count in sizes.items()}


def max_of(first: Held, second: Held) -> dict[Extent, int]:
    """Returns, for each extent (per parameter, sequence or step), the larger of two numbers of bytes."""
    return {extent: max(first.get(extent, 0), second.get(extent, 0)) for extent in {**first, **second}}


def types_of(net: Net) -> list[Type]:
    """Returns the types of the results of a net, to sum up their bytes."""
    return [net.type_of(number) for number in net.results]


def saved_values(net: Net, numbers: Iterable[int]) -> Iterator[SavedValue]:
    """Yields descriptions of the values that the backward pass reads, given by their numbers in a net."""
    for number in numbers:
        type_ = net.type_of(number)
        yield SavedValue(described(net, number), type_.element, type_.extent, type_.size * type_.itemsize)


def described(net: Net, number: int) -> str:
    """Describes a value of a net in words, for `explain`: by the variable or the operation that makes it.

    A result of a recurrence is described by what its step computes. A view of a value, such as a slice, is
    "part of" it.

    number: the number of the value in the net.
    """
    node = net.nodes[number]
    if node.operation == "result" and net.nodes[node.inputs[0]].operation == "recur":
        body = net.nodes[node.inputs[0]].recur.body
        of: int = node.attributes["of"]
        net, number = body, body.results[of]
    if net.nodes[number].operation == "cast":  # stored in fewer bits
        number = net.nodes[number].inputs[0]
    origin = net.nodes[source(net, number)]
    what = origin.name or origin.operation
    return what if source(net, number) == number else f"part of {what}"


def total(sizes: Held, rows: int, steps: int) -> int:
    """Sums bytes or flops over a batch of `rows` sequences of `steps` steps each. sizes: the numbers per
    parameter, per sequence and per step, by extent; other extents are left out.
    """
    counts = {CONST: 1, ROWS: rows, STEPS: rows * steps}
    return sum(count * counts[extent] for extent, count in sizes.items() if extent in counts)
