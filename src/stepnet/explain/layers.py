"""The plans of layers and models explained."""

from collections.abc import Iterator
from typing import Any

from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import checked_engine
from stepnet.errors import named
from stepnet.explain.document import TitledSection, headed
from stepnet.explain.facts import Explanation, choice, explanation, plan_explanation
from stepnet.explain.parts import parts_of
from stepnet.explain.plan import checked_size, schedule_sections, shared_items
from stepnet.explain.text import text
from stepnet.model.blank import blank_program
from stepnet.model.layers import Combined, LayersRun
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN

Sizes = tuple[int | None, int | None]
"""The rows and the steps of a call, as far as the caller said them."""


def explain_layers(layer: Combined, run: LayersRun, engine: Asked, sizes: Sizes) -> str:
    """The plans of the parts, one under the other; in front, for a call of some rows and steps, which of them
    run at the same time.

    Layers whose sequences may end early run one by one.
    """
    parts = list(part_sections(layer, engine, sizes))
    size, order = checked_size(*sizes), checked_engine(engine)
    if run.ends or size is None:
        return text(parts)
    schedule = blank_program(run).schedule_for(order)
    shared = [*shared_items(schedule, choice(schedule, order)[0], size)][1:]
    return text([TitledSection("threads", tuple(shared)), *parts] if shared else parts)


def part_sections(layer: Combined, engine: Asked, sizes: Sizes) -> Iterator[TitledSection]:
    """The plan of each part, under its name."""
    for name, part in zip(layer.part_names, layer.layers, strict=True):
        with named(name):
            if isinstance(part, RNN):
                sections = schedule_sections(part.schedule, checked_engine(engine), checked_size(*sizes))
            else:
                sections = list(part_sections(part, engine, sizes))
        yield from headed(f"{name}:", sections)


def model_facts(model: Any, engine: Asked) -> Iterator[tuple[str, Explanation]]:
    """The facts about each recurrence of a layer or a graph, with the name of its place."""
    if isinstance(model, Combined):
        for name, part in zip(model.part_names, model.layers, strict=True):
            place = name.removeprefix("the ").removesuffix(" direction")
            yield from ((f"{place} {inner}".strip(), facts) for inner, facts in model_facts(part, engine))
        return
    schedule: Schedule = model.schedule
    if schedule.whole is not None:
        yield "", explanation(schedule, engine)
        return
    chosen = choice(schedule, engine)
    for number, part, _ in parts_of(schedule):
        if part.plan is not None:
            yield f"part {number}", plan_explanation(part.plan, *chosen)
