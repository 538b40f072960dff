"""What a model file holds of recurrent layers: modules, each the arrays of a layout, and the rest.

state dict, npz, checkpoint ...   arrays by name: layers are found among them by names and shapes
Keras, ONNX, TFLite               layers that say what they are, and how they are set
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stepnet.errors import FileError, LayoutError
from stepnet.layout.find import Found, find
from stepnet.layout.record import Record
from stepnet.layout.registry import record, records
from stepnet.layout.sizes import Sizes
from stepnet.layout.solve import told

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Module:
    """One recurrent layer of a file, or a stack of layers with both directions.

    name: what is before the names of its arrays in the file, or the layer's name. layouts: those that it may
    be, one where the file tells. arrays: by the layout's names; `names` is what the file calls them. sizes
    and semantics: what the file says of them. follows: the name of the module whose outputs it takes, if that
    is all it takes. reverse: whether its one direction runs from each sequence's last step.
    merge: what becomes of the outputs of both directions, as `Bidirectional` has it. notes: what the file
    says that no layout has.
    """

    name: str
    layouts: tuple[str, ...]
    arrays: Mapping[str, Array]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    semantics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    follows: str | None = None
    reverse: bool = False
    merge: str = "concat"
    notes: tuple[str, ...] = ()

    @property
    def layout(self) -> str:
        """Its layout; raises `LayoutError` where that is not told."""
        return Found(self.name, self.names or dict.fromkeys(self.arrays, ""), self.layouts).layout

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
    """The recurrent modules of a file, and its other arrays by name."""

    path: str
    modules: tuple[Module, ...]
    rest: Mapping[str, Array] = field(default_factory=dict[str, Array])

    def chosen(self, name: str | None = None) -> Module:
        """The module of that name, or the only one; raises `LayoutError` where that is not clear."""
        names = ", ".join(repr(module.name) for module in self.modules) or "none"
        if name is None and len(self.modules) != 1:
            raise LayoutError(f"there are {len(self.modules)} recurrent modules: name one of {names}")
        for module in self.modules:
            if name in (None, module.name, f"{module.name}".rstrip("./")):
                return module
        raise LayoutError(f"no recurrent module is called {name!r}; there are {names}")


def among(
    path: str,
    arrays: Mapping[str, Array],
    frameworks: Iterable[str],
    layout: str | None = None,
    *,
    suffix: str = "",
    mark: str = "",
) -> Model:
    """The modules among arrays by name.

    frameworks: those whose layouts a file of this kind has; with none of them found, all others. layout: the
    only one to look for. suffix: what may stand behind the name of each array. mark: a word in the last part
    of a recurrent module's name; where some have it, others are none.
    """
    whole = {name.removesuffix(suffix): name for name in arrays}
    if len(whole) != len(arrays):
        raise FileError(f"{path}: two arrays in it are called the same but for {suffix!r}")
    shapes = {name: arrays[given].shape for name, given in whole.items()}
    known = tuple(frameworks)
    preferred = [one for one in records().values() if one.name.partition(".")[0] in known]
    found = find(shapes, [record(layout)] if layout else preferred)
    if not found and layout is None:
        found = find(shapes)
    found = [one for one in found if mark in one.prefix.rstrip("/").rpartition("/")[2]] or found
    modules = tuple(
        Module(
            one.prefix,
            tuple(one.layouts),
            {own: arrays[whole[name]] for own, name in one.names.items()},
            {own: whole[name] for own, name in one.names.items()},
        )
        for one in found
    )
    taken = {name for module in modules for name in module.names.values()}
    return Model(path, modules, {name: array for name, array in arrays.items() if name not in taken})


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
    last = below.name.rpartition(" + ")[2]
    follows = last if assumed and module.follows is None else module.follows
    if follows != last or len(below.layouts) > 1 or below.layouts != module.layouts:
        return False
    ways = [(one.semantics, one.reverse, one.merge) for one in (below, module)]
    if ways[0] != ways[1] or module.reverse or module.merge != "concat" or module.notes or below.notes:
        return False
    here, there = below.told(), module.told()
    if there.layers > 1 or set(unlayered(below)) != set(module.arrays):
        return False
    return there == replace(here, inputs=here.directions * here.output, layers=1)


def unlayered(module: Module) -> list[str]:
    """The names of the arrays of one layer."""
    if module.told().layers == 1:
        return list(module.arrays)
    return [name.partition("/")[2] for name in module.arrays if name.startswith("0/")]


def on_top(below: Module, module: Module) -> Module:
    """A module with another as its last layer."""
    layers = below.told().layers
    lower, names = below.arrays, below.names
    if layers == 1:
        lower = {f"0/{name}": array for name, array in lower.items()}
        names = {f"0/{name}": given for name, given in names.items()}
    return replace(
        below,
        name=f"{below.name} + {module.name}",
        arrays={**lower, **{f"{layers}/{name}": array for name, array in module.arrays.items()}},
        names={**names, **{f"{layers}/{name}": given for name, given in module.names.items()}},
        sizes={},
    )


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
