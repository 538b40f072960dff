"""The models that commands are given: what a file holds, ready to run, and by what name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def load(file: Path, chosen: Any) -> tuple[Any, dict[str, list[str]]]:
    """The recurrent layers of a model file, ready to run, and notes by module."""
    from stepnet.errors import named
    from stepnet.files.account import check_merges, check_row
    from stepnet.files.formats import read
    from stepnet.files.model import stacked
    from stepnet.files.verified import weights
    from stepnet.rnn.compose import Stack

    model = read(file, chosen.layout, chosen.layouts)
    selected = chosen.checked_modules(model)
    with named(str(file)):
        modules = stacked(selected, chosen.stack)
        if chosen.module is None:
            check_row(modules, file, chosen.stack)
        check_merges(modules)
        layers = [weights(module).layers() for module in modules]
    notes = {
        module.name: [*module.notes, *([f"it {module.alone}"] if module.alone else [])] for module in modules
    }
    return layers[0] if len(layers) == 1 else Stack(layers), {
        name: notes[name] for name in notes if notes[name]
    }


def runnable(file: Path, chosen: Any, engine: str, trust: bool) -> tuple[Any, dict[str, Any]]:
    """What runs sequences of a Parquet file: a model, or a library that is trusted; and notes by module."""
    from stepnet.files import parquet

    if trust or file.suffix == ".so":
        from stepnet.build import load as load_library

        return load_library(file, trust=trust).runnable(), {}
    layer, notes = load(file, chosen)
    return parquet.Runnable.of(layer, engine), notes


def whole_graph(file: Path) -> Any:
    """The graph of a file that holds one; None for other files."""
    if file.suffix == ".onnx":
        from stepnet.onnx import load as load_onnx

        return load_onnx(file)
    if file.suffix in (".pdmodel", ".json") and file.with_suffix(".pdiparams").exists():
        from stepnet.paddle import load as load_paddle

        return load_paddle(file)
    return None


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
