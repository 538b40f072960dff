"""A model file as one of another framework: read, convert every recurrent module, write, and look again.

speech.pt  --read-->  Model  --convert each module-->  Modules of the target  --write-->  speech.keras
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepnet.compose import named
from stepnet.errors import ConversionError, InputError, LayoutError
from stepnet.files.formats import kind, read, writable, write
from stepnet.files.model import Array, Model, Module, stacked
from stepnet.layout.convert import Conversion, RangeError, convert
from stepnet.layout.find import nearest
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.report import Report
from stepnet.layout.verify import Verdict, Weights, verify

RESTS = ("drop", "copy")


@dataclass(frozen=True)
class Choice:
    """What a person says of a file that the file does not: which layout it has, which module is meant, sizes
    and semantics, and that each layer follows the one before it.
    """

    layout: str | None = None
    module: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    semantics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stack: bool = False

    def modules(self, model: Model) -> tuple[Module, ...]:
        """The modules meant, with what is said of them; raises `LayoutError` where there is none."""
        meant = model.modules if self.module is None else (model.chosen(self.module),)
        if not meant:
            among = [record(self.layout)] if self.layout else None
            raise nearest({name: array.shape for name, array in model.rest.items()}, among)
        return tuple(self.said(module) for module in meant)

    def said(self, module: Module) -> Module:
        """A module with what is said of it."""
        layouts = (self.layout,) if self.layout in module.layouts and self.layout else module.layouts
        sizes, semantics = {**module.sizes, **self.sizes}, {**module.semantics, **self.semantics}
        return replace(module, layouts=layouts, sizes=sizes, semantics=semantics)


@dataclass(frozen=True)
class Written:
    """What was written: the file, the report of each module by its name, the verdicts if asked for, and what
    the new file does not say.
    """

    path: str
    reports: Mapping[str, Report]
    verdicts: Mapping[str, Verdict] = field(default_factory=dict[str, Verdict])
    rest: tuple[str, ...] = ()
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def convert_file(
    source: str | Path,
    target: str,
    output: str | Path,
    *,
    choice: Choice | None = None,
    exact: bool = False,
    rest: str = "drop",
    force: bool = False,
    check: bool = False,
    dtype: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Written:
    """What was written to `output`: the recurrent modules of a file in another layout.

    target: a layout, or a framework, of which the first layout is taken that each module can become. rest:
    "copy" passes the other arrays on, under their own names. check: read the new file and compare what both
    compute. dtype: of the new arrays, where it is not to be that of the file's. advance is told of modules
    when done. The output has its name only when it is whole.

    Raises `LayoutError` for what is not told or does not fit, `ConversionError` for what cannot be,
    `FileError` for files that are not what they should be.
    """
    if rest not in RESTS:
        raise LayoutError(f"rest is {' or '.join(RESTS)}, not {rest!r}")
    choice = choice or Choice()
    form = writable(output, force)  # before any work
    model = read(source, choice.layout)
    with named(str(source)):
        modules = choice.modules(model)
        if any(one.layered for one in targets(target, modules[0])):
            modules = stacked(modules, choice.stack)
        done: list[tuple[Module, Conversion]] = []
        for module in modules:
            with named(module.name or "the weights"):
                done.append((module, converted(module, target, exact, dtype)))
            advance(1)
    made = tuple(result(module, conversion) for module, conversion in done)
    others: Mapping[str, Array] = model.rest if rest == "copy" else {}
    try:
        write(output, made, others, force=force)
    except InputError as error:
        raise type(error)(f"{output}: {error}") from None
    verdicts: dict[str, Verdict] = {}
    if check:
        for module, new in zip(modules, again(output, made), strict=True):
            verdicts[module.name] = compare(module, new)
    reports = {module.name: one.report for module, one in done}
    notes = {module.name: unsaid(module) for module in made if form.of_arrays}
    return Written(str(output), reports, verdicts, tuple(others), notes)


def unsaid(module: Module) -> tuple[str, ...]:
    """What a file of arrays alone does not say of a module."""
    found: list[str] = []
    if module.reverse:
        found.append("it runs from each sequence's last step, which the new file does not say")
    if module.merge != "concat":
        found.append(f"its directions are merged by {module.merge}, which the new file does not say")
    return tuple(found)


def targets(target: str, module: Module) -> list[Record]:
    """The layouts that a target names for a module: the layout itself, or those of a framework."""
    if target in records() or "." in target:
        return [record(target)]
    found = [one for one in records().values() if one.name.partition(".")[0] == target]
    if not found:
        frameworks = dict.fromkeys(name.partition(".")[0] for name in records())
        raise LayoutError(f"no framework is called {target!r}; there are {', '.join(frameworks)}")
    of_cell = [one for one in found if one.cell == module.record.cell]
    if not of_cell:
        raise LayoutError(f"{target} has no layout for a {module.record.cell}")
    return of_cell


def converted(module: Module, target: str, exact: bool, dtype: str | None = None) -> Conversion:
    """A module in the first layout that it can become; `exact` refuses where numbers are rounded there."""
    refusals: list[ConversionError] = []
    options: Any = {"sizes": module.sizes, "semantics": module.semantics, "dtype": dtype}
    for one in targets(target, module):
        try:
            found = convert(module.arrays, module.record, one, **options)
        except RangeError:  # another layout is no way round the dtype
            raise
        except ConversionError as error:
            refusals.append(error)
            continue
        if exact and not found.report.exact:
            return convert(module.arrays, module.record, one, **options, exact=True)
        return found
    raise refusals[0]


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
        merge=module.merge,
        notes=module.notes,
    )


def again(output: str | Path, made: tuple[Module, ...]) -> list[Module]:
    """The modules that were written, as the file has them; what it does not tell is as it was written."""
    written = {old.layout for old in made}
    found = tuple(
        replace(new, layouts=tuple(one for one in new.layouts if one in written) or new.layouts)
        for new in read(output, made[0].layout if len(made) == 1 else None).modules
    )
    if len(found) != len(made):
        found = stacked(found, assumed=True)
    if len(found) != len(made):
        raise LayoutError(f"{output}: {len(made)} modules were written, and {len(found)} are found in it")
    return [
        replace(
            new,
            sizes={**old.sizes, **new.sizes},
            semantics={**old.semantics, **new.semantics},
            **({"reverse": old.reverse, "merge": old.merge} if kind(Path(output)).of_arrays else {}),
        )
        for old, new in zip(made, found, strict=True)
    ]


def compare(one: Module, other: Module) -> Verdict:
    """How far two modules differ in what they compute, here and in their frameworks, where those are
    installed.
    """
    return verify(weights(one), weights(other), frameworks=True)


def weights(module: Module) -> Weights:
    """A module as a side to verify."""
    return Weights(module.arrays, module.layout, module.sizes, module.semantics, module.reverse, module.merge)
