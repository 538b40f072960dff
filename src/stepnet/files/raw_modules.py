"""A module as a raw buffer with its description beside it: what a program hands to cuDNN or oneDNN."""

from pathlib import Path
from typing import Any, cast

from stepnet.errors import FileError
from stepnet.files import raw
from stepnet.files.model import Array, Model, Module
from stepnet.layout.registry import records


def read(path: Path) -> Model:
    """The one module of a buffer."""
    arrays, description = raw.read(path)
    layout: Any = description.get("layout")
    sizes: Any = description.get("sizes") or {}
    semantics: Any = description.get("semantics") or {}
    if layout not in records():
        raise FileError(f"{path}: its layout is {layout!r}, which is none; `stepnet layouts` lists all")
    if not isinstance(sizes, dict) or not isinstance(semantics, dict):
        raise FileError(f"{path}: sizes and semantics are objects by name")
    said: dict[str, Any] = cast("dict[str, Any]", semantics)
    module = Module("", (layout,), arrays, sizes=cast("dict[str, int]", sizes), semantics=said)
    return Model(str(path), (module,))


def write(path: Path, modules: tuple[Module, ...], rest: dict[str, Array], force: bool) -> None:
    """Writes one module: `weights.json`, and `weights.bin` beside it."""
    if len(modules) != 1 or rest:
        raise FileError(f"{path}: a raw buffer is of one recurrent module and nothing else")
    module = modules[0]
    description = {
        "layout": module.layout,
        "sizes": dict(module.sizes),
        "semantics": dict(module.semantics),
    }
    raw.write(path, dict(module.arrays), description, force)
