"""The user's choice of a file's modules, and the user's statements about them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError, named
from stepnet.layout.files.account import check_drop, check_nothing_is_lost, listed
from stepnet.layout.files.model import FileContents, Module, bare, family
from stepnet.layout.files.parametrized import plain
from stepnet.layout.find import nearest
from stepnet.layout.options import OPTIONS, option
from stepnet.layout.registry import record
from stepnet.layout.semantics import FIELDS
from stepnet.model.merge import checked_merge


@dataclass(frozen=True)
class LayoutChoice:
    """The user's statements about a file, on things that the file does not specify.

    Attributes:
        layout: The layout of the layers, or the framework that wrote the file.
        module: The name of the only module to take.
        sizes: Sizes that the shapes leave open.
        semantics: Semantics by field, or by MODULE:FIELD for one module. The field "merge" is how the outputs
            of both directions are merged.
        stack: Whether each layer takes the outputs of the one before it.
        layouts: The layouts of single modules, by name.
        drop: The names of arrays of a layer that may be left behind.
        order: The names of the modules to take, in order.
    """

    layout: str | None = None
    module: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    semantics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stack: bool = False
    layouts: Mapping[str, str] = field(default_factory=dict[str, str])
    drop: Collection[str] = ()
    order: Sequence[str] = ()

    def checked_modules(
        self, model: FileContents, copied: bool | None = None, beside: Sequence[FileContents] = ()
    ) -> tuple[Module, ...]:
        """Returns the modules (recurrent layers) of the file `model` that the user chose, with the stated
        settings. Raises `LayoutError` if writing, running or comparing them would lose something.

        copied: True if other arrays are copied to the new file; None if that is impossible. beside: further
        files to which the choice applies.
        """
        modules = [module for file in (model, *beside) for module in file.modules]
        if modules and self.layout is not None and not any(map(self.is_of, modules)):
            layouts = [
                f"{bare(module.name) or 'the layer'} is {' or '.join(module.layouts)}" for module in modules
            ]
            raise LayoutError(
                f"{model.path}: {OPTIONS['layout'].name} says {self.layout}, which fits none of its layers: "
                f"{listed(layouts)}"
            )
        with named(model.path):
            check_drop(self.drop, [model])
            chosen = self.modules(model, beside)
            check_nothing_is_lost(model, chosen, self.drop, copied)
            check_function(chosen)
        return chosen

    def modules(self, model: FileContents, other_models: Sequence[FileContents] = ()) -> tuple[Module, ...]:
        """Returns the modules (recurrent layers) of the file `model` that the user chose, with the stated
        settings: the named one, else all. If the user says that all are stacked, they are in the order in
        which each takes the outputs of the one before. Raises `LayoutError` if there is none, or if some
        layers of the file cannot be read.

        other_models: further files to which the choice applies.
        """
        named = [self.module] if self.module is not None else self.order
        chosen = tuple(model.chosen(name) for name in named) if named else model.modules
        twice = [
            module.name
            for index, module in enumerate(chosen)
            if any(module is earlier for earlier in chosen[:index])
        ]
        if twice:
            raise LayoutError(f"{bare(twice[0])} is named twice ({OPTIONS['module'].name})")
        if self.stack and not named:
            chosen = model.in_a_row(chosen)
        if not named and not model.modules and not model.problems:
            raise self.nearest(model)
        if not named and (unread := model.unread(self.drop)):
            raise LayoutError("; ".join(unread.values()))
        all_fields = {name for module in model.modules for name in fields_of(module)}
        left_open = {name for module in model.modules for name in open_settings(module)}
        by_module = self.semantics_by_module(model, other_models)
        return tuple(
            self.with_settings(
                module,
                (all_fields - fields_of(module)) | (left_open - open_settings(module)),
                by_module.get(module.name, {}),
            )
            for module in chosen
        )

    def semantics_by_module(
        self, model: FileContents, other_models: Sequence[FileContents]
    ) -> dict[str, dict[str, Any]]:
        """Returns the settings of the cell's function, such as its activations, that the user stated for
        single modules (recurrent layers) of the file `model`, as MODULE:FIELD. The result is {module: {field
        of `Semantics`: value}}. Raises `LayoutError` for a name that no module has, in this file or in the
        files `other_models`.
        """
        by_module: dict[str, dict[str, Any]] = {}
        for text, value in self.semantics.items():
            name, sign, field_name = text.rpartition(":")
            is_elsewhere = not model.called(name) and any(other.called(name) for other in other_models)
            if sign and not is_elsewhere:
                about = {"module": "MODULE", "field": field_name, "value": "VALUE", "choice": "VALUE"}
                module = model.chosen(name, "semantics of", **about)
                by_module.setdefault(module.name, {})[field_name] = value
        return by_module

    def is_of(self, module: Module) -> bool:
        """Returns True if a module (recurrent layer) may have the layout (a framework's arrangement of
        weights) that the user stated for all modules, or one of the layouts of the framework that the user
        stated.
        """
        return not {candidate.name for candidate in family(self.layout or "")}.isdisjoint(module.layouts)

    def nearest(self, model: FileContents) -> LayoutError:
        """Returns the error for a file without recurrent layers of a known layout (a framework's arrangement
        of weights). Its message lists the layers that the file specifies or, if it specifies none or the user
        states a layout, says which layout the arrays come nearest to, and what is missing.
        """
        if model.layers and not model.unspecified and self.layout is None:
            return LayoutError(
                f"no recurrent layer of a known layout is here: the file has {listed(model.layers)}"
            )
        among = family(self.layout) if self.layout else None
        arrays = plain(model.rest).arrays
        return nearest({name: array.shape for name, array in arrays.items()}, among)

    def with_settings(
        self, module: Module, fields_elsewhere: Collection[str], own_semantics: Mapping[str, Any]
    ) -> Module:
        """Returns a module (recurrent layer) with the layout (a framework's arrangement of weights), sizes
        and semantics (settings of its function, such as activations) that the user stated for it; raises
        `LayoutError` if the user states another merge of its directions than the file.

        fields_elsewhere: the fields of semantics that apply only to other modules. own_semantics: the
        semantics that are stated for this module by its name.
        """
        layout = self.layouts.get(module.name, self.layouts.get(bare(module.name), self.layout))
        stated_layouts = [candidate.name for candidate in family(layout)] if layout else []
        layouts = tuple(name for name in module.layouts if name in stated_layouts) or module.layouts
        of_all = {
            name: value
            for name, value in self.semantics.items()
            if ":" not in name and name not in fields_elsewhere
        }
        sizes, semantics = ({**module.sizes, **self.sizes}, {**module.semantics, **of_all, **own_semantics})
        merge = semantics.pop("merge", None)
        chosen = replace(module, layouts=layouts, sizes=sizes, semantics=semantics)
        if merge is None or checked_merge(merge) == module.merge:
            return chosen
        if module.merge is not None and chosen.solved_sizes().directions > 1:
            raise LayoutError(
                f"{bare(module.name) or 'the layer'} merges its directions by {module.merge}, "
                f"and not by {merge} as {OPTIONS['semantics'].name} says"
            )
        return replace(chosen, merge=module.merge or merge)


def check_agrees(model: FileContents, settled: Sequence[Module]) -> None:
    """Raises `LayoutError` if settings that the user stated contradict settings in the file. A file that
    specifies no whole model is not checked.

    settled: the modules (recurrent layers) of `model` with the user's settings.
    """
    by_name = {module.name: module for module in model.modules} if not model.unspecified else {}
    for stated in settled:
        module = by_name.get(stated.name, stated)
        for what in ("semantics", "sizes"):
            said = getattr(stated, what)
            for name, value in getattr(module, what).items():
                if said[name] != value:
                    raise LayoutError(
                        f"the file says {name}={value} of {bare(module.name) or 'the layer'}, "
                        f"and not {said[name]} as {OPTIONS[what].name} says"
                    )


def fields_of(module: Module) -> set[str]:
    """Returns the fields of semantics (properties such as "activation") that a module's cells may have."""
    return {name for layout in module.layouts for name in FIELDS[record(layout).cell]}


def open_settings(module: Module) -> set[str]:
    """Returns the names of the settings of a module (recurrent layer), such as "reset", that the user may
    state, because neither its layout (a framework's arrangement of weights) nor its file fixes them.
    """
    return {name for layout in module.layouts for name in record(layout).settings()} - {*module.semantics}


def check_function(modules: Sequence[Module]) -> None:
    """Raises `LayoutError` if the arrays of several modules (recurrent layers) leave the same setting of
    their function open, such as an activation, because one value may not fit all of them. For a single
    module, the user is asked later, where the value is needed.
    """
    modules_by_field: dict[str, list[str]] = {}
    for module in modules:
        for name, setting in record(module.layouts[0]).settings().items() if len(module.layouts) == 1 else ():
            if setting.usual is None and name not in module.semantics:
                modules_by_field.setdefault(name, []).append(bare(module.name))
    for name, names in modules_by_field.items():
        if len(names) > 1:
            about = {"field": name, "value": "VALUE", "choice": "VALUE"}
            raise LayoutError(
                f"the arrays of {listed(names)} do not determine {name}: say "
                f"{option('semantics', **about)} for all of them, "
                f"or {option('semantics of', module=names[0], **about)} for each"
            )
