"""Explanation of a gradient: saved values, the work and memory of both halves, and their plans."""

from math import ceil

from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, extent_text
from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.targets import Order
from stepnet.explain.costs import Held, sum_of
from stepnet.explain.document import FACTS, DocumentTable, TitledSection, headed
from stepnet.explain.plan import checked_size, costs_text, schedule_sections
from stepnet.explain.text import amount, text
from stepnet.model.gradients.explained import BatchSizes, GradientExplanation, Half

NAMES: dict[Extent, str] = {STEPS: "per step", ROWS: "per sequence", CONST: "once"}


def explain_gradient(facts: GradientExplanation, engine: Order) -> str:
    """Formats the explanation of a gradient as text. engine: the engines that the user asks for, for which
    the plans (which operation runs when) of the forward and the backward half are explained.
    """
    sections = [
        head(facts),
        saved_section(facts),
        TitledSection("work", tuple(map(half_section, facts.halves))),
        memory_section(facts),
    ]
    sections += [] if facts.sizes is None else [size_section(facts.sizes)]
    for half in facts.halves:
        title = half.title if half.blocks == 1 else f"{half.title}, which here are one step"
        sections += headed(f"{title}:", schedule_sections(half.schedule, engine, size_of(facts, half)))
    return text(sections)


def size_of(facts: GradientExplanation, half: Half) -> CallSize | None:
    """Returns the size of a call of a half of a gradient, in which several steps at a time count as one; None
    if it is not known, or if the half does not run over its steps.
    """
    sizes = facts.sizes
    if sizes is None or facts.checkpoint is not None or not (sizes.rows and sizes.steps):
        return None
    return checked_size(sizes.rows, ceil(sizes.steps / half.blocks))


def head(facts: GradientExplanation) -> TitledSection:
    """Makes the first section of the explanation of a gradient: the arguments that have gradients, the
    engine, the checkpoints (memories saved every few steps, from which others are computed again) and how the
    steps of a call are split into blocks.
    """
    size = "sqrt(steps)" if isinstance(facts.checkpoint, str) else facts.checkpoint
    checkpoint = (
        "none: values of every step are saved" if size is None else f"memories ahead of every {size} steps"
    )
    rows = [("engine", facts.engine or "none of those asked for"), ("checkpoint", checkpoint)]
    rows += [("blocks", "; ".join(dict.fromkeys(facts.blocks)))] if facts.blocks else []
    title = f"gradients of {', '.join(facts.kinds) or 'nothing'}"
    return TitledSection(title, (DocumentTable(tuple(rows), FACTS),))


def saved_section(facts: GradientExplanation) -> TitledSection:
    """Makes the section on the values that the forward half saves for the backward half: name, type, bytes
    and how often. With checkpoints they are saved for one piece (the steps between two checkpoints) at a
    time.
    """
    where = "" if facts.checkpoint is None else ", of one piece at a time"
    every = sizes_text(sum_of(*({value.extent: value.bytes} for value in facts.saved)))
    rows = [
        (value.name, value.element, amount(value.bytes, "B"), name_of(value.extent)) for value in facts.saved
    ]
    return TitledSection(f"saved: {every}{where}", (DocumentTable(tuple(rows), ("<", "<11", ">8")),))


def half_section(half: Half) -> TitledSection:
    """Makes the section on the costs of one half of a gradient: per step, per sequence, and so on."""
    costs = [(name_of(extent), cost) for extent, cost in half.costs.items()]
    rows = [(name, costs_text(cost.flops, cost.weights, cost.values)) for name, cost in costs]
    return TitledSection(half.title, (DocumentTable(tuple(rows), ("<13",)),))


def memory_section(facts: GradientExplanation) -> TitledSection:
    """Makes the section on the memory that a gradient holds beyond arguments and results: between its halves
    (forward and backward), and in the backward pass. With checkpoints (saved memories), a piece is the steps
    between two of them.
    """
    memory = facts.memory
    between = sizes_text(memory.kept)
    if memory.piece is not None:
        ahead = f"{amount(memory.ahead, 'B')} per sequence and piece"
        between = ahead if not any(memory.kept.values()) else f"{ahead}, {between}"
    rows = [("between forward and backward", between)]
    if any(memory.most.values()):
        rows.append(("besides, in the backward pass", sizes_text(memory.most)))
    if memory.piece is not None:
        rows.append(("besides, of one piece", sizes_text(memory.piece)))
    return TitledSection("memory beyond arguments and results", (DocumentTable(tuple(rows), ("<29",)),))


def size_section(sizes: BatchSizes) -> TitledSection:
    """Makes the section on the flops of both halves of a gradient, and its memory between them and at most,
    for a batch of a given size.
    """
    held = f"{amount(sizes.between, 'B')} between them, {amount(sizes.most, 'B')} at most"
    rows = [
        ("forward", amount(sizes.forward, "flop")),
        ("backward", amount(sizes.backward, "flop")),
        ("memory", held),
    ]
    return TitledSection(f"for {sizes.rows} sequences of {sizes.steps} steps", (DocumentTable(tuple(rows)),))


def sizes_text(held: Held) -> str:
    """Formats bytes by extent as text, such as "1.5 kB per step, 64 B per sequence"."""
    ordered = sorted(held.items(), key=lambda pair: -len(pair[0]))
    return (
        ", ".join(f"{amount(count, 'B')} {name_of(extent)}" for extent, count in ordered if count)
        or "nothing"
    )


def name_of(extent: Extent) -> str:
    """Names an extent in words for an explanation, such as "per step"."""
    return NAMES.get(extent, f"per entry of {extent_text(extent)}")
