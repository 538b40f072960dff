"""Models for the commands: the model of a file, its name in a library, and its recurrences."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def runnable(file: Path, chosen: Any, recurrent_only: bool, trust: bool) -> Any:
    """The `FileModel` of a file, or the runnable of a library that is trusted."""
    if trust or file.suffix == ".so":
        from stepnet.build import load as load_library

        return load_library(file, trust=trust).runnable()
    from stepnet.model_file import read_model

    return read_model(file, chosen, recurrent_only=recurrent_only)


def library_name(file: Path) -> str:
    """A name for the library of a file.

    >>> library_name(Path("models/speech 2.onnx")), library_name(Path("2nd.keras"))
    ('speech_2', 'model_2nd')
    """
    name = re.sub(r"[^0-9A-Za-z]+", "_", file.stem.encode("ascii", "ignore").decode()).strip("_")[:50]
    return name if name[:1].isalpha() else f"model_{name}".rstrip("_")


def explanations(model: Any, engine: str) -> Iterator[tuple[str, Any]]:
    """The facts about each recurrence of a model, with the name of its place."""
    from stepnet.explain.facts import choice, explanation, plan_explanation
    from stepnet.explain.parts import parts_of
    from stepnet.graph.graph import Graph

    if not isinstance(model, Graph):
        yield from ((name, explanation(rnn.schedule, engine)) for name, rnn in parts(model))
    elif model.schedule.whole is not None:
        yield "", explanation(model.schedule, engine)
    else:
        chosen = choice(model.schedule, engine)
        for number, part, _ in parts_of(model.schedule):
            if part.plan is not None:
                yield f"part {number}", plan_explanation(part.plan, *chosen)


def parts(layer: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every recurrence of a layer, each with the name of its place in the layer."""
    from stepnet.rnn.compose import DIRECTIONS, Bidirectional, Stack

    if isinstance(layer, Bidirectional):
        inner = zip(DIRECTIONS, layer.layers, strict=True)
    elif isinstance(layer, Stack):
        inner = ((f"layer {place}", inner_layer) for place, inner_layer in enumerate(layer.layers))
    else:
        yield name, layer
        return
    for title, inner_layer in inner:
        yield from parts(inner_layer, f"{name} {title}".strip())
