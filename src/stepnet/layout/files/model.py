"""The contents of a model file: its recurrent layers as modules, and its other arrays.

state dict, npz, checkpoint ...   arrays by name: layers are recognised by names and shapes
Keras, ONNX, TFLite               the file describes its layers and their settings
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, LayoutError
from stepnet.layout.damaged import Damage
from stepnet.layout.files.damage import damage_text, damaged_layers
from stepnet.layout.files.optimisers import optimiser_state_names
from stepnet.layout.files.others import Stated
from stepnet.layout.files.parametrized import Plain, plain
from stepnet.layout.find import Match, find, nearest, one_function
from stepnet.layout.options import OPTIONS, option
from stepnet.layout.record import Record
from stepnet.layout.registry import meant, record, records
from stepnet.layout.report import ComputedArray
from stepnet.layout.sizes import Shape, Sizes
from stepnet.layout.solve import sizes_of

Array = np.ndarray[Any, np.dtype[Any]]


DIGITS = re.compile(r"(\d+)")
# Parts of names in a state dict that stand for a wrapper of the model, or for a dictionary of the checkpoint.
WRAPPERS = frozenset(
    {
        *("state_dict", "model_state_dict", "current_model_state", "model", "module"),
        *("ema_model", "averaged_model"),
        *("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"),
    }
)


WEIGHTS = "it holds weights and no architecture"


@dataclass(frozen=True)
class Module:
    """One recurrent layer of a file, or a stack of layers with both directions.

    Attributes:
        name: The prefix of its arrays' names in the file, or the name of the layer.
        layouts: The layouts that it may have; only one if the file specifies it.
        arrays: Its arrays, by the names of the layout.
        names: The names of its arrays in the file, by the names of the layout.
        sizes: The sizes that the file specifies.
        semantics: The semantics that the file specifies.
        follows: The module whose outputs are its only input. If it has other inputs: the layer that computes
            them, or "". None if the file does not specify its input.
        reverse: Whether its only direction runs from each sequence's last step.
        flipped: Whether it then returns its outputs in the order of computation, last step first, as Keras
            does.
        merge: How the outputs of both directions are merged; see `Bidirectional`. None if the file does not
            specify it.
        last_only: Whether it returns only its last output.
        states: Whether it also returns its final states.
        returned: Whether the model returns these states.
        notes: Facts in the file that no layout can express.
        use: How its model uses its outputs, if not as the outputs of all steps.
        made: Its arrays that were computed from other arrays of the file.
        alone: Why it cannot be written as an ordinary layer of a model; empty if it can.
        besides: Names of other arrays of the file that belong to it and have no place in a layout.
        stack: The names of the modules that were joined to this one.
    """

    name: str
    layouts: tuple[str, ...]
    arrays: Mapping[str, Array]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    semantics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    follows: str | None = None
    reverse: bool = False
    flipped: bool = False
    merge: str | None = "concat"
    last_only: bool = False
    states: bool = False
    returned: bool = False
    notes: tuple[str, ...] = ()
    use: tuple[str, ...] = ()
    made: tuple[ComputedArray, ...] = ()
    alone: str = ""
    besides: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the modules that were stacked to this one; its own name if it was not stacked."""
        return self.stack or (self.name,)

    @property
    def bare(self) -> tuple[str, ...]:
        """The names of the modules stacked to this one, without separators at their ends."""
        return tuple(map(bare, self.parts))

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the file's arrays from which the arrays of this module were read or computed."""
        sources = {array.name: array.of for array in self.made}
        names = self.names.values() or self.arrays
        return tuple(source for name in names for source in sources.get(name, (name,)))

    @property
    def layout(self) -> str:
        """The name of this module's layout; `LayoutError` if several fit that compute differently."""
        return one_function(self.layouts, self.arrays, self.semantics) or self.match.layout

    @property
    def match(self) -> Match:
        """The name of this module (recurrent layer), the names of its arrays and the layouts (arrangements of
        weights) that fit these, in the form in which `stepnet.layout.find` returns them. Its `layout` raises
        an error if several fit.
        """
        return Match(self.name, self.names or dict.fromkeys(self.arrays, ""), self.layouts)

    @property
    def record(self) -> Record:
        """The record of the module's layout: its arrays, sizes and semantics."""
        return record(self.layout)

    def solved_sizes(self) -> Sizes:
        """Returns all sizes of the module, solved from the stated ones and the shapes of its arrays."""
        return sizes_of(self.record, {name: array.shape for name, array in self.arrays.items()}, self.sizes)

    def __repr__(self) -> str:
        return f"Module({self.name!r}: {' or '.join(self.layouts)}, {len(self.arrays)} arrays)"


@dataclass(frozen=True)
class FileContents:
    """The recurrent modules of a file, and everything else in it.

    Attributes:
        path: The file, as the caller names it.
        modules: Its recurrent modules.
        rest: Its other arrays, by name.
        layers: The names of its other layers.
        stated: For other arrays whose meaning the file specifies: that meaning, by name.
        spare: Arrays that are not needed, such as a second copy: the reason, by name.
        problems: For arrays that have the names of a layer's and are not in a module: the reason, by the
            prefix of their names.
        damaged: Layers that lack an array, or have one with a wrong name or shape.
        ordered: Whether the modules are in the order of the program that saved them, as in a state dict, and
            not sorted by name.
        neutral: Those of `layers` that return their input unchanged when the model is used, such as Dropout.
        entrances: The names of the model's inputs, where a module may follow one.
        unspecified: Why the file does not specify how its model computes. Empty for a file that does: then
            `modules` and `layers` are everything that the model computes.
    """

    path: str
    modules: tuple[Module, ...]
    rest: Mapping[str, Array] = field(default_factory=dict[str, Array])
    layers: tuple[str, ...] = ()
    stated: Mapping[str, Stated] = field(default_factory=dict[str, Stated])
    spare: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    damaged: tuple[Damage, ...] = ()
    ordered: bool = True
    neutral: tuple[str, ...] = ()
    entrances: tuple[str, ...] = ()
    unspecified: str = WEIGHTS

    def unread(self, drop: Collection[str] = ()) -> dict[str, str]:
        """Returns the recurrent layers that could not be read as modules: {prefix of their array names:
        reason}.

        drop: names of arrays that the user leaves out. A damaged layer of which all arrays are left out is
        not returned.
        """
        left = self.rest.keys() - {*drop}  # a reader may have found modules among these arrays later
        layers = [layer for layer in self.damaged if not left.isdisjoint(layer.names)]
        return {**self.problems, **{layer.prefix: damage_text(layer) for layer in layers}}

    def in_a_row(self, modules: tuple[Module, ...]) -> tuple[Module, ...]:
        """Returns the modules (recurrent layers) in the order in which each takes the outputs of the module
        before it.

        If the file does not keep that order, it follows from names that differ in one number: rnns.2 is
        before rnns.10, and gru before gru_1. Raises `LayoutError` for other names.
        """
        if self.ordered or len(modules) < 2 or all(module.follows is not None for module in modules[1:]):
            return modules
        indices = numbered([bare(module.name) for module in modules])
        if indices:
            return tuple(modules[index] for index in indices)
        names = [bare(module.name) for module in modules]
        example = names[::-1]
        modules_said = " ".join(f"{OPTIONS['module'].name} {name}" for name in example)
        raise LayoutError(
            f"such a file does not keep the order of its layers, which are {', '.join(names)} by their "
            "names: state the order, the first layer first, as in "
            f"{option('order', modules=modules_said, names=str(example))}"
        )

    def called(self, name: str) -> list[Module]:
        """Returns the modules (recurrent layers) that a name given by the user may mean: the module of that
        name, else all whose names differ from it only by the names of wrappers, such as "state_dict" and
        "model": `rnn` may mean state_dict.model.rnn and ema_model.rnn.
        """
        for module in self.modules:
            if name in (module.name, *([module.name[:-1]] if module.name.endswith((".", "/")) else [])):
                return [module]
        return [module for module in self.modules if unwrapped(module.name) == unwrapped(name)]

    def chosen(self, name: str, question: str = "module", **about: str) -> Module:
        """Returns the module (recurrent layer) that a name given by the user means; raises `LayoutError` if
        none or several do.

        question, about: the key and the values of the option by which the user names the module, for the
        message.
        """
        matches = self.called(name)
        if len(matches) == 1:
            return matches[0]
        say = f"say {option(question, **about)} for one of these"
        names = ", ".join(repr(module.name) for module in matches or self.modules) or "none"
        if matches:
            raise LayoutError(f"{name!r} may be any of {names}: {say}")
        problems = [text for prefix, text in self.unread().items() if name == bare(prefix)]
        which = f"there are {names}: {say}"
        if [module.name for module in self.modules] == [""]:
            away = OPTIONS["module"].name if question == "module" else f"{name}:"
            which = f"the only one has no name, leave {away} away"
        alike = meant(name, [bare(module.name) for module in self.modules])
        raise LayoutError("".join(problems) or f"no recurrent module is called {name!r}{alike}; {which}")


def bare(name: str) -> str:
    """Returns the name of a module (recurrent layer) for messages: without the separator between it and the
    names of its arrays.

    >>> bare("rnn_."), bare("lstm0_"), bare("0/GRUCell_0/")
    ('rnn_', 'lstm0', '0/GRUCell_0')
    """
    return name[:-1] if name.endswith((".", "/", "_")) else name


def numbered(names: Sequence[str]) -> list[int]:
    """Returns the indices of layers' names in the order of the only number in which the names differ; [] if
    they differ otherwise.

    >>> numbered(["rnns.10.cell", "rnns.2.cell"]), numbered(["gru_1", "gru"]), numbered(["top", "low"])
    ([1, 0], [1, 0], [])
    """
    segments = [DIGITS.split(name if name[-1:].isdecimal() else f"{name}_0") for name in names]
    varied = [index for index, same in enumerate(zip_longest(*segments)) if len({*same}) > 1]
    if len(varied) != 1 or not all(segments[varied[0]].isdecimal() for segments in segments):
        return []
    return sorted(range(len(names)), key=lambda index: int(segments[index][varied[0]]))


def unwrapped(name: str) -> str:
    """Removes the parts that stand for wrappers of the model from the name of a module (recurrent layer), to
    compare it with others.

    >>> unwrapped("state_dict.model._orig_mod.encoder._fsdp_wrapped_module.rnn.")
    'encoder.rnn'
    """
    return ".".join(part for part in name.rstrip("./_ ").split(".") if part not in WRAPPERS)


def among(
    path: str,
    arrays: Mapping[str, Array],
    frameworks: Iterable[str],
    layout: str | None = None,
    layouts: Mapping[str, str] | None = None,
    *,
    suffix: str = "",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    classes: Mapping[str, str] | None = None,
    unspecified: str = WEIGHTS,
) -> FileContents:
    """Finds the modules (recurrent layers) in a file of arrays, by the arrays' names and shapes.

    Weights that layers of PyTorch compute from other arrays (weight_norm) are computed here. The state of an
    optimiser is no layer, unless `layouts` names it.

    path: the file, for messages.
    frameworks: those whose layouts (arrangements of weights) are preferred, because files of this kind
        usually have them.
    layout: the layout or the framework of all layers that it fits, if the user states it.
    layouts: the layouts of single modules, by name.
    suffix: a suffix that array names may have.
    settings: the settings of modules in the framework's terms, by the prefix of the module's names.
    classes: the names of classes that the user's program defines, by the prefix of the module's names.
    unspecified: why the file does not specify how its model computes.
    """
    plain_arrays = plain(arrays) if "torch" in frameworks else Plain(arrays)
    full_names = {name.removesuffix(suffix): name for name in plain_arrays.arrays}
    if len(full_names) != len(plain_arrays.arrays):
        raise FileError(f"{path}: two arrays in it have the same name except for {suffix!r}")
    named_prefixes = tuple(f"{module}{sign}" for module in layouts or {} for sign in "./_")
    distinct = {name for name in optimiser_state_names(full_names) if not name.startswith(named_prefixes)}
    shapes = {
        name: plain_arrays.arrays[full].shape for name, full in full_names.items() if name not in distinct
    }
    modules = tuple(
        module_of(
            match,
            full_names,
            plain_arrays,
            (settings or {}).get(match.prefix, {}),
            (classes or {}).get(match.prefix, ""),
        )
        for match in matches_of(shapes, layouts or {}, frameworks, layout)
    )
    modules, spare = (
        without_copies(modules, plain_arrays.arrays)
        if "paddle" in frameworks
        else (modules, dict[str, str]())
    )
    used = {name for module in modules for name in module.stored} | spare.keys() | plain_arrays.spare.keys()
    rest = {name: array for name, array in arrays.items() if name not in used}
    problems = plain_arrays.problems
    layouts_here = [name for module in modules for name in module.layouts]
    left = {name: shape for name, shape in shapes.items() if full_names[name] in rest}
    damaged = damaged_layers(left, full_names, layouts_here, frameworks)
    return FileContents(
        path,
        modules,
        rest,
        spare={**plain_arrays.spare, **spare},
        problems=problems,
        damaged=tuple(layer for layer in damaged if layer.prefix not in problems),
        unspecified=unspecified,
    )


def module_of(
    match: Match,
    full_names: Mapping[str, str],
    plain_arrays: Plain,
    settings: Mapping[str, Any],
    own_class: str,
) -> Module:
    """Makes a module of a recurrent layer that was recognised by the names and shapes of its arrays
    (`match`).

    full_names: {name without suffix: name in the file}. plain_arrays: the arrays of the file, with records of
    how weights were computed from other arrays. settings: the settings of the layer, by the framework's names
    and values. own_class: the name of its class if the user's program defines it, else "".
    """
    taken_for = " or ".join(match.layouts)
    note = f"it is a {own_class}, taken for {taken_for} by its arrays' names; its forward may do more"
    semantics = {
        name: setting.ours(layout, settings[setting.name])
        for layout in match.layouts
        for name, setting in record(layout).settings().items()
        if setting.name in settings
    }
    names = {name: full_names[full] for name, full in match.names.items()}
    return Module(
        match.prefix,
        tuple(match.layouts),
        {name: plain_arrays.arrays[full] for name, full in names.items()},
        names,
        semantics=semantics,
        notes=(note,) if own_class else (),
        made=tuple(plain_arrays.made[full] for full in names.values() if full in plain_arrays.made),
    )


def without_copies(
    modules: tuple[Module, ...], arrays: Mapping[str, Array]
) -> tuple[tuple[Module, ...], dict[str, str]]:
    """Removes each module (recurrent layer) of a Paddle file whose arrays all belong to another module as
    well; of two such modules, the one with more arrays or, if equal, with the shorter name is kept. Returns
    the remaining modules in order, and {second name of an array: the reason why it is not needed}. arrays:
    all arrays of the file, by name.

    Paddle stores the weight of a cell under two names, weight_ih_l0 and 0.cell.weight_ih. In files of other
    frameworks, an array with two names is used in two places of the model, and neither is spare.
    """
    distinct: list[Module] = []
    spare: dict[str, str] = {}
    for module in sorted(modules, key=lambda module: (-len(module.arrays), len(module.name))):
        if not spare.keys() >= set(module.names.values()):
            distinct.append(module)
            spare |= other_names(module, arrays)
    first_names = {name for module in distinct for name in module.names.values()}
    return (
        tuple(module for module in modules if any(module is other for other in distinct)),
        {name: reason for name, reason in spare.items() if name not in first_names},
    )


def other_names(module: Module, arrays: Mapping[str, Array]) -> dict[str, str]:
    """Finds second names of the arrays of a module (recurrent layer) in the file: names of arrays that begin
    with the module's name and are the same memory. Returns {second name: the reason to ignore it}. arrays:
    all arrays of the file, by name.
    """
    first = {memory_of(array): module.names[own] for own, array in module.arrays.items()}
    behind = {name: array for name, array in arrays.items() if name.startswith(module.name)}
    same = {name: first.get(memory_of(array), name) for name, array in behind.items()}
    return {name: f"the same array as {other}" for name, other in same.items() if other != name}


def memory_of(array: Array) -> tuple[Any, ...]:
    """Returns a key of an array's memory: its address, shape, strides and dtype."""
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def matches_of(
    shapes: Mapping[str, Shape], layouts: Mapping[str, str], frameworks: Iterable[str], layout: str | None
) -> tuple[Match, ...]:
    """Finds the recurrent layers among the arrays of a file, given as {name: shape}. The modules in
    `layouts`, {module: layout}, have the layouts (arrangements of weights) stated there, and must exist; the
    others have `layout` if it fits.

    frameworks: the frameworks whose layouts are preferred if several fit.
    """
    matches: list[Match] = []
    rest = dict(shapes)
    for module, own_layout in layouts.items():
        shapes_of_module = {
            name: shape for name, shape in rest.items() if re.match(rf"{re.escape(module)}[./_]", name)
        }
        if not shapes_of_module:
            raise LayoutError(
                f"no array has a name of a layer {module!r}, whose layout is stated as {own_layout}"
            )
        own_matches = [
            match for match in find(shapes_of_module, family(own_layout)) if bare(match.prefix) == module
        ]
        if not own_matches:
            raise nearest(shapes_of_module, family(own_layout))
        matches += own_matches
        rest = {name: shape for name, shape in rest.items() if name not in own_matches[0].names.values()}
    others = matches_with(rest, layout, tuple(frameworks)) if layout else find(rest, None, frameworks)
    return (*matches, *others)


def matches_with(shapes: Mapping[str, Shape], layout: str, frameworks: tuple[str, ...]) -> tuple[Match, ...]:
    """Finds the recurrent layers among arrays, given as {name: shape}, if the user states a layout (a
    framework's arrangement of weights) or a framework (`layout`) for them. Every layer that the layout fits
    gets it. If the layout has a mark, a pattern of names by which its layers differ from others with the same
    arrays, and some names match the mark, only those layers get it.

    frameworks: the frameworks whose layouts are preferred for other layers. A part of a layer that is
    recognised by names is no layer by itself, although the gates of a GRU have a kernel and a bias as well.
    """
    by_names = find(shapes, None, frameworks)
    held_by_names = [{*match.names.values()} for match in by_names]
    for marked in (True, False):
        matches = [
            match
            for match in find(shapes, family(layout), marked=marked)
            if not any({*match.names.values()} < held for held in held_by_names)
        ]
        if any(record(name).mark for match in matches for name in match.layouts):
            break
    used = {name for match in matches for name in match.names.values()}
    return (*matches, *(match for match in by_names if used.isdisjoint(match.names.values())))


def family(layout: str) -> list[Record]:
    """Returns the record of a layout such as "torch.gru", or all records of a framework such as "torch";
    raises `LayoutError` for an unknown name. A record describes where each number of the weights lies.
    """
    if "." in layout:
        return [record(layout)]
    of_framework = [
        candidate for candidate in records().values() if candidate.name.partition(".")[0] == layout
    ]
    if not of_framework:
        frameworks = dict.fromkeys(name.partition(".")[0] for name in records())
        raise LayoutError(
            f"no framework is called {layout!r}{meant(layout, frameworks)}; there are {', '.join(frameworks)}"
        )
    return of_framework
