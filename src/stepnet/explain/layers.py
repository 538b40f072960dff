"""Collects the facts about the plans of layers and models."""

from collections.abc import Iterator
from typing import Any

from stepnet.compiler.plan.schedule import Schedule
from stepnet.explain.facts import Explanation, choice, explanation, plan_explanation, schedule_on
from stepnet.explain.part_names import parts_of
from stepnet.model.layers import Combined
from stepnet.model.program import Asked


def model_facts(model: Any, engine: Asked) -> Iterator[tuple[str, Explanation]]:
    """Yields (name, facts about what runs when, for an explanation) for each recurrence of a layer or graph.
    The name is such as "layer 0", "forward" or "part 1", and "" for a model that is one part.

    engine: the engine, or several in order, that the user asks for.
    """
    if isinstance(model, Combined):
        for name, part in zip(model.part_names, model.layers, strict=True):
            label = name.removeprefix("the ").removesuffix(" direction")
            yield from ((f"{label} {inner}".strip(), facts) for inner, facts in model_facts(part, engine))
        return
    schedule: Schedule = model.schedule
    if schedule.single_plan is not None:
        yield "", explanation(schedule, engine)
        return
    chosen = choice(schedule, engine)
    schedule = schedule_on(schedule, chosen[0])
    for number, part, _ in parts_of(schedule):
        if part.plan is not None:
            yield f"part {number}", plan_explanation(part.plan, *chosen)
