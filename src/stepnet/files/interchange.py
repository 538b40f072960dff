"""A model file as one of another framework: read, convert every recurrent module, write, and look again.

speech.pt  --read-->  Model  --convert each module-->  Modules of the target  --write-->  speech.keras
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import ConversionError, InputError, LayoutError, named
from stepnet.files.account import (
    Account,
    check_drop,
    check_merges,
    check_nothing_is_lost,
    check_row,
    listed,
)
from stepnet.files.formats import Format, kind, read, writable, write
from stepnet.files.model import Array, Model, Module, bare, family, stacked
from stepnet.files.others import Others, Place, others
from stepnet.files.parametrized import plain
from stepnet.files.verified import again, verify_file, weights
from stepnet.layout.convert import Conversion, RangeError, convert, refused
from stepnet.layout.find import nearest
from stepnet.layout.options import OPTIONS, option
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.report import Report
from stepnet.layout.semantics import FIELDS
from stepnet.layout.verify import Verdict, verify
from stepnet.rnn.merge import checked_merge

RESTS = ("drop", "copy")
GIVES = {"last_only": "it gives its last output alone", "states": "it gives its last states too"}


@dataclass(frozen=True)
class Choice:
    """What a person says of a file that the file does not: which layout it has, or which framework wrote it,
    which module is meant, or which in which order, sizes and semantics, that each layer follows the one
    before it, the layouts of modules by their names, and the names of arrays of a layer that may be left
    behind. Semantics are by field, or by MODULE:FIELD for one module. Among them "merge" says what becomes of
    the outputs of both directions.
    """

    layout: str | None = None
    module: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    semantics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stack: bool = False
    layouts: Mapping[str, str] = field(default_factory=dict[str, str])
    drop: Collection[str] = ()
    order: Sequence[str] = ()

    def whole(
        self, model: Model, copied: bool | None = None, beside: Sequence[Model] = ()
    ) -> tuple[Module, ...]:
        """The modules meant of a file, for whatever writes, runs or compares them; raises `LayoutError` where
        something of them would be lost. copied: as for `check_nothing_is_lost`. beside: other files of which
        the same is said.
        """
        modules = [module for each in (model, *beside) for module in each.modules]
        if modules and self.layout is not None and not any(map(self.is_of, modules)):
            they = [f"{bare(one.name) or 'the layer'} is {' or '.join(one.layouts)}" for one in modules]
            raise LayoutError(
                f"{model.path}: {OPTIONS['layout'].name} says {self.layout}, which no layer can be: "
                f"{listed(they)}"
            )
        with named(model.path):
            check_drop(self.drop, [model])
            meant = self.modules(model, beside)
            check_nothing_is_lost(model, meant, self.drop, copied)
            check_function(meant)
        return meant

    def modules(self, model: Model, beside: Sequence[Model] = ()) -> tuple[Module, ...]:
        """The modules meant, with what is said of them; raises `LayoutError` where there is none."""
        asked = [self.module] if self.module is not None else self.order
        meant = tuple(model.chosen(name) for name in asked) if asked else model.modules
        twice = [one.name for place, one in enumerate(meant) if any(one is other for other in meant[:place])]
        if twice:
            raise LayoutError(f"{bare(twice[0])} is named twice ({OPTIONS['module'].name})")
        if self.stack and not asked:
            meant = model.in_a_row(meant)
        if not asked and model.problems:
            raise LayoutError("; ".join(model.problems.values()))
        if not meant:
            raise self.nearest(model)
        known = {name for module in model.modules for name in fields_of(module)}
        left_open = {name for module in model.modules for name in open_of(module)}
        by_module = self.semantics_by_module(model, beside)
        return tuple(
            self.said(
                module,
                (known - fields_of(module)) | (left_open - open_of(module)),
                by_module.get(module.name, {}),
            )
            for module in meant
        )

    def semantics_by_module(self, model: Model, beside: Sequence[Model]) -> dict[str, dict[str, Any]]:
        """What is said of single modules of a file, by their names; raises `LayoutError` for a name that no
        module has, here or beside.
        """
        said: dict[str, dict[str, Any]] = {}
        for text, value in self.semantics.items():
            name, sign, field_name = text.rpartition(":")
            elsewhere = not model.called(name) and any(one.called(name) for one in beside)
            if sign and not elsewhere:
                about = {"module": "MODULE", "field": field_name, "value": "VALUE", "choice": "VALUE"}
                module = model.chosen(name, "semantics of", **about)
                said.setdefault(module.name, {})[field_name] = value
        return said

    def is_of(self, module: Module) -> bool:
        """Whether a module may have the layout that is said of the file."""
        return not {one.name for one in family(self.layout or "")}.isdisjoint(module.layouts)

    def nearest(self, model: Model) -> LayoutError:
        """The error for a file without a layer that is meant."""
        among = family(self.layout) if self.layout else None
        arrays = plain(model.rest).arrays
        return nearest({name: array.shape for name, array in arrays.items()}, among)

    def said(self, module: Module, of_others: Collection[str], own: Mapping[str, Any]) -> Module:
        """A module with what is said of it by itself and with all, and not what of that means something for
        other modules alone.
        """
        layout = self.layouts.get(module.name, self.layouts.get(bare(module.name), self.layout))
        known = [one.name for one in family(layout)] if layout else []
        layouts = tuple(one for one in module.layouts if one in known) or module.layouts
        of_all = {
            name: value for name, value in self.semantics.items() if ":" not in name and name not in of_others
        }
        sizes, semantics = {**module.sizes, **self.sizes}, {**module.semantics, **of_all, **own}
        merge = semantics.pop("merge", None)
        whole = replace(module, layouts=layouts, sizes=sizes, semantics=semantics)
        if merge is None or checked_merge(merge) == module.merge:
            return whole
        if module.merge is not None and whole.told().directions > 1:
            raise LayoutError(
                f"{bare(module.name) or 'the layer'} merges its directions by {module.merge}, "
                f"and not by {merge} as {OPTIONS['semantics'].name} says"
            )
        return replace(whole, merge=module.merge or merge)


def fields_of(module: Module) -> set[str]:
    """What semantics there are of what a module may be."""
    return {name for layout in module.layouts for name in FIELDS[record(layout).cell]}


def open_of(module: Module) -> set[str]:
    """What of them is to be said of a module: its layout leaves it open, and so does its file."""
    return {name for layout in module.layouts for name in record(layout).settings()} - {*module.semantics}


def check_function(modules: Sequence[Module]) -> None:
    """Raises `LayoutError` where several modules leave open what function they are, for it may be another for
    each; of one alone it is asked where it is needed.
    """
    asking: dict[str, list[str]] = {}
    for module in modules:
        for name, setting in record(module.layouts[0]).settings().items() if len(module.layouts) == 1 else ():
            if setting.usual is None and name not in module.semantics:
                asking.setdefault(name, []).append(bare(module.name))
    for name, names in asking.items():
        if len(names) > 1:
            about = {"field": name, "value": "VALUE", "choice": "VALUE"}
            raise LayoutError(
                f"the arrays of {listed(names)} do not tell {name}: say {option('semantics', **about)} for "
                f"all of them, or {option('semantics of', module=names[0], **about)} for each"
            )


@dataclass(frozen=True)
class Written:
    """What was written: the file, the report of each module by its name, what became of everything in the old
    file, the verdicts if asked for, and what the new file does not say.

    verdicts: by module, or of the whole file by "" where it is a model.
    """

    path: str
    reports: Mapping[str, Report]
    account: Account
    verdicts: Mapping[str, Verdict] = field(default_factory=dict[str, Verdict])
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def convert_file(
    source: str | Path,
    target: str,
    output: str | Path,
    *,
    choice: Choice | None = None,
    exact: bool = False,
    rest: str = "drop",
    strip: str = "",
    force: bool = False,
    check: bool = False,
    dtype: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Written:
    """What was written to `output`: the recurrent modules of a file in another layout.

    target: a layout, or a framework, of which the first layout is taken that each module can become. rest:
    "copy" passes the other arrays on: those of layers that are certain as the target's framework has them,
    all others as they are, under their own names. strip: what the new names begin without, where they began
    with it. check: run the new file and compare. dtype: of the new arrays, where it is not to be that of the
    file's. advance is called with the number of modules when they are done. The output has its name only when
    it is whole.

    Raises `LayoutError` for what is not told or does not fit, `ConversionError` for what cannot be,
    `FileError` for files that are not what they should be.
    """
    if rest not in RESTS:
        raise LayoutError(f"rest is {' or '.join(RESTS)}, not {rest!r}")
    choice = choice or Choice()
    form = writable(output, force)  # before any work
    model = read(source, choice.layout, choice.layouts)
    modules = choice.whole(model, copied=rest == "copy")
    with named(str(source)):
        if any(one.layered for one in targets(target, modules[0])):
            modules = stacked(modules, choice.stack)
        if not form.of_arrays:
            if choice.module is None:  # one that is meant by its name is meant by itself
                check_row(modules, output, choice.stack)
            check_merges(modules)
            check_order(modules, output, form)
        done: list[tuple[Module, Conversion]] = []
        for module in modules:
            with named(module.name or "the weights"):
                done.append((module, converted(module, target, exact, dtype)))
            advance(1)
        made = tuple(result(module, conversion) for module, conversion in done)
        taken = passed_on(model, made, modules, form) if rest == "copy" else None
        written, taken = without(strip, made, taken) if strip else (made, taken)
    try:
        write(output, written, taken.arrays if taken else {}, force=force)
    except InputError as error:
        raise type(error)(f"{output}: {error}") from None
    reports = {module.name: one.report for module, one in done}
    told = form.tells(Path(output))
    notes = {
        new.name: (*new.notes, *overruled(model, old), *not_finite(old), *unsaid(new, form, told))
        for old, new in zip(modules, made, strict=True)
    }
    account = Account.of(model, modules, taken)
    return Written(
        str(output), reports, account, verified(modules, written, output, form) if check else {}, notes
    )


def without(
    strip: str, modules: tuple[Module, ...], taken: Others | None
) -> tuple[tuple[Module, ...], Others | None]:
    """Modules and other arrays, whose names begin without what they began with; raises `LayoutError` where
    none of them did.
    """
    arrays = taken.arrays if taken else dict[str, Array]()
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
    if taken is None:
        return renamed, None
    there = {place.name for place in taken.moved.values()}
    copied = {name: Place(name) for name in arrays if name.startswith(strip) and name not in there}
    moved = {
        name: replace(place, name=place.name.removeprefix(strip))
        for name, place in {**taken.moved, **copied}.items()
    }
    return renamed, replace(taken, arrays=left, moved=moved)


def passed_on(model: Model, made: tuple[Module, ...], modules: tuple[Module, ...], form: Format) -> Others:
    """The other arrays of a model for a new file, as the framework of its layouts has them where that is
    certain; nothing is where the old file has layouts of several.
    """
    source, target = (sorted({one.layout.partition(".")[0] for one in side}) for side in (modules, made))
    if len(source) != 1 or len(target) != 1:
        return Others(model.rest, foreign=" and ".join(target))
    suffix = kind(Path(model.path)).suffix
    # MXNet's save_parameters, which has unfused layers, puts a point where its other ways put a line.
    sign = "." if all(module.layout.endswith("_unfused") for module in made) else form.prefix
    return others(model.rest, model.stated, source[0], target[0], sign, suffix)


def verified(
    modules: tuple[Module, ...], made: tuple[Module, ...], output: str | Path, form: Format
) -> dict[str, Verdict]:
    """What running the new file says: of each module, or of the whole file where it is a model."""
    if not form.of_arrays:
        return {"": verify_file(modules, made, output)}
    pairs = zip(modules, again(output, made), strict=True)
    return {module.name: compare(module, new) for module, new in pairs}


def check_order(modules: tuple[Module, ...], output: str | Path, form: Format) -> None:
    """Raises `LayoutError` where the file would give the outputs of a backward layer in another order."""
    ours, theirs = "last step first", "each at its own step"
    for module in modules:
        flips = form.title == "Keras" and module.reverse
        if module.flipped != flips and not module.last_only:
            was, becomes = (ours, theirs) if module.flipped else (theirs, ours)
            raise LayoutError(
                f"{bare(module.name)} runs from the last step and gives its outputs {was}; {output} "
                f"would give them {becomes}: write a file of arrays instead, as .npz or .safetensors"
            )


def overruled(model: Model, module: Module) -> Iterator[str]:
    """What is to be said of a module of which a person says something else than the file does."""
    for one in model.modules:
        for name, value in one.semantics.items() if one.name in module.parts else ():
            if module.semantics.get(name) != value:
                said = module.semantics.get(name)
                yield f"the file says {name}={value!r}, and {OPTIONS['semantics'].name} {said!r}"


def not_finite(module: Module) -> tuple[str, ...]:
    """What is to be said of a module's arrays that hold NaN or infinite numbers."""
    with np.errstate(invalid="ignore"):  # bfloat16 complains of a NaN that it is asked about
        odd = [name for name, array in module.arrays.items() if not np.isfinite(array).all()]
    names = [module.names.get(name, name) for name in odd]
    return (f"NaN or infinite numbers are in {listed(names)}",) if names else ()


def unsaid(module: Module, form: Format, told: bool) -> tuple[str, ...]:
    """What a new file does not say of a module; told: whether it is a model, and not weights alone."""
    says = form.says if told else ()
    said = {*says, *(["states"] if module.returned and "returned" in says else [])}
    uses = [what for name, what in GIVES.items() if getattr(module, name) and name not in said]
    found = [f"{use}, which the new file does not say" for use in (*uses, *module.use)]
    if module.alone:
        found.append(f"it {module.alone}, which the new file does not say")
    if told:
        return tuple(found)
    if module.reverse:
        found.append("it runs from each sequence's last step, which the new file does not say")
    if module.merge not in ("concat", None):
        found.append(f"its directions are merged by {module.merge}, which the new file does not say")
    return tuple(found)


def targets(target: str, module: Module) -> list[Record]:
    """The layouts that a target names for a module: the layout itself, or those of a framework."""
    if target in records() or "." in target:
        return [record(target)]
    of_cell = [one for one in family(target) if one.cell == module.record.cell]
    if not of_cell:
        raise LayoutError(f"{target} has no layout for a {module.record.cell}")
    return of_cell


def converted(module: Module, target: str, exact: bool, dtype: str | None = None) -> Conversion:
    """A module in the first layout that it can become; `exact` refuses where numbers are rounded there."""
    refusals: list[ConversionError] = []
    options: Any = {"sizes": module.sizes, "semantics": module.semantics, "dtype": dtype}
    for one in targets(target, module):
        try:
            found = of_file(convert(module.arrays, module.record, one, **options), module)
        except RangeError:  # another layout is no way round the dtype
            raise
        except ConversionError as error:
            refusals.append(error)
            continue
        computed = [made for made in module.made if not made.exact]
        if exact and computed:
            reasons = [f"{made}, which {option('exact')} refuses" for made in computed]
            raise refused(module.record, one, "weights", reasons)
        if exact and not found.report.exact:
            return convert(module.arrays, module.record, one, **options, exact=True)
        return found
    raise refusals[0]


def of_file(conversion: Conversion, module: Module) -> Conversion:
    """A conversion whose report begins with what the file's arrays were made into."""
    return replace(conversion, report=replace(conversion.report, made=module.made))


def result(module: Module, conversion: Conversion) -> Module:
    """The converted module."""
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


def compare(one: Module, other: Module) -> Verdict:
    """How far two modules differ in what they compute, here and in their frameworks, where those are
    installed.
    """
    return verify(weights(one), weights(other), frameworks=True)
