"""Conversion of model files: read, convert every recurrent module, write, and verify the new file.

speech.pt  --read-->  FileContents  --convert each module-->  Modules of the target  --write-->  speech.keras
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ConversionError, InputError, LayoutError, named
from stepnet.layout.convert import Conversion, convert, first_fitting, refused
from stepnet.layout.files.account import (
    Account,
    check_merges,
    check_stack,
    notes_on_infinities,
)
from stepnet.layout.files.choice import LayoutChoice
from stepnet.layout.files.formats import Format, kind, read, writable, write
from stepnet.layout.files.model import Array, FileContents, Module, bare, family
from stepnet.layout.files.optimisers import optimiser_state_names
from stepnet.layout.files.others import Others, RenamedArray, others
from stepnet.layout.files.stacks import stacked
from stepnet.layout.files.verified import read_back, verify_file, weights
from stepnet.layout.options import OPTIONS, option
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.report import Report
from stepnet.layout.verify import Verdict, verify

RESTS = ("drop", "copy")
GIVES = {"last_only": "it returns only its last output", "states": "it also returns its final states"}


@dataclass(frozen=True)
class Written:
    """The result of a conversion of a file.

    Attributes:
        path: The new file.
        reports: The report of each module, by its name.
        account: The fate of everything in the old file.
        verdicts: The verdicts, if asked for: by module, or for the whole file under "" if it is a model.
        notes: The properties that the new file does not express, by module.
        prefix: The prefix of the names of the only module's arrays in the old file; the new file drops it.
    """

    path: str
    reports: Mapping[str, Report]
    account: Account
    verdicts: Mapping[str, Verdict] = field(default_factory=dict[str, Verdict])
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    prefix: str = ""


def convert_file(
    source: str | Path,
    target: str,
    output: str | Path,
    *,
    choice: LayoutChoice | None = None,
    exact: bool = False,
    rest: str = "drop",
    strip: str = "",
    force: bool = False,
    check: bool = False,
    dtype: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Written:
    """Converts the recurrent modules of a file to another layout (a framework's arrangement of weights),
    writes them to `output`, and reports on it.

    The file appears under its name only when it is complete.

    Args:
        source: The file to convert.
        target: A layout, or a framework, of which each module gets the first layout that can express it.
        output: The new file.
        choice: What the user states about the source.
        exact: Whether to refuse a conversion that rounds numbers.
        rest: "copy" also writes the other arrays: the arrays of layers that are recognised with certainty by
            the conventions of the target framework, all others unchanged, but not the state of an optimiser.
            "drop" leaves them out.
        strip: A prefix that is removed from names.
        force: Whether to replace an existing file.
        check: Whether to run the new file and compare its outputs.
        dtype: The dtype of the new arrays; by default that of the source.
        advance: Called with the number of modules that were just converted.

    Raises:
        LayoutError: For arrays that do not fit a layout, and for what neither file nor choice specifies.
        ConversionError: For a conversion that is impossible, or refused by `exact`.
        FileError: For files that are damaged, foreign, missing or already there.
    """
    if rest not in RESTS:
        raise LayoutError(f"rest is {' or '.join(RESTS)}, not {rest!r}")
    choice = choice or LayoutChoice()
    file_format = writable(output, force)  # raises an error for the output before any work
    model = read(source, choice.layout, choice.layouts)
    modules = choice.checked_modules(model, copied=rest == "copy")
    with named(str(source)):
        if any(layout.layered for layout in targets(target, modules[0])):
            modules = stacked(modules, choice.stack)
        if not file_format.of_arrays:
            if choice.module is None:  # a module chosen by name need not fit others
                check_stack(modules, output, choice.stack)
            check_merges(modules)
            check_order(modules, output, file_format)
        conversions: list[tuple[Module, Conversion]] = []
        for module in modules:
            with named(bare(module.name) or "the weights"):
                conversions.append((module, converted(module, target, exact, dtype)))
            advance(1)
        new_modules = tuple(converted_module(module, conversion) for module, conversion in conversions)
        copied_others = converted_others(model, new_modules, modules, file_format) if rest == "copy" else None
        written, copied_others = (
            without_prefix(strip, new_modules, copied_others) if strip else (new_modules, copied_others)
        )
    try:
        write(output, written, copied_others.arrays if copied_others else {}, force=force)
    except InputError as error:
        raise type(error)(f"{output}: {error}") from None
    reports = {module.name: conversion.report for module, conversion in conversions}
    is_model = file_format.is_model(Path(output))
    notes = {
        new.name: (
            *new.notes,
            *notes_on_overrides(model, old),
            *notes_on_infinities(old),
            *notes_on_losses(new, file_format, is_model),
        )
        for old, new in zip(modules, new_modules, strict=True)
    }
    account = Account.of(model, modules, copied_others)
    is_alone = file_format.of_arrays and len(written) == 1 and not (copied_others and copied_others.arrays)
    verdicts = verified(modules, written, output, file_format) if check else {}
    prefix = file_format.front(written[0]) if is_alone else ""
    return Written(str(output), reports, account, verdicts, notes, prefix)


def without_prefix(
    strip: str, modules: tuple[Module, ...], other_arrays: Others | None
) -> tuple[tuple[Module, ...], Others | None]:
    """Removes the prefix `strip`, which the user states, from the names of modules (recurrent layers) and of
    other arrays; returns both. Arrays that only lose the prefix are recorded as moved, for the report. Raises
    `LayoutError` if no name has the prefix, or if two arrays would get the same name.

    other_arrays: the other arrays of the new file; None if it has none.
    """
    arrays = other_arrays.arrays if other_arrays else dict[str, Array]()
    if not any(name.startswith(strip) for name in (*arrays, *(module.name for module in modules))):
        raise LayoutError(f"no name that is written begins with {strip!r}: there is nothing to strip")
    renamed = tuple(
        replace(
            module,
            name=module.name.removeprefix(strip),
            stack=tuple(part.removeprefix(strip) for part in module.stack),
        )
        for module in modules
    )
    left = {name.removeprefix(strip): array for name, array in arrays.items()}
    if len(left) < len(arrays):
        raise LayoutError(f"two arrays would be called the same without {strip!r}")
    if other_arrays is None:
        return renamed, None
    moved_to = {target.name for target in other_arrays.moved.values()}
    copied = {name: RenamedArray(name) for name in arrays if name.startswith(strip) and name not in moved_to}
    moved = {
        name: replace(target, name=target.name.removeprefix(strip))
        for name, target in {**other_arrays.moved, **copied}.items()
    }
    return renamed, replace(other_arrays, arrays=left, moved=moved)


def converted_others(
    model: FileContents, new_modules: tuple[Module, ...], modules: tuple[Module, ...], file_format: Format
) -> Others:
    """Renames and transposes the arrays of a model that belong to no recurrent layer (module) by the
    conventions of the new framework, where it is certain what they are. It is never certain if the old or the
    new file has layouts of several frameworks. The state of an optimiser is no part of the model, and is left
    out.

    new_modules, modules: the converted and the original modules, whose layouts name the frameworks.
    file_format: the kind of the new file.
    """
    source, target = (
        sorted({module.layout.partition(".")[0] for module in side}) for side in (modules, new_modules)
    )
    states = optimiser_state_names(model.rest)
    rest = {name: array for name, array in model.rest.items() if name not in states}
    if len(source) != 1 or len(target) != 1:
        return Others(rest, foreign=" and ".join(target))
    suffix = kind(Path(model.path)).suffix
    # MXNet's save_parameters, which writes unfused layers, separates names by points, not by underscores.
    sign = "." if all(module.layout.endswith("_unfused") for module in new_modules) else file_format.prefix
    return others(rest, model.stated, source[0], target[0], sign, suffix)


def verified(
    modules: tuple[Module, ...], new_modules: tuple[Module, ...], output: str | Path, file_format: Format
) -> dict[str, Verdict]:
    """Compares the outputs of converted modules (recurrent layers) with those of the original ones on random
    sequences; returns the verdict for each module by name, or under "" for a file that is a whole model.
    new_modules: as written to `output`, of kind `file_format`.
    """
    if not file_format.of_arrays:
        return {"": verify_file(modules, new_modules, output)}
    pairs = zip(modules, read_back(output, new_modules), strict=True)
    return {module.name: compare(module, new) for module, new in pairs}


def check_order(modules: tuple[Module, ...], output: str | Path, file_format: Format) -> None:
    """Raises `LayoutError` if the new file `output` would return the outputs of a backward layer in another
    order than the old file: Keras returns them in the order of computation, other formats (`file_format`) at
    their own steps. modules: the recurrent layers, as they were read.
    """
    flipped, in_order = "last step first", "each at its own step"
    for module in modules:
        flips = file_format.title == "Keras" and module.reverse
        if module.flipped != flips and not module.last_only:
            was, becomes = (flipped, in_order) if module.flipped else (in_order, flipped)
            raise LayoutError(
                f"{bare(module.name)} runs from the last step and returns its outputs {was}; {output} "
                f"would return them {becomes}: write a file of arrays instead, as .npz or .safetensors"
            )


def notes_on_overrides(model: FileContents, module: Module) -> Iterator[str]:
    """Yields a note for each setting of a layer of which the user states another value than the file."""
    for part in model.modules:
        for name, value in part.semantics.items() if part.name in module.parts else ():
            stated = module.semantics.get(name)
            if stated != value:
                yield f"the file says {name}={value!r}, and {OPTIONS['semantics'].name} {stated!r}"


def notes_on_losses(module: Module, file_format: Format, is_model: bool) -> tuple[str, ...]:
    """Returns notes for the user on properties of a module (recurrent layer) that a new file of the format
    `file_format` cannot express.

    is_model: True if the file describes how its layers run, and does not only hold arrays.
    """
    losses = file_format.says if is_model else ()
    expressed = {*losses, *(["states"] if module.returned and "returned" in losses else [])}
    uses = [use for name, use in GIVES.items() if getattr(module, name) and name not in expressed]
    facts = [*uses, *module.use]
    if module.alone:
        facts.append(f"it {module.alone}")
    if module.reverse and not is_model:
        facts.append("it runs from each sequence's last step")
    if module.merge not in ("concat", None) and not is_model:
        facts.append(f"its directions are merged by {module.merge}")
    return tuple(f"{fact}, which the new file does not say" for fact in facts)


def targets(target: str, module: Module) -> list[Record]:
    """Returns the layouts (formats of weights) to try for a module (recurrent layer), in order: the layout
    named `target`, or all layouts of the framework `target` for the module's cell (GRU, LSTM, ...). Raises
    `LayoutError` if the framework has none.
    """
    if target in records() or "." in target:
        return [record(target)]
    of_cell = [candidate for candidate in family(target) if candidate.cell == module.record.cell]
    if not of_cell:
        raise LayoutError(f"{target} has no layout for a {module.record.cell}")
    return of_cell


def converted(module: Module, target: str, exact: bool, dtype: str | None = None) -> Conversion:
    """Converts a module (recurrent layer) to the first layout (a framework's arrangement of weights) of
    `target` that can express it. Raises `ConversionError` if there is none, or if `exact` is True and numbers
    would be rounded.

    target: a layout, or a framework, of which all layouts are tried. dtype: of the new arrays; None for the
    module's own.
    """
    options: Any = {"sizes": module.sizes, "semantics": module.semantics, "dtype": dtype}
    conversion = first_fitting(module.arrays, module.record, targets(target, module), **options)
    if isinstance(conversion, ConversionError):
        raise conversion
    layout = record(conversion.report.target)
    computed = [computed_array for computed_array in module.made if not computed_array.exact]
    if exact and computed:
        reasons = [f"{computed_array}, which {option('exact')} refuses" for computed_array in computed]
        raise refused(module.record, layout, "weights", reasons)
    if exact and not conversion.report.exact:
        return convert(module.arrays, module.record, layout, **options, exact=True)
    return replace(conversion, report=replace(conversion.report, made=module.made))


def converted_module(module: Module, conversion: Conversion) -> Module:
    """Returns a module (recurrent layer) after its conversion: the arrays and layout (arrangement of weights)
    of `conversion`, and all other facts of the old module.
    """
    report = conversion.report
    return Module(
        module.name,
        (report.target,),
        conversion.arrays,
        sizes={name: size for name, size in vars(report.target_sizes).items() if size is not None},
        semantics=report.open_fields,
        reverse=module.reverse,
        flipped=module.flipped,
        merge=module.merge,
        last_only=module.last_only,
        states=module.states,
        returned=module.returned,
        notes=module.notes,
        use=module.use,
        alone=module.alone,
        stack=module.stack,
    )


def compare(module: Module, other: Module) -> Verdict:
    """Measures how far the outputs of an original and a converted module (recurrent layer) differ on random
    sequences: run by stepnet, and each by the framework of its layout (arrangement of weights) where that is
    installed.
    """
    return verify(weights(module), weights(other), frameworks=True)
