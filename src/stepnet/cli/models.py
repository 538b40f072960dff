"""The models that commands are given: what a file holds, ready to run, and by what name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def runnable(file: Path, chosen: Any, trust: bool) -> tuple[Any, dict[str, Any]]:
    """What runs sequences of a Parquet file: a model, or a library that is trusted; and notes by module."""
    if trust or file.suffix == ".so":
        from stepnet.build import load as load_library

        return load_library(file, trust=trust).runnable(), {}
    from stepnet.files.layers import layers_of

    return layers_of(file, chosen)


def library_name(file: Path) -> str:
    """A name for the library of a file.

    >>> library_name(Path("models/speech 2.onnx")), library_name(Path("2nd.keras"))
    ('speech_2', 'model_2nd')
    """
    name = re.sub(r"[^0-9A-Za-z]+", "_", file.stem.encode("ascii", "ignore").decode()).strip("_")[:50]
    return name if name[:1].isalpha() else f"model_{name}".rstrip("_")


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
