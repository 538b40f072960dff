"""A plan as text: the work of each stage, its costs, the engine, and how threads divide a call."""

from collections.abc import Sequence
from textwrap import wrap

from stepnet.engines import engine_named, engine_names, engines_of, joinings
from stepnet.engines.base import SharedEngine
from stepnet.engines.placed import choice as placed_on
from stepnet.explain.expressions import amount
from stepnet.explain.facts import Asked, Explanation, Stage, choice, explanation, plan_explanation
from stepnet.explain.parts import described, parts_of
from stepnet.net.types import STEPS
from stepnet.plan.load import WORDS, Size
from stepnet.plan.partition import AtOnce, Wavefront
from stepnet.plan.plan import Plan
from stepnet.plan.schedule import Schedule
from stepnet.plan.waves import lines_of, waves_of
from stepnet.values.arguments import whole

WIDTH = 100
SHOWN = Size(1, 100, 100)
"""The size of the call whose time is estimated by default."""
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


def explain(schedule: Schedule, engine: Asked = "auto", size: Size | None = None) -> str:
    """The schedule as text: inputs and results, the chosen engine and the refusals, then the work of each
    stage. size: of a call, for which it also says how threads share it.

    For nested recurrences: the engine, the parts in the order they run, and the stages of each. A flop is one
    operation on a number. Weights are the parameters that are read each time, values all else that is read or
    written.
    """
    if schedule.whole is not None:
        facts = explanation(schedule, engine)
        return "\n".join(
            [
                *end_lines(facts),
                "",
                *engine_lines(facts.engine, facts.engines),
                *partition_lines(schedule.whole, facts.engine, size),
                *work_lines(facts),
            ]
        )
    chosen, engines = choice(schedule, engine)
    named = list(parts_of(schedule))
    width = max((len(number) for number, _, _ in named), default=0) + 2
    lines = [f"  {number:<{width}}{described(part, inside)}" for number, part, inside in named]
    texts = ["\n".join(["parts, in the order they run", *lines, *shared_lines(schedule, chosen, size)])]
    texts += ["\n".join(engine_lines(chosen, engines))]
    for number, part, _ in named:
        if part.plan is not None:
            facts = plan_explanation(part.plan, chosen, engines)
            placed = part_engine_lines(part.plan, engine)
            # The sizes of inner sequences are not those of the call.
            flat = size if part.extent == STEPS else None
            placed += partition_lines(part.plan, chosen, flat)
            texts.append("\n".join([f"part {number}:", *placed, *end_lines(facts), *work_lines(facts)]))
    return "\n\n".join(texts)


def joining_lines(schedule: Schedule, engine: Asked) -> list[str]:
    """The layers that an engine runs in one piece, and those that it refuses to, with the reason."""
    return [line for each in joinings(schedule, engine) for line in str(each).splitlines()]


def checked_size(rows: int | None, steps: int | None) -> Size | None:
    """The size of a call of so many sequences of so many steps each; None where neither is given."""
    if rows is None and steps is None:
        return None
    meaning = "the number of {}, for which explain says how threads share a call, is a whole number from 1 on"
    count = whole(1 if rows is None else rows, meaning.format("rows"), 1)
    longest = whole(SHOWN.longest if steps is None else steps, meaning.format("steps"), 1)
    return Size(count, longest, count * longest)


def partition_lines(plan: Plan, chosen: str | None, size: Size | None) -> list[str]:
    """How threads share a call of a size."""
    engine = shared_engine(chosen)
    if engine is None or size is None:
        return []
    text = str(engine.partition(plan, size))
    inner = f", inner sequences of {WORDS}" if engine.load(plan).words else ""
    return ["", f"threads, for {described_size(size)}{inner}", *indented(text)]


def shared_lines(schedule: Schedule, chosen: str | None, size: Size | None) -> list[str]:
    """Whether independent recurrences run at the same time, and how layers that read one another's outputs
    run as a wavefront.
    """
    engine = shared_engine(chosen)
    if engine is None:
        return []
    lines, asked, parts = list[str](), size or SHOWN, schedule.parts

    def weighed(places: Sequence[int], text: AtOnce | Wavefront) -> list[str]:
        title = f"parts {', '.join(map(str, places))}, for {described_size(asked)}"
        return ["", f"  {title}", *("  " + line for line in indented(str(text)))]

    for wave in waves_of(parts):
        plans = {n: plan for n in wave if (plan := parts[n].plan) and parts[n].extent == STEPS}
        plans = {place: plan for place, plan in plans.items() if engine.load(plan).loop.weights}
        if len(plans) > 1:
            lines += weighed([*plans], engine.at_once(list(plans.values()), asked))
    for line in lines_of(parts):
        lines += weighed(line, engine.wavefront([plan for n in line if (plan := parts[n].plan)], asked))
    return lines


def shared_engine(name: str | None) -> SharedEngine | None:
    """The engine with this name if its threads share a call; None for several engines, or for none."""
    engine = engine_named(name) if name in engine_names() else None
    return engine if isinstance(engine, SharedEngine) else None


def described_size(size: Size) -> str:
    """The size of a call in words."""
    rows = "one sequence" if size.filled == 1 else f"{size.filled} sequences"
    return f"{rows} of {size.longest} steps"


def indented(text: str) -> list[str]:
    """The lines of a text."""
    return [f"  {line}" for line in text.splitlines()]


def end_lines(facts: Explanation) -> list[str]:
    """The inputs and results of a plan."""
    lines = [f"each sequence from its {'last' if facts.reverse else 'first'} step"]
    for name in ("inputs", "memories", "statics", "parameters"):
        ends = [f"{end} {element}" for end, element in getattr(facts, name).items()]
        lines += wrapped(f"  {name:<12}", ", ".join(ends)) if ends else []
    return lines


def engine_lines(chosen: str | None, engines: dict[str, str | None]) -> list[str]:
    """The chosen engine, the processor if STEPNET_CPU names it, and the refusals of the other engines."""
    lines = [f"engine: {chosen or 'none of those asked for'}"]
    engine = shared_engine(chosen)
    code_for = None if engine is None else engine.code_for()
    lines += [f"  {'code for':<12}{code_for}"] if code_for else []
    for name, reason in engines.items():
        says = f"refuses: {reason}" if reason else "chosen" if name == chosen else "runs it if asked for"
        lines += wrapped(f"  {name:<12}", says)
    return lines


def part_engine_lines(plan: Plan, asked: Asked) -> list[str]:
    """The engine of one part and the refusals before it, where several engines are asked for."""
    engines = engines_of(asked)
    if len(engines) < 2:
        return []
    engine, refusals = placed_on(plan, engines)
    lines = [f"  {'engine':<12}{engine.name if engine else 'none'}"]
    marks = [node.recur.precision for node in plan.traced.nodes if node.operation == "recur"]
    lines += [f"  {'enough':<12}{mark.dtype}" for mark in marks if mark]
    for name, reason in refusals.items():
        lines += wrapped(f"  {name:<12}", f"refuses: {reason}")
    return lines


def work_lines(facts: Explanation) -> list[str]:
    """The work of each stage, and the results."""
    lines = list[str]()
    for stage in facts.stages:
        lines += ["", *stage_lines(stage)]
    return [*lines, "", "results", *(f"  {name} = {value}" for name, value in facts.results.items())]


def stage_lines(stage: Stage) -> list[str]:
    """The title of a stage with its costs, and its lines by phase."""
    costs = [amount(stage.flops, "flop")]
    costs += [f"{amount(stage.weights, 'B')} of weights"] if stage.weights else []
    costs += [f"{amount(stage.values, 'B')} of values"] if stage.values else []
    costs += [f"{amount(stage.inner, 'flop')} for each step of the inner sequences"] if stage.inner else []
    lines = [f"{TITLES[stage.name]}: {', '.join(costs)}"]
    for place, phase in enumerate(stage.phases, 1):
        indent = "  "
        if len(stage.phases) > 1:
            lines.append(f"  phase {place}")
            indent = "    "
        for entry in phase:
            *all_but_last, last = wrapped(f"{indent}{', '.join(entry.gives)} = ", entry.text)
            space = max(2, WIDTH - len(last) - len(entry.type))
            lines += [*all_but_last, f"{last}{' ' * space}{entry.type}"]
    return lines


def wrapped(head: str, text: str) -> list[str]:
    """A text after its head, on as many lines as it needs."""
    return wrap(text, WIDTH - 14, initial_indent=head, subsequent_indent=" " * len(head)) or [head]
