"""Explanation of the plans of layers and models."""

from collections.abc import Iterator
from typing import Any

from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import Order
from stepnet.errors import named
from stepnet.explain.document import TitledSection, headed
from stepnet.explain.facts import Explanation, choice, explanation, plan_explanation
from stepnet.explain.part_names import parts_of
from stepnet.explain.plan import checked_size, schedule_sections, shared_items
from stepnet.explain.text import text
from stepnet.model.combination import Combination
from stepnet.model.model import Model
from stepnet.model.program import Asked

Sizes = tuple[int | None, int | None]
"""The number of rows and of steps of a call; None for a number that the caller did not give."""


def explain_model(model: Model, order: Order, sizes: Sizes) -> str:
    """Formats the plan of a model as text; for layers, the plan of each, one under the other."""
    size = checked_size(*sizes)
    if not isinstance(model, Combination):
        return text(schedule_sections(model.program.schedule_for(order), order, size))
    parts = list(part_sections(model, order, size))
    if model.ends_early or size is None:
        return text(parts)
    schedule = model.program.schedule_for(order)
    shared = [*shared_items(schedule, choice(schedule, order)[0], size)][1:]
    return text([TitledSection("threads", tuple(shared)), *parts] if shared else parts)


def part_sections(layer: Combination, order: Order, size: CallSize | None) -> Iterator[TitledSection]:
    """Yields the sections on the plan of each part of a layer, under the part's name."""
    for name, part in zip(layer.part_names, layer.layers, strict=True):
        with named(name):
            if isinstance(part, Combination):
                sections = list(part_sections(part, order, size))
            else:
                sections = schedule_sections(part.schedule, order, size)
        yield from headed(f"{name}:", sections)


def model_facts(model: Any, engine: Asked) -> Iterator[tuple[str, Explanation]]:
    """Yields (name of its place, facts) for each recurrence of a layer or a graph."""
    if isinstance(model, Combination):
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
