"""Two sides compared from the command line, each a file or a layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import LayoutError, named
from stepnet.files.formats import read
from stepnet.files.interchange import Choice, compare, converted, result
from stepnet.files.model import Module, bare, stacked
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.sizes import Sizes, shape_of
from stepnet.layout.verify import Verdict

SIZES = {"inputs": 5, "hidden": 7, "projected": 4}


def verdicts(
    one: str,
    other: str,
    choice: Choice,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, Verdict]:
    """How far two sides differ, module by module.

    Two files: the modules of each in order. A file and a layout: what the file holds, converted to the
    layout. Two layouts: random weights of the first, converted to the second. advance is called with the
    number of modules when they are done.
    """
    sides = [side in records() for side in (one, other)]
    if sides == [True, False]:
        return verdicts(other, one, choice, seed, advance)
    here = (random_module(record(one), choice, seed),) if sides[0] else modules(one, choice)
    if sides[1]:
        there = tuple(result(module, converted(module, other, False)) for module in here)
    else:
        there = modules(other, choice)
    if len(here) != len(there):
        raise LayoutError(f"{one} has {len(here)} recurrent modules, and {other} has {len(there)}")
    found: dict[str, Verdict] = {}
    for a, b in zip(here, there, strict=True):
        found[a.name if sides[1] else titled(a, b)] = compare(a, b)
        advance(1)
    return found


def titled(one: Module, other: Module) -> str:
    """What two modules that are compared are called together."""
    names = dict.fromkeys(bare(module.name) for module in (one, other))
    return " and ".join(name for name in names if name)


def modules(file: str, choice: Choice) -> tuple[Module, ...]:
    """The modules of a file."""
    if (
        not Path(file).exists()
        and "/" not in file
        and Path(file).suffix in {f".{name.partition('.')[2]}" for name in records()}
    ):
        record(file)
    model = read(file, choice.layout, choice.layouts)
    with named(file):
        return stacked(choice.modules(model), choice.stack)


def random_module(chosen: Record, choice: Choice, seed: int) -> Module:
    """Random weights of a layout, what it leaves open being as said, or the first that it allows."""
    known: dict[str, Any] = {**SIZES, **choice.sizes}
    if not chosen.projection:
        known["projected"] = None
    sizes = Sizes(**known)
    random = np.random.default_rng(seed)
    arrays = {
        entry.name: random.normal(size=shape_of(entry.pattern, sizes, entry.layer or 0)) / 2
        for entry in chosen.entries(sizes)
    }
    semantics = dict(choice.semantics)
    for name, setting in chosen.settings().items():
        if setting.usual is None and name not in semantics:
            semantics[name] = next(iter(setting.values)) if setting.values else 1.0
    kept = {name: size for name, size in vars(sizes).items() if size is not None}
    return Module("", (chosen.name,), arrays, sizes=kept, semantics=semantics)
