"""The plans of layers as text, and which of them an engine runs in one piece."""

from collections.abc import Iterator

from stepnet.engines import any_joins, checked_engine
from stepnet.errors import named
from stepnet.rnn.blank import blank_program
from stepnet.rnn.explain import joining_lines
from stepnet.rnn.layers import Combined, LayersRun
from stepnet.rnn.program import Asked
from stepnet.rnn.recurrence import RNN


def explained(layer: Combined, run: LayersRun, engine: Asked) -> str:
    """The plans of the parts, one under the other; in front the recurrences that the engine may join.

    Layers whose sequences may end early run one by one, so nothing is joined.
    """
    texts, order = list(part_texts(layer, engine)), checked_engine(engine)
    if run.ends or not any_joins(order):
        return "\n\n".join(texts)
    lines = joining_lines(blank_program(run).schedule_for(order), order)
    return "\n\n".join(["\n".join(lines), *texts] if lines else texts)


def part_texts(layer: Combined, engine: Asked) -> Iterator[str]:
    """The plan of each part, under its name."""
    for name, part in zip(layer.part_names, layer.layers, strict=True):
        with named(name):
            text = part.explain(engine) if isinstance(part, RNN) else "\n\n".join(part_texts(part, engine))
        yield f"{name}:\n{text}"
