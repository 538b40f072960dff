"""Explains a plan: the work of each stage, its costs, the engine, and how threads divide a call."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stepnet.compiler.net.types import STEPS
from stepnet.compiler.plan.load import WORDS, CallSize
from stepnet.compiler.plan.partition import Concurrency, Wavefront, at_once, partition, wavefront
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.plan.waves import lines_of, waves_of
from stepnet.compiler.targets import engine_named, engines_of, is_engine, planning_of
from stepnet.compiler.targets.assignment import choice as placed_on
from stepnet.compiler.targets.capabilities import KernelEngine, SharedEngine
from stepnet.compiler.values.arguments import checked_integer, short_repr
from stepnet.errors import InputError
from stepnet.explain.document import FACTS, DocumentTable, Item, TitledSection
from stepnet.explain.facts import Asked, Explanation, StageFacts, choice, plan_explanation, schedule_on
from stepnet.explain.part_names import describe_part, parts_of
from stepnet.explain.text import amount, text

SHOWN = CallSize(1, 100, 100)
"""The size of the call whose time is estimated by default."""
MOST_ROWS, MOST_STEPS = 2**24, 2**40
"""The most sequences of a call that is explained, which are divided among threads one by one, and the most
steps of each: the numbers of all steps, and of all pairs, are those of machine words.
"""
TITLES = {
    "once": "once",
    "sequence": "once per sequence",
    "before": "before the loop, per step",
    "loop": "in the loop, per step",
    "after": "after the loop, per step",
    "reduced": "in the end, of each sequence's steps",
    "ended": "in the end, per sequence",
    "total": "in the end, once",
}


def explain(schedule: Schedule, engine: Asked = "auto", size: CallSize | None = None) -> str:
    """Formats the explanation of a schedule (a net cut into parts) as text: inputs, engine, and the work of
    each stage, such as once per step.

    engine: the engine that the user asks for. size: the size of a call, to explain how threads share it.
    """
    return text(schedule_sections(schedule, engine, size))


def schedule_sections(schedule: Schedule, engine: Asked, size: CallSize | None = None) -> list[TitledSection]:
    """Makes the titled sections that explain a schedule (a net cut into parts): inputs, the engine and the
    refusals, and the work of each stage, such as once per step.

    For nested recurrences they are on the engine, the parts in the order they run, and the stages of each
    part. A flop is one operation on a number. Weights are the parameters that are read each time, values are
    all other bytes read or written.

    engine: the engine that the user asks for. size: the size of a call; with it the sections also say how
    threads share the call.
    """
    chosen, engines = choice(schedule, engine)
    schedule = schedule_on(schedule, chosen)
    if schedule.single_plan is not None:
        facts = plan_explanation(schedule.single_plan, chosen, engines)
        shared = partition_sections(schedule.single_plan, chosen, size)
        shared += kernel_sections(schedule.single_plan, engine, size)
        return [ends_section(facts), engine_section(chosen, engines), *shared, *work_sections(facts)]
    named = list(parts_of(schedule))
    rows = tuple((number, describe_part(part, inside)) for number, part, inside in named)
    shared = *shared_items(schedule, chosen, size), *stream_items(schedule, engine, size)
    parts = DocumentTable(rows), *shared
    sections = [TitledSection("parts, in the order they run", parts), engine_section(chosen, engines)]
    sections += time_sections(schedule, engine, size)
    for number, part, _ in named:
        if part.plan is not None:
            runs = placed_on(part.plan, engines_of(engine)).engine
            plan = part.plan if runs is None else part.plan.planned(planning_of(runs))
            facts = plan_explanation(plan, chosen, engines)
            placed = TitledSection(f"part {number}:", part_engine_tables(part.plan, engine))
            # Inner sequences have other sizes than the call, also those of the steps of a loop.
            flat = size if part.extent == STEPS and "." not in number else None
            sections += [TitledSection("", (placed, ends_section(facts)))]
            sections += [*partition_sections(plan, chosen, flat), *kernel_sections(plan, engine, flat)]
            sections += work_sections(facts)
    return sections


def checked_size(
    rows: int | None, steps: int | None, lengths: Sequence[int] | None = None
) -> CallSize | None:
    """Makes the size of a call of `rows` sequences of `steps` steps each, or of sequences of these lengths;
    None if nothing is given.

    Raises `InputError` for numbers that are not whole or less than 1, but for lengths of 0, for more than
    `MOST_ROWS` rows or `MOST_STEPS` steps of one, and for lengths beside other numbers.
    """
    meaning = (
        "the number of {}, for which explain says how threads share a call, is a whole number from {} on"
    )
    of_rows = f"{meaning.format('rows', 1)}, up to {MOST_ROWS}"
    of_steps = f"{meaning}, up to {MOST_STEPS}"
    if lengths is not None:
        if rows is not None or steps is not None:
            raise InputError(
                "lengths say how many sequences there are, and the steps of each: leave out rows and steps"
            )
        given: Any = lengths
        if not isinstance(given, Iterable):
            raise InputError(
                f"lengths lists the number of steps of each sequence, as [3, 0], not {short_repr(lengths)}"
            )
        each = tuple(
            checked_integer(length, of_steps.format("steps of each sequence", 0), 0, MOST_STEPS)
            for length in lengths
        )
        if not each:
            raise InputError("lengths is empty: give the number of steps of at least one sequence")
        return CallSize(sum(length > 0 for length in each), max(each), sum(each), lengths=each)
    if rows is None and steps is None:
        return None
    count = checked_integer(1 if rows is None else rows, of_rows, 1, MOST_ROWS)
    longest = checked_integer(
        SHOWN.longest if steps is None else steps, of_steps.format("steps", 1), 1, MOST_STEPS
    )
    return CallSize(count, longest, count * longest)


# ---- engines and threads -----------------------------------------------------------------------------------


def engine_section(chosen: str | None, engines: dict[str, str | None]) -> TitledSection:
    """Makes the section on the chosen engine, the processor if the user chose it, and the other engines'
    refusals.

    chosen: the name of the chosen engine; None for none. engines: for each engine, why it refuses; None if it
    does not.
    """
    engine = shared_engine(chosen)
    code_for = None if engine is None else engine.code_for()
    rows = [("code for", code_for)] if code_for else []
    for name, reason in engines.items():
        says = f"refuses: {reason}" if reason else "chosen" if name == chosen else "runs it if asked for"
        rows.append((name, says))
    return TitledSection(f"engine: {chosen or 'none of those asked for'}", (facts_table(rows),))


def part_engine_tables(plan: Plan, asked: Asked) -> tuple[DocumentTable, ...]:
    """Makes a table for the explanation of one part: the engine that runs it, the precision that the user
    declared to be enough for its recurrence, and the reasons of the engines that refuse it. Returns no table
    if only one engine can be chosen.

    asked: the engine, or several in order, that the user asks for.
    """
    engines = engines_of(asked)
    if len(engines) < 2:
        return ()
    engine, refusals = placed_on(plan, engines)
    marks = [node.recur.precision for node in plan.traced.nodes if node.operation == "recur"]
    rows = [("engine", engine.name if engine else "none")]
    rows += [("enough", mark.dtype) for mark in marks if mark]
    rows += [(name, f"refuses: {reason}") for name, reason in refusals.items()]
    return (facts_table(rows),)


def facts_table(rows: Sequence[tuple[str, str]]) -> DocumentTable:
    """Makes a table of (name, fact) rows, with the column widths that all explanations share."""
    return DocumentTable(tuple(rows), FACTS, wraps=True)


def partition_sections(plan: Plan, chosen: str | None, size: CallSize | None) -> list[TitledSection]:
    """Makes the section of an explanation on how threads share a call of a plan (which operation runs when).
    Returns no section if the size of the call is not known, or if the threads of the chosen engine do not
    share calls.

    chosen: the name of the chosen engine; None for none. size: the size of the call.
    """
    engine = shared_engine(chosen)
    if engine is None or size is None:
        return []
    inner = f", inner sequences of {WORDS}" if engine.load(plan).inner_steps else ""
    title = f"threads, for {described_size(size)}{inner}"
    return [
        TitledSection(title, (str(partition(engine.load(plan), size, engine.threads(), engine.machine())),))
    ]


def kernel_sections(plan: Plan, asked: Asked, size: CallSize | None) -> list[TitledSection]:
    """Makes a section of an explanation for each engine that chooses kernels by the size of a call: those of
    a plan (which operation runs when), also if the engine refuses it for want of a device.

    asked: the engine, or several in order, that the user asks for. size: the size of the call; without one
    there is no section.
    """
    engines = [engine for engine in engines_of(asked) if isinstance(engine, KernelEngine)]
    if size is None:
        return []
    title = f"kernels, for {described_size(size)}"
    return [TitledSection(title, (facts_table(engine.kernels(plan, size)),)) for engine in engines]


def time_sections(schedule: Schedule, asked: Asked, size: CallSize | None) -> list[TitledSection]:
    """Makes a section of an explanation for each engine that chooses kernels by the size of a call: the time
    of each part of a schedule (a net cut into parts), and of all.

    asked, size: as for `kernel_sections`.
    """
    engines = [engine for engine in engines_of(asked) if isinstance(engine, KernelEngine)]
    if size is None:
        return []
    title = f"all parts, for {described_size(size)}"
    return [TitledSection(title, (facts_table(engine.parts(schedule, size)),)) for engine in engines]


def early_sections(schedule: Schedule, flag: int, asked: Asked, size: CallSize) -> list[TitledSection]:
    """Makes a section of an explanation for each engine with kernels of its own: those of a schedule (a net
    cut into parts) whose sequences may end early.

    flag: the position of the flag that ends them among the memories. asked: the engine, or several in order,
    that the user asks for. size: the size of the call.
    """
    engines = [engine for engine in engines_of(asked) if isinstance(engine, KernelEngine)]
    title = f"kernels, for {described_size(size)} that may end early"
    return [
        TitledSection(title, (facts_table(engine.early_ends(schedule, flag, size)),)) for engine in engines
    ]


def shared_items(schedule: Schedule, chosen: str | None, size: CallSize | None) -> Iterator[Item]:
    """Yields sections, with a gap ahead of each, on parts of a schedule (a net cut into parts) that can run
    at the same time.

    They compare the times of independent recurrences one after the other and at once, and of layers that read
    one another's outputs one after the other and as a wavefront, where a layer begins before the layer below
    it has ended. Nothing is yielded if the engine's threads do not share a call. chosen: the name of the
    chosen engine. size: the size of a call; `SHOWN` if None.
    """
    engine, asked, parts = shared_engine(chosen), size or SHOWN, schedule.parts
    if engine is None:
        return
    comparisons: list[tuple[Sequence[int], Concurrency | Wavefront]] = []
    for wave in waves_of(parts):
        plans = {n: plan for n in wave if (plan := parts[n].plan) and parts[n].extent == STEPS}
        loads = {index: load for index, plan in plans.items() if (load := engine.load(plan)).loop.weights}
        if len(loads) > 1:
            sizes = [asked] * len(loads)
            comparisons.append(
                ([*loads], at_once([*loads.values()], sizes, engine.threads(), engine.machine()))
            )
    for line in lines_of(parts):
        layers = [engine.load(plan) for n in line if (plan := parts[n].plan)]
        comparisons.append(
            (line, wavefront(layers, [asked] * len(layers), engine.threads(), engine.machine()))
        )
    for indices, comparison in comparisons:
        yield ""
        yield TitledSection(
            f"parts {', '.join(map(str, indices))}, for {described_size(asked)}", (str(comparison),)
        )


def stream_items(schedule: Schedule, asked: Asked, size: CallSize | None) -> Iterator[Item]:
    """Yields sections, with a gap ahead of each, on parts of a schedule (a net cut into parts) that engines
    with kernels of their own, as for a GPU, can run at the same time. Nothing is yielded without a size.

    asked: the engine, or several in order, that the user asks for. size: the size of a call.
    """
    if size is None:
        return
    for engine in engines_of(asked):
        if isinstance(engine, KernelEngine):
            for indices, how in engine.beside(schedule, size):
                yield ""
                title = f"parts {', '.join(map(str, indices))}, for {described_size(size)}"
                yield TitledSection(title, (facts_table([("GPU", how)]),))


def shared_engine(name: str | None) -> SharedEngine | None:
    """Returns the engine with this name if its threads share a call; None for other names."""
    engine = engine_named(name) if name is not None and is_engine(name) else None
    return engine if isinstance(engine, SharedEngine) else None


def described_size(size: CallSize) -> str:
    """Describes the size of a call in words, such as "8 sequences of 100 steps"."""
    rows = "one sequence" if size.rows == 1 else f"{size.rows} sequences"
    steps = f"up to {size.longest}" if size.steps < size.rows * size.longest else f"{size.longest}"
    return f"{rows} of {steps} steps"


# ---- the work of a plan ------------------------------------------------------------------------------------


def ends_section(facts: Explanation) -> TitledSection:
    """Makes the section on the arrays that a plan (which operation runs when) reads, by name and type:
    inputs, memories, statics (the same at every step), parameters. Its title says in which direction
    sequences run.
    """
    rows = [
        (name, ", ".join(f"{end} {element}" for end, element in getattr(facts, name).items()))
        for name in ("inputs", "memories", "statics", "parameters")
    ]
    title = f"each sequence from its {'last' if facts.reverse else 'first'} step"
    return TitledSection(title, (facts_table([row for row in rows if row[1]]),))


def work_sections(facts: Explanation) -> list[TitledSection]:
    """Makes the sections of an explanation on the work of a plan (which operation runs when): one for each
    stage, such as the loop over the steps, and one for the results.
    """
    results = tuple(f"{name} = {value}" for name, value in facts.results.items())
    return [*map(stage_section, facts.stages), TitledSection("results", results)]


def stage_section(stage: StageFacts) -> TitledSection:
    """Makes the section of an explanation on a stage, one of the times at which a plan's operations run: its
    costs, and its operations by phase (phases run one after the other).
    """
    inner = f", {amount(stage.inner, 'flop')} for each step of the inner sequences" if stage.inner else ""
    title = f"{TITLES[stage.name]}: {costs_text(stage.flops, stage.weights, stage.values)}{inner}"
    if len(stage.phases) == 1:
        return TitledSection(title, stage.phases[0])
    phases = enumerate(stage.phases, 1)
    return TitledSection(title, tuple(TitledSection(f"phase {index}", phase) for index, phase in phases))


def costs_text(flops: int, weights: int, values: int) -> str:
    """Formats the costs of some work: flops, bytes of parameters (weights), and bytes of other values."""
    parts = [amount(flops, "flop")]
    parts += [f"{amount(weights, 'B')} of weights"] if weights else []
    parts += [f"{amount(values, 'B')} of values"] if values else []
    return ", ".join(parts)
