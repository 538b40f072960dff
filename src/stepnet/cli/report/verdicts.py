"""Compares two sides from the command line, each a file or a layout."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.arrow.folders.running import sequences_of
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, LayoutError, ModelError, named
from stepnet.layout.files.account import Account, check_drop
from stepnet.layout.files.choice import LayoutChoice
from stepnet.layout.files.contents import is_paddle_program
from stepnet.layout.files.formats import read
from stepnet.layout.files.interchange import compare, converted, converted_module
from stepnet.layout.files.model import FileContents, Module, bare, unwrapped
from stepnet.layout.files.stacks import stacked
from stepnet.layout.files.verified import weights
from stepnet.layout.options import option
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.sizes import Sizes, shape_of
from stepnet.layout.verify import Verdict
from stepnet.model.file import FileModel, is_graph, may_fix_steps, read_model
from stepnet.model.stored import ENDING
from stepnet.model.verdict import verify_models
from stepnet.ragged import Ragged

SIZES = {"inputs": 5, "hidden": 7, "projected": 4}


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison of two files or layouts.

    verdicts: by module. left_out: the names of layers and arrays that were not compared. whole: the verdict
    on the whole models; None if they were not run. unverified: why they were not run, if both sides specify
    whole models.
    """

    verdicts: Mapping[str, Verdict]
    left_out: tuple[str, ...] = ()
    whole: Verdict | None = None
    unverified: str = ""


def compare_sides(
    first: str,
    second: str,
    choice: LayoutChoice,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
    dtype: str | None = None,
    recurrent_only: bool = False,
    any_steps: bool = False,
) -> Comparison:
    """Compares the weights or models of two sides, each a file or the name of a layout (the arrangement of
    weights of one framework). choice: how to read files, and which layers. seed: the seed of random sequences
    and weights.

    Two files that specify whole models are compared whole, unless `recurrent_only`, and so are their
    recurrent layers if they correspond. Of other files, modules of equal names are compared, or else all in
    order. Of a file and a layout, each module is compared with its conversion to the layout, in a dtype. Of
    two layouts, random weights of the first are compared with their conversion to the second. advance: called
    with the number of modules just done. any_steps: whether no number in the files depends on the number of
    steps that they fix.
    """
    sides = [name in records() for name in (first, second)]
    if sides == [True, False]:
        first, second = second, first
    if not all(sides) and any(sides):
        if is_saved(first):
            raise LayoutError(f"{first}: a saved model has no layouts: give another file, not {second}")
        models, chosen = modules([first], choice)
        comparison = compare_with_layout(chosen[0], second, dtype, advance)
        return Comparison(comparison, left_out(models, chosen))
    if all(sides):
        return Comparison(
            compare_with_layout((random_module(record(first), choice, seed),), second, dtype, advance)
        )
    return compare_files((first, second), choice, seed, advance, recurrent_only, any_steps)


def compare_with_layout(
    originals: Sequence[Module], layout: str, dtype: str | None, advance: Callable[[int], None]
) -> dict[str, Verdict]:
    """Compares modules (recurrent layers) of a file with their conversions to a layout (the arrangement of
    weights of one framework); returns verdicts by name of the module.

    dtype: the dtype of the conversion; None for that of the weights. advance: called with 1 after each
    module.
    """
    results: dict[str, Verdict] = {}
    for module in originals:
        results[module.name] = compare(
            module, converted_module(module, converted(module, layout, False, dtype))
        )
        advance(1)
    return results


def compare_files(
    files: tuple[str, str],
    choice: LayoutChoice,
    seed: int,
    advance: Callable[[int], None],
    recurrent_only: bool,
    any_steps: bool,
) -> Comparison:
    """Compares two files for `stepnet verify`: whole models if possible, and their recurrent layers. If only
    whole models correspond, the layers are left out; without whole models, unequal numbers of layers are an
    error.

    choice: the layers to compare, and how to read them. seed: the seed of the random sequences. advance:
    called with 1 after each module. recurrent_only: compare no whole models. any_steps: whether no number in
    the files depends on the number of steps that they fix.
    """
    layers_only = recurrent_only or choice.module is not None or bool(choice.order)
    whole_models = [] if layers_only else [whole_model(file, choice, any_steps) for file in files]
    loaded = [model for model in whole_models if isinstance(model, FileModel)]
    reasons = [model for model in whole_models if isinstance(model, str)]
    whole, unverified = None, "; ".join(reasons) if None not in whole_models else ""
    if len(loaded) == 2:
        try:
            whole = verify_models(loaded[0], loaded[1], seed=seed)
        except (InputError, LayoutError) as error:
            unverified = str(error)
        if any(is_paddle_program(Path(file)) for file in files) or not has_layers(files, choice):
            return Comparison({}, (), whole, unverified)
    if unverified and (any(map(is_saved, files)) or not any(has_modules(files, choice))):
        return Comparison({}, unverified=unverified)
    if saved := next(filter(is_saved, files), None):
        raise LayoutError(f"{saved}: a saved model has no recurrent layers of a layout: compare it whole")
    models, chosen = modules(files, choice)
    if whole is not None and not correspond(*chosen):
        return Comparison({}, (), whole, unverified)
    if len(chosen[0]) != len(chosen[1]):
        raise LayoutError(
            f"{unverified and f'the whole models were not compared: {unverified}; '}"
            f"{files[0]} has {len(chosen[0])} recurrent modules, and {files[1]} has {len(chosen[1])}: "
            f"choose one layer of each with {option('module')}"
        )
    results: dict[str, Verdict] = {}
    for a, b in pair_modules(*chosen):
        results[comparison_title(a, b)] = compare(a, b)
        advance(1)
    return Comparison(results, () if whole else left_out(models, chosen), whole, unverified)


def compare_on_data(
    files: tuple[str, str],
    choice: LayoutChoice,
    inputs: Sequence[str],
    column: str | None,
    advance: Callable[[int], None] = lambda _: None,
    recurrent_only: bool = False,
    any_steps: bool = False,
) -> Comparison:
    """Compares the models of two files over the sequences of Parquet and Arrow files.

    Each model is run as by `stepnet run`. With `recurrent_only`, with a chosen module, or if one file holds
    only weights, the recurrent layers of both are run, as stacks. choice: the user's statements about the
    files. inputs: paths, folders or globs. column: the list column in them; None for the only one. advance:
    called with the number of sequences just run. any_steps: whether no number in the files depends on the
    number of steps that they fix.
    """
    layouts = [name for name in files if name in records()]
    if layouts:
        raise LayoutError(f"--inputs needs two model files, and {layouts[0]} is a layout")
    layers_only = recurrent_only or choice.module is not None or any(map(is_weights, files, repeat(choice)))
    try:
        loaded = [data_model(file, choice, layers_only, any_steps) for file in files]
    except (LayoutError, ModelError) as error:
        return Comparison({}, unverified=str(error))

    try:
        verdict = verify_models(loaded[0], loaded[1], samples_of(inputs, loaded[0], column, advance))
    except LayoutError as error:
        return Comparison({}, unverified=str(error))
    names = tuple(dict.fromkeys(name for model in loaded for name in model.left_out))
    return Comparison({"recurrent layers": verdict}, names) if layers_only else Comparison({}, whole=verdict)


def samples_of(
    inputs: Sequence[str],
    model: FileModel,
    column: str | None,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Ragged]:
    """Yields the sequences of Parquet and Arrow files on which a model is compared with another, in batches.

    inputs, column: paths, folders or globs, and the list column in them; None for the only one. advance:
    called with the number of sequences of each batch after it.
    """
    for sequences in sequences_of(inputs, model, column):
        yield sequences
        advance(len(sequences))


def data_model(file: str, choice: LayoutChoice, recurrent_only: bool, any_steps: bool) -> FileModel:
    """Reads the model of a file to run it over data.

    choice: the user's statements about the file. recurrent_only: whether to read only the recurrent layers; a
    module that the user chose is then ignored if the file has only one. any_steps: whether no number in the
    file depends on the number of steps, if it fixes one.
    """
    path, own = Path(file), choice
    if recurrent_only:
        model = read(path, choice.layout, choice.layouts)
        if len(model.modules) + len(model.unread()) < 2:
            own = replace(choice, module=None, order=())
    any_steps = any_steps and may_fix_steps(path)
    return read_model(path, own, recurrent_only=recurrent_only, any_steps=any_steps)


def is_weights(file: str, choice: LayoutChoice) -> bool:
    """Tells if a file holds only weights; its architecture is unknown then, so it cannot be run. choice: the
    user's statements on how the file's weights are arranged.
    """
    path = Path(file)
    return not (is_graph(path) or is_saved(file)) and bool(
        read(path, choice.layout, choice.layouts).unspecified
    )


def whole_model(file: str, choice: LayoutChoice, any_steps: bool) -> FileModel | str | None:
    """Reads the whole model of a file, to compare it with another one (for `stepnet verify`). Returns the
    reason, as text, if the model cannot be run, and None for a file of weights.

    any_steps: whether no number in the file depends on the number of steps, if it fixes one.
    """
    if is_weights(file, choice):
        return None
    try:
        return read_model(file, choice, any_steps=any_steps and may_fix_steps(Path(file)))
    except (LayoutError, ModelError) as error:
        return str(error)


def is_saved(file: str) -> bool:
    """Tells if a file is one of `model.save`, which has a whole model and no layouts."""
    return Path(file).suffix == ENDING


def has_modules(files: Sequence[str], choice: LayoutChoice) -> Iterator[bool]:
    """Tells of each file if it has recurrent layers, known or not. choice: the user's statements."""
    for file in files:
        model = read(file, choice.layout, choice.layouts)
        yield bool(model.modules or model.unread())


def has_layers(files: Sequence[str], choice: LayoutChoice) -> bool:
    """Tells if both files have recurrent layers whose weights are known, so that layers can be compared.
    choice: the user's statements on how the files' weights are arranged.
    """
    if any(map(is_saved, files)):
        return False
    models = [read(file, choice.layout, choice.layouts) for file in files]
    return all(model.modules and not model.unread() for model in models)


def correspond(first: Sequence[Module], second: Sequence[Module]) -> bool:
    """Tells if the recurrent layers (modules) of two files are equal in number and, pair by pair, in sizes,
    so that they can be compared.
    """
    if len(first) != len(second):
        return False
    pairs = [
        [weights(module).runner_weights().sizes for module in pair] for pair in pair_modules(first, second)
    ]
    return all(one == other for one, other in pairs)


def left_out(models: Sequence[FileContents], chosen: Sequence[Sequence[Module]]) -> tuple[str, ...]:
    """Lists the names of layers and arrays that no comparison covers. models: the contents of files. chosen:
    the modules of each that are compared. Layers that do not affect the result are not listed.
    """
    names = list[str]()
    for model, compared in zip(models, chosen, strict=True):
        account = Account.of(model, compared, None)
        names += [name for name in account.layers if name not in model.neutral] + list(account.left)
    return tuple(dict.fromkeys(names))


def pair_modules(first: Sequence[Module], second: Sequence[Module]) -> Iterable[tuple[Module, Module]]:
    """Pairs the modules (recurrent layers) of two files to compare them: by names, if these are the same in
    both without the prefixes that wrappers of a model add, or else in order.
    """
    by_name = {unwrapped(module.name): module for module in second}
    names = [unwrapped(module.name) for module in first]
    alike = len({*names}) == len(names) and {*names} == by_name.keys()
    return zip(first, (by_name[name] for name in names) if alike else second, strict=True)


def comparison_title(first: Module, second: Module) -> str:
    """Returns the title of the comparison of two modules: their common name, or both names."""
    names = dict.fromkeys(bare(module.name) for module in (first, second))
    return " and ".join(name for name in names if name)


def modules(
    files: Sequence[str], choice: LayoutChoice
) -> tuple[list[FileContents], list[tuple[Module, ...]]]:
    """Reads files to compare; returns their contents, and the modules of each that `choice` selects.

    The choice of a module does not apply to a file with only one.
    """
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


def random_module(chosen: Record, choice: LayoutChoice, seed: int) -> Module:
    """Makes a recurrent layer with random weights, by `seed`, in the layout `chosen` (the arrangement of
    weights of one framework), so that its conversion to another layout can be run and compared.

    choice: sizes and settings. Other sizes are those of `SIZES`; settings without a usual value get the first
    that is allowed, or 1.
    """
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
    known_sizes = {name: size for name, size in vars(sizes).items() if size is not None}
    return Module("", (chosen.name,), arrays, sizes=known_sizes, semantics=semantics)
