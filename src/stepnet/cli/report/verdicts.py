"""Two sides compared from the command line, each a file or a layout."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import LayoutError, named
from stepnet.files.account import Account, check_drop
from stepnet.files.choice import Choice
from stepnet.files.formats import read
from stepnet.files.interchange import compare, converted, result
from stepnet.files.model import Model, Module, bare, unwrapped
from stepnet.files.stacks import stacked
from stepnet.layout.options import option
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.sizes import Sizes, shape_of
from stepnet.layout.verify import Verdict

SIZES = {"inputs": 5, "hidden": 7, "projected": 4}


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sides.

    verdicts: by module. left_out: the names of the layers and arrays that were not compared. unverified: why
    the models as a whole were not compared, if both sides specify more than their recurrent layers.
    """

    verdicts: Mapping[str, Verdict]
    left_out: tuple[str, ...] = ()
    unverified: str = ""


def verdicts(
    first: str,
    second: str,
    choice: Choice,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
    dtype: str | None = None,
) -> Comparison:
    """How far two sides differ, module by module.

    Of two files, the modules of the same names are compared, or all in order. Of a file and a layout, the
    modules of the file and their conversions to the layout, in a dtype. Of two layouts, random weights of the
    first and their conversion to the second. advance: called with the number of modules just done.
    """
    sides = [name in records() for name in (first, second)]
    if sides == [True, False]:
        return verdicts(second, first, choice, seed, advance, dtype)
    files = [file for file, is_layout in zip((first, second), sides, strict=True) if not is_layout]
    models, chosen = modules(files, choice)
    first_modules = chosen[0] if chosen else (random_module(record(first), choice, seed),)
    if sides[1]:
        second_modules = tuple(
            result(module, converted(module, second, False, dtype)) for module in first_modules
        )
    else:
        second_modules = chosen[1]
    if len(first_modules) != len(second_modules):
        raise LayoutError(
            f"{first} has {len(first_modules)} recurrent modules, and {second} has {len(second_modules)}: "
            f"say {option('module')} for one of each file with several"
        )
    results: dict[str, Verdict] = {}
    for a, b in paired(first_modules, second_modules):
        results[a.name if sides[1] else titled(a, b)] = compare(a, b)
        advance(1)
    left_out, whole = list[str](), len(models) == 2 and choice.module is None and not choice.order
    for model, compared in zip(models, chosen, strict=True):
        account = Account.of(model, compared, None)
        left_out += [name for name in account.layers if name not in model.neutral] + list(account.left)
        whole = whole and not model.unspecified
    left_out = list(dict.fromkeys(left_out))
    why = "the models also compute what was left out, which was not compared" if whole and left_out else ""
    return Comparison(results, tuple(left_out), why)


def paired(first: Sequence[Module], second: Sequence[Module]) -> Iterable[tuple[Module, Module]]:
    """The pairs of modules to compare: those of the same names if both sides have the same, else in order."""
    by_name = {unwrapped(module.name): module for module in second}
    names = [unwrapped(module.name) for module in first]
    alike = len({*names}) == len(names) and {*names} == by_name.keys()
    return zip(first, (by_name[name] for name in names) if alike else second, strict=True)


def titled(first: Module, second: Module) -> str:
    """The title of the comparison of two modules."""
    names = dict.fromkeys(bare(module.name) for module in (first, second))
    return " and ".join(name for name in names if name)


def modules(files: Sequence[str], choice: Choice) -> tuple[list[Model], list[tuple[Module, ...]]]:
    """The contents of each file, and its chosen modules; the only module of a file is always chosen."""
    cells = {f".{name.partition('.')[2]}" for name in records()}
    for file in files:
        if not Path(file).exists() and "/" not in file and Path(file).suffix in cells:
            record(file)  # raises an error that lists the layouts
    models = [read(file, choice.layout, choice.layouts) for file in files]
    with named(" and ".join(dict.fromkeys(files))):
        check_drop(choice.drop, models)
    both: list[tuple[Module, ...]] = []
    for model in models:
        own = replace(choice, drop=[name for name in choice.drop if name in model.rest])
        if len(model.modules) + len(model.unread()) < 2:
            own = replace(own, module=None, order=())
        chosen = own.checked_modules(model, beside=models)
        with named(model.path):
            both.append(stacked(chosen, choice.stack))
    return models, both


def random_module(chosen: Record, choice: Choice, seed: int) -> Module:
    """Random weights of a layout; open settings have the stated value, or the first one that is allowed."""
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
