"""Two sides compared from the command line, each a file or a layout."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import LayoutError, named
from stepnet.files.account import check_drop
from stepnet.files.formats import read
from stepnet.files.interchange import Choice, compare, converted, result
from stepnet.files.model import Module, bare, stacked, unwrapped
from stepnet.layout.options import option
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
    dtype: str | None = None,
) -> dict[str, Verdict]:
    """How far two sides differ, module by module.

    Two files: the modules of the same names, or all in order. A file and a layout: what the file holds,
    converted to the layout, in the dtype said. Two layouts: random weights of the first, converted to the
    second. advance is
    called with the number of modules when they are done.
    """
    sides = [side in records() for side in (one, other)]
    if sides == [True, False]:
        return verdicts(other, one, choice, seed, advance, dtype)
    files = [file for file, is_layout in zip((one, other), sides, strict=True) if not is_layout]
    meant = modules(files, choice)
    here = meant[0] if meant else (random_module(record(one), choice, seed),)
    if sides[1]:
        there = tuple(result(module, converted(module, other, False, dtype)) for module in here)
    else:
        there = meant[1]
    if len(here) != len(there):
        raise LayoutError(
            f"{one} has {len(here)} recurrent modules, and {other} has {len(there)}: "
            f"say {option('module')} for one of each file with several"
        )
    found: dict[str, Verdict] = {}
    for a, b in paired(here, there):
        found[a.name if sides[1] else titled(a, b)] = compare(a, b)
        advance(1)
    return found


def paired(here: Sequence[Module], there: Sequence[Module]) -> Iterable[tuple[Module, Module]]:
    """The modules of two sides that are compared: those of the same names, if all have them, or in order."""
    by_name = {unwrapped(module.name): module for module in there}
    names = [unwrapped(module.name) for module in here]
    alike = len({*names}) == len(names) and {*names} == by_name.keys()
    return zip(here, (by_name[name] for name in names) if alike else there, strict=True)


def titled(one: Module, other: Module) -> str:
    """What two modules that are compared are called together."""
    names = dict.fromkeys(bare(module.name) for module in (one, other))
    return " and ".join(name for name in names if name)


def modules(files: Sequence[str], choice: Choice) -> list[tuple[Module, ...]]:
    """The modules of each file; where one has a single module, this is the one meant."""
    cells = {f".{name.partition('.')[2]}" for name in records()}
    for file in files:
        if not Path(file).exists() and "/" not in file and Path(file).suffix in cells:
            record(file)  # which says what layouts there are
    models = [read(file, choice.layout, choice.layouts) for file in files]
    with named(" and ".join(dict.fromkeys(files))):
        check_drop(choice.drop, models)
    both: list[tuple[Module, ...]] = []
    for model in models:
        own = replace(choice, drop=[name for name in choice.drop if name in model.rest])
        if len(model.modules) < 2:
            own = replace(own, module=None, order=())
        meant = own.checked_modules(model, beside=models)
        with named(model.path):
            both.append(stacked(meant, choice.stack))
    return both


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
