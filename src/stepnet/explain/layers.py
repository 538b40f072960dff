"""The plans of layers as text, and which of them an engine runs in one piece."""

from collections.abc import Iterator

from stepnet.engines import any_joins, checked_engine
from stepnet.errors import named
from stepnet.explain.facts import choice
from stepnet.explain.plan import checked_size, joining_lines, shared_lines
from stepnet.rnn.blank import blank_program
from stepnet.rnn.layers import Combined, LayersRun
from stepnet.rnn.program import Asked
from stepnet.rnn.recurrence import RNN

Sizes = tuple[int | None, int | None]
"""The rows and the steps of a call, as far as the caller said them."""


def explained(layer: Combined, run: LayersRun, engine: Asked, sizes: Sizes) -> str:
    """The plans of the parts, one under the other; in front the recurrences that the engine may join, and for
    a call of some rows and steps which of them run at the same time.

    Layers whose sequences may end early run one by one, so nothing is joined or shared.
    """
    texts, order, size = list(part_texts(layer, engine, sizes)), checked_engine(engine), checked_size(*sizes)
    if run.ends:
        return "\n\n".join(texts)
    joins, lines = any_joins(order), list[str]()
    if joins or size is not None:
        schedule = blank_program(run).schedule_for(order)
        lines += joining_lines(schedule, order) if joins else []
        shared = [] if size is None else shared_lines(schedule, choice(schedule, order)[0], size)
        lines += ["threads", *shared[1:]] if shared else []
    return "\n\n".join(["\n".join(lines), *texts] if lines else texts)


def part_texts(layer: Combined, engine: Asked, sizes: Sizes) -> Iterator[str]:
    """The plan of each part, under its name."""
    rows, steps = sizes
    for name, part in zip(layer.part_names, layer.layers, strict=True):
        with named(name):
            whole = isinstance(part, RNN)
            text = (
                part.explain(engine, rows=rows, steps=steps)
                if whole
                else "\n\n".join(part_texts(part, engine, sizes))
            )
        yield f"{name}:\n{text}"
