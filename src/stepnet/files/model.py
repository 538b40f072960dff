"""What a model file holds of recurrent layers: modules, each the arrays of a layout, and the rest.

state dict, npz, checkpoint ...   arrays by name: layers are found among them by names and shapes
Keras, ONNX, TFLite               layers that say what they are, and how they are set
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from stepnet.errors import FileError, LayoutError
from stepnet.files.optimisers import kept_by_optimisers
from stepnet.files.others import Stated
from stepnet.files.parametrized import Plain, plain
from stepnet.layout.find import Found, find, nearest, one_function
from stepnet.layout.options import OPTIONS, option
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.report import Made
from stepnet.layout.sizes import Shape, Sizes
from stepnet.layout.solve import told

Array = np.ndarray[Any, np.dtype[Any]]


DIGITS = re.compile(r"(\d+)")
# What stands in the names of a state dict for what wraps a model, or the dictionary of a checkpoint it is in.
WRAPPERS = frozenset(
    {
        *("state_dict", "model_state_dict", "current_model_state", "model", "module"),
        *("ema_model", "averaged_model"),
        *("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"),
    }
)


@dataclass(frozen=True)
class Module:
    """One recurrent layer of a file, or a stack of layers with both directions.

    name: what is before the names of its arrays in the file, or the layer's name. layouts: those that it
    may be, one where the file tells. arrays: by the layout's names; `names` is what the file calls them.
    sizes and semantics: what the file says of them. follows: the name of the module whose outputs it
    takes, if that is all it takes; that of the layer between them, or "", where it takes something else,
    None where the file does not say. reverse: whether its one direction runs from each sequence's last
    step; flipped: whether it then gives its outputs in the order in which it computes them, as Keras
    does, last step first. merge: what becomes of the outputs of both directions, as `Bidirectional` has
    it; None where the file does not say. last_only: whether it gives its last output alone; states:
    whether it gives its last states too; returned: whether its model gives these. notes: what the file
    says that no layout has. use: what else its model makes of its outputs other than to take those of all
    steps. made: those of its arrays that the file holds as others. alone: why it is no ordinary layer of
    a model, if it is none. stack: the names of the modules that it was stacked of, if it was. besides:
    names of other arrays of the file that are parts of it, and that no layout has.
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
    made: tuple[Made, ...] = ()
    alone: str = ""
    besides: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the modules of the file that it is."""
        return self.stack or (self.name,)

    @property
    def bare(self) -> tuple[str, ...]:
        """As `parts`, without the sign between a name and those of arrays."""
        return tuple(map(bare, self.parts))

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the arrays in the file that it is made of."""
        of = {one.name: one.of for one in self.made}
        return tuple(part for name in self.names.values() or self.arrays for part in of.get(name, (name,)))

    @property
    def layout(self) -> str:
        """Its layout; raises `LayoutError` where there are several that are not the same function here."""
        return one_function(self.layouts, self.arrays, self.semantics) or self.found.layout

    @property
    def found(self) -> Found:
        """The arrays with the layouts that they fit."""
        return Found(self.name, self.names or dict.fromkeys(self.arrays, ""), self.layouts)

    @property
    def record(self) -> Record:
        """The record of its layout."""
        return record(self.layout)

    def told(self) -> Sizes:
        """Its sizes."""
        return told(self.record, {name: array.shape for name, array in self.arrays.items()}, self.sizes)

    def __repr__(self) -> str:
        return f"Module({self.name!r}: {' or '.join(self.layouts)}, {len(self.arrays)} arrays)"


@dataclass(frozen=True)
class Model:
    """The recurrent modules of a file, its other arrays by name, and what its other layers are called.

    stated: what the file says that some of its other arrays are. spare: arrays that add nothing to the
    modules, by name, each with the reason: it is another one again. problems: why something that is named as
    a layer is none of the modules, by what is before its names. ordered: whether the file has its modules in
    the order of the program that made it, as a state dict has, and not in that of their names.
    """

    path: str
    modules: tuple[Module, ...]
    rest: Mapping[str, Array] = field(default_factory=dict[str, Array])
    layers: tuple[str, ...] = ()
    stated: Mapping[str, Stated] = field(default_factory=dict[str, Stated])
    spare: Mapping[str, str] = field(default_factory=dict[str, str])
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    ordered: bool = True

    def in_a_row(self, modules: tuple[Module, ...]) -> tuple[Module, ...]:
        """Modules each of which takes the outputs of the one before, as somebody says; raises `LayoutError`
        where neither the file nor the names tell their order.

        Names tell it where they differ in one number: rnns.2 is before rnns.10, and gru before gru_1.
        """
        if self.ordered or len(modules) < 2 or all(one.follows is not None for one in modules[1:]):
            return modules
        places = numbered([bare(one.name) for one in modules])
        if places:
            return tuple(modules[place] for place in places)
        names = [bare(module.name) for module in modules]
        example = names[::-1]
        modules_said = " ".join(f"{OPTIONS['module'].name} {name}" for name in example)
        raise LayoutError(
            f"such a file does not keep the order of its layers, which are {', '.join(names)} by their "
            "names: say which is over which, the first one first, as in "
            f"{option('order', modules=modules_said, names=str(example))}"
        )

    def called(self, name: str) -> list[Module]:
        """The modules that a name may mean: the one that has it, or those that have it in something.

        Where none has the name, what wraps a model on its way to a file does not count: `rnn` is what
        state_dict.model.rnn is called, and ema_model.rnn.
        """
        for module in self.modules:
            if name in (module.name, *([module.name[:-1]] if module.name.endswith((".", "/")) else [])):
                return [module]
        return [module for module in self.modules if unwrapped(module.name) == unwrapped(name)]

    def chosen(self, name: str, question: str = "module", **about: str) -> Module:
        """The module of that name; raises `LayoutError` where that is not clear. question, about: the option
        that has the name.
        """
        meant = self.called(name)
        if len(meant) == 1:
            return meant[0]
        say = f"say {option(question, **about)} for one of these"
        names = ", ".join(repr(module.name) for module in meant or self.modules) or "none"
        if meant:
            raise LayoutError(f"{name!r} may be any of {names}: {say}")
        problems = [text for prefix, text in self.problems.items() if name == bare(prefix)]
        which = f"there are {names}: {say}"
        if [module.name for module in self.modules] == [""]:
            away = OPTIONS["module"].name if question == "module" else f"{name}:"
            which = f"the only one has no name, leave {away} away"
        raise LayoutError("".join(problems) or f"no recurrent module is called {name!r}; {which}")


def bare(name: str) -> str:
    """A module's name without the one sign between it and the names of its arrays.

    >>> bare("rnn_."), bare("lstm0_"), bare("0/GRUCell_0/")
    ('rnn_', 'lstm0', '0/GRUCell_0')
    """
    return name[:-1] if name.endswith((".", "/", "_")) else name


def numbered(names: Sequence[str]) -> list[int]:
    """The places of names in the order of the one number in which they differ; none where it is not one.

    >>> numbered(["rnns.10.cell", "rnns.2.cell"]), numbered(["gru_1", "gru"]), numbered(["top", "low"])
    ([1, 0], [1, 0], [])
    """
    words = [DIGITS.split(name if name[-1:].isdecimal() else f"{name}_0") for name in names]
    varied = [place for place, same in enumerate(zip_longest(*words)) if len({*same}) > 1]
    if len(varied) != 1 or not all(one[varied[0]].isdecimal() for one in words):
        return []
    return sorted(range(len(names)), key=lambda place: int(words[place][varied[0]]))


def unwrapped(name: str) -> str:
    """A module's name without what wraps models on their way to a file.

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
) -> Model:
    """The modules among arrays by name.

    Weights that layers of PyTorch make of other arrays are made here. What an optimiser keeps is no layer,
    unless `layouts` has it.

    frameworks: those whose layouts a file of this kind has, which are meant where others fit as well. layout:
    the one that is meant where others fit as well, or a framework; layouts: those of modules by their names.
    suffix: what may stand behind the name of each array. settings: what the file says of modules, by what is
    before their names, in the framework's words. classes: of modules that are a program's own, likewise.
    """
    own = plain(arrays) if "torch" in frameworks else Plain(arrays)
    whole = {name.removesuffix(suffix): name for name in own.arrays}
    if len(whole) != len(own.arrays):
        raise FileError(f"{path}: two arrays in it are called the same but for {suffix!r}")
    asked = tuple(f"{module}{sign}" for module in layouts or {} for sign in "./_")
    kept = {name for name in kept_by_optimisers(whole) if not name.startswith(asked)}
    weights = {name: given for name, given in whole.items() if name not in kept}
    shapes = {name: own.arrays[given].shape for name, given in weights.items()}
    places = said(shapes, layouts or {}, frameworks, layout)
    modules = tuple(
        module_of(one, whole, own, (settings or {}).get(one.prefix, {}), (classes or {}).get(one.prefix, ""))
        for one in places
    )
    modules, spare = once(modules, own.arrays) if "paddle" in frameworks else (modules, dict[str, str]())
    taken = {name for module in modules for name in module.stored} | spare.keys() | own.spare.keys()
    rest = {name: array for name, array in arrays.items() if name not in taken}
    return Model(path, modules, rest, spare={**own.spare, **spare}, problems=own.problems)


def module_of(
    found: Found, whole: Mapping[str, str], own: Plain, settings: Mapping[str, Any], own_class: str
) -> Module:
    """A layer that was found; whole: the names in the file by those without what stands behind each.
    settings: what the file says of it, in the framework's words. own_class: its class, if it is none of the
    framework's.
    """
    taken_for = " or ".join(found.layouts)
    note = f"it is a {own_class}, taken for {taken_for} by its arrays' names; its forward may do more"
    semantics = {
        name: setting.ours(layout, settings[setting.name])
        for layout in found.layouts
        for name, setting in record(layout).settings().items()
        if setting.name in settings
    }
    names = {name: whole[given] for name, given in found.names.items()}
    return Module(
        found.prefix,
        tuple(found.layouts),
        {name: own.arrays[given] for name, given in names.items()},
        names,
        semantics=semantics,
        notes=(note,) if own_class else (),
        made=tuple(own.made[given] for given in names.values() if given in own.made),
    )


def once(
    modules: tuple[Module, ...], arrays: Mapping[str, Array]
) -> tuple[tuple[Module, ...], dict[str, str]]:
    """The modules, less those that are all in another one, and the names behind a module's prefix under which
    a file of Paddle's has arrays of it again, with the reason.

    Paddle calls the weight of one cell both weight_ih_l0 and 0.cell.weight_ih; the whole layer has them all.
    Elsewhere an array that is there by two names has two places in the model, of which neither is spare.
    """
    kept: list[Module] = []
    spare: dict[str, str] = {}
    for module in sorted(modules, key=lambda module: (-len(module.arrays), len(module.name))):
        if not spare.keys() >= set(module.names.values()):
            kept.append(module)
            spare |= other_names(module, arrays)
    own = {name for module in kept for name in module.names.values()}
    return (
        tuple(module for module in modules if any(module is one for one in kept)),
        {name: reason for name, reason in spare.items() if name not in own},
    )


def other_names(module: Module, arrays: Mapping[str, Array]) -> dict[str, str]:
    """The names behind a module's prefix of arrays that it has by another name, with the reason."""
    first = {memory_of(array): module.names[own] for own, array in module.arrays.items()}
    behind = {name: array for name, array in arrays.items() if name.startswith(module.name)}
    same = {name: first.get(memory_of(array), name) for name, array in behind.items()}
    return {name: f"the same array as {other}" for name, other in same.items() if other != name}


def memory_of(array: Array) -> tuple[Any, ...]:
    """Which numbers in memory an array is."""
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def said(
    shapes: Mapping[str, Shape], layouts: Mapping[str, str], frameworks: Iterable[str], layout: str | None
) -> tuple[Found, ...]:
    """The layers among arrays, some of which are said to have certain layouts by their names, and the others
    one, where they may have it.
    """
    places: list[Found] = []
    rest = dict(shapes)
    for module, own_layout in layouts.items():
        own = {name: shape for name, shape in rest.items() if re.match(rf"{re.escape(module)}[./_]", name)}
        if not own:
            raise LayoutError(f"no array is called as one of {module!r}, which is said to be {own_layout}")
        found = [one for one in find(own, family(own_layout)) if bare(one.prefix) == module]
        if not found:
            raise nearest(own, family(own_layout))
        places += found
        rest = {name: shape for name, shape in rest.items() if name not in found[0].names.values()}
    return (*places, *(meant(rest, layout, tuple(frameworks)) if layout else find(rest, None, frameworks)))


def meant(shapes: Mapping[str, Shape], layout: str, frameworks: tuple[str, ...]) -> tuple[Found, ...]:
    """The layers among arrays of which somebody says a layout, or a framework.

    It is that of the layers that may have it, and where any is called as such a layer has to be, of those
    alone. No part of a layer that names tell is taken for a layer: the gates of a GRU have a kernel and a
    bias as well.
    """
    among = family(layout)
    told = find(shapes, None, frameworks)
    whole = [{*one.names.values()} for one in told]
    for marked in (True, False):
        found = [
            one
            for one in find(shapes, among, marked=marked)
            if not any({*one.names.values()} < held for held in whole)
        ]
        if any(record(name).mark for one in found for name in one.layouts):
            break
    taken = {name for one in found for name in one.names.values()}
    return (*found, *(one for one in told if taken.isdisjoint(one.names.values())))


def family(layout: str) -> list[Record]:
    """The records that a layout, or the name of a framework, stands for."""
    if "." in layout:
        return [record(layout)]
    of_framework = [one for one in records().values() if one.name.partition(".")[0] == layout]
    if not of_framework:
        frameworks = dict.fromkeys(name.partition(".")[0] for name in records())
        raise LayoutError(f"no framework is called {layout!r}; there are {', '.join(frameworks)}")
    return of_framework


# ---- stacks ------------------------------------------------------------------------------------------------


def stacked(modules: tuple[Module, ...], assumed: bool = False) -> tuple[Module, ...]:
    """Modules with those that follow one another made one, where a layout can say them as layers of one.

    assumed: where a file does not tell, each follows the one before it.

    A GRU that follows a GRU of the same sizes and semantics is its second layer: `0/kernel`, `1/kernel`.
    """
    done: list[Module] = []
    for module in modules:
        below = done[-1] if done else None
        if below is not None and is_next(below, module, assumed):
            done[-1] = on_top(below, module)
        else:
            done.append(module)
    return tuple(done)


def is_next(below: Module, module: Module, assumed: bool) -> bool:
    """Whether a module is the next layer of the one below."""
    last = below.parts[-1]
    follows = last if assumed and module.follows is None else module.follows
    if follows != last or below.layout != module.layout:
        return False
    ways = [(one.semantics, one.reverse, one.merge) for one in (below, module)]
    if ways[0] != ways[1] or module.reverse or module.merge != "concat":
        return False
    alone = below.returned or any(one.notes or one.alone for one in (below, module))
    if alone or not module.record.names_layers:
        return False
    here, there = below.told(), module.told()
    layer = {name for name in below.arrays if below.record.layer_of(name) == here.layers - 1}
    if there.layers > 1 or layer != {
        module.record.in_layer(name, here.layers - 1, here) for name in module.arrays
    }:
        return False
    return there == replace(here, inputs=here.directions * here.output, layers=1)


def on_top(below: Module, module: Module) -> Module:
    """A module with another as its last layer."""
    own, sizes = below.record, below.told()
    sizes = replace(sizes, layers=sizes.layers + 1)
    lower = {name: own.in_layer(name, own.layer_of(name), sizes) for name in below.arrays}
    upper = {name: own.in_layer(name, sizes.layers - 1, sizes) for name in module.arrays}
    return replace(
        below,
        name=f"{below.name} + {module.name}",
        stack=(*below.parts, *module.parts),
        arrays={**renamed(below.arrays, lower), **renamed(module.arrays, upper)},
        names={**renamed(below.names, lower), **renamed(module.names, upper)},
        use=tuple(dict.fromkeys((*below.use, *module.use))),
        last_only=module.last_only,
        states=below.states or module.states,
        returned=module.returned,
        made=(*below.made, *module.made),
        sizes={},
    )


def renamed(held: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Things by other names."""
    return {names[name]: thing for name, thing in held.items()}


def layer_arrays(module: Module) -> list[dict[str, Array]]:
    """The arrays of each layer, by the names they have where there is just one."""
    layers = module.told().layers
    if layers == 1:
        return [dict(module.arrays)]
    return [
        {
            name.partition("/")[2]: array
            for name, array in module.arrays.items()
            if name.startswith(f"{layer}/")
        }
        for layer in range(layers)
    ]
