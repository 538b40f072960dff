"""The account of a conversion: which arrays and layers of a file were converted, copied or left out.

An array belongs to a recurrent layer if its name has the layer's prefix. To leave it out may change what the
layer computes, so it is an error unless the user names the array.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise, takewhile
from pathlib import Path

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError
from stepnet.layout.files.model import FileContents, Module, bare
from stepnet.layout.files.optimisers import optimiser_state_names
from stepnet.layout.files.others import Others, RenamedArray
from stepnet.layout.options import OPTIONS, option
from stepnet.model.merge import MERGES

MOST_SHOWN = 8
BY_ITSELF = f"take one by itself, say {option('module')}"
NORMALISES = re.compile(r"norm|(?:^|_)[lb]n(?:$|_|\d)", re.IGNORECASE)  # layernorm_i, ln, LayerNorm_0, bn1


@dataclass(frozen=True)
class Account:
    """Account of the arrays and layers of a file, by name: what was converted, copied or left.

    Attributes:
        converted: The arrays of each converted module.
        moved: Other arrays that were renamed or transposed.
        copied: Other arrays that were copied unchanged.
        not_converted_to: The framework to whose conventions these were not converted; empty if they already
            have them.
        left: The arrays that are not in the new file.
        layers: The layers that were not converted.
        spare: Arrays that are not needed, each with the reason.
    """

    converted: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    moved: Mapping[str, RenamedArray] = field(default_factory=dict[str, RenamedArray])
    copied: tuple[str, ...] = ()
    not_converted_to: str = ""
    left: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    spare: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, model: FileContents, modules: Iterable[Module], taken: Others | None) -> "Account":
        """Returns the account of a conversion, which lists for each array and layer of the file `model` what
        became of it: converted, moved (renamed or transposed), copied unchanged, left out or not needed.

        modules: the converted modules (recurrent layers). taken: the other arrays that are in the new file;
        None if all are left out.
        """
        chosen = tuple(modules)
        converted = {module.name: module.stored for module in chosen}
        sections = {name for module in chosen for name in module.parts}
        others = [module for module in model.modules if module.name not in sections]
        moved = taken.moved if taken else dict[str, RenamedArray]()
        gone = optimiser_state_names(model.rest) if taken else model.rest.keys()
        copied = tuple(name for name in model.rest if name not in gone and name not in moved)
        arrays = [*model.rest, *(name for module in others if module.names for name in module.stored)]
        return cls(
            converted,
            moved,
            copied,
            taken.foreign if taken and copied else "",
            tuple(name for name in arrays if name in gone or name not in model.rest),
            (*model.layers, *(f"{module.name} ({' or '.join(module.layouts)})" for module in others)),
            model.spare,
        )

    def lines(self) -> list[str]:
        """Returns lines of text for the user on the arrays and layers that were moved, copied, left out or
        not needed in a conversion; without empty lists, and without the converted modules.
        """
        moved = [f"{name} -> {renamed}" for name, renamed in self.moved.items()]
        copied = [f"copied as {'they are' if len(self.copied) > 1 else 'it is'}: {listed(self.copied)}"]
        if self.not_converted_to:
            copied.append(f"not converted to {self.not_converted_to}'s convention")
        spare = [f"{name} ({reason})" for name, reason in self.spare.items()]
        sections = (
            ("moved", moved),
            ("left: arrays", self.left),
            ("left: layers", self.layers),
            ("not needed", spare),
        )
        lines = [f"{title}: {listed(names)}" for title, names in sections if names]
        return [*lines[: bool(moved)], *(["; ".join(copied)] if self.copied else []), *lines[bool(moved) :]]


def listed(names: Collection[str], most: int = MOST_SHOWN) -> str:
    """Joins names by commas for a message; of more than `most`, the first ones and how many others there are.

    >>> listed(["i", "f", "g", "o"]), listed(["i", "f", "g", "o"], most=2)
    ('i, f, g, o', 'i, f and 2 more')
    """
    shown = ", ".join(list(names)[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def notes_on_infinities(module: Module) -> tuple[str, ...]:
    """Returns a note that names the arrays of a module with NaN or infinite numbers; () if there are none."""
    with np.errstate(invalid="ignore"):  # isfinite of a bfloat16 NaN warns
        odd = [name for name, array in module.arrays.items() if not np.isfinite(array).all()]
    names = [module.names.get(name, name) for name in odd]
    return (f"NaN or infinite numbers are in {listed(names)}",) if names else ()


def check_drop(drop: Iterable[str], models: Sequence[FileContents]) -> None:
    """Raises `LayoutError` for a name in `drop`, the arrays that the user asks to leave out, that no
    unconverted array of the models has, because the request would have no effect.
    """
    for name in drop:
        if not any(name in model.rest for model in models):
            raise LayoutError(
                f"no unconverted array is called {name!r}: "
                f"there is nothing for {OPTIONS['drop'].name} to leave out"
            )


def check_nothing_is_lost(
    model: FileContents, modules: Iterable[Module], drop: Collection[str] = (), copied: bool | None = None
) -> None:
    """Raises `LayoutError` if a conversion would lose arrays of a recurrent layer of the file `model`,
    because the layer's layout (arrangement of weights) does not have them. The state of an optimiser does not
    count.

    modules: the modules to convert. drop: names of arrays that may be left out. copied: True if other arrays
    are copied to the new file; None if that is impossible. If they are copied, and the layer has no name,
    arrays of submodules such as an output layer are accepted, but not those of a normalisation, which may be
    part of the layer.
    """
    rest = sorted(model.rest.keys() - optimiser_state_names(model.rest))
    fronts = tuple(module.name for module in model.modules if module.name)
    index_of = {name: index for index, name in enumerate(model.rest)}
    for module in modules:
        for module_name in module.parts:
            candidates = sorted(
                {*names_in_layer(module_name, module, rest), *module.besides}, key=index_of.__getitem__
            )
            if not module_name:  # every array that no other layer has may belong to it
                candidates = [name for name in candidates if not name.startswith(fronts)]
            may_be_copied = copied and not module_name
            lost = [
                name
                for name in candidates
                if name not in drop and not (may_be_copied and is_in_submodule(name))
            ]
            if lost:
                hint = not module_name and copied is False
                copies = option("rest", rest="copy")
                raise LayoutError(
                    f"{bare(module_name) or 'the recurrent layer'} has {listed(lost)}, which "
                    f"{' or '.join(module.layouts)} does not have: say {option('layout')} if the layer has "
                    f"another layout, or {option('drop')} to leave an array out"
                    f"{f', or {copies} if they are not part of the layer' if hint else ''}"
                )


def names_in_layer(prefix: str, module: Module, names: Sequence[str]) -> list[str]:
    """Returns the array names among `names` (sorted) that begin with the prefix of a recurrent layer, to find
    arrays of the layer that a conversion would lose; all names if the prefix is empty. Names that extend the
    full name of one of the layer's arrays, as in the state of an optimiser, are left out.

    module: the layer. If its file itself lists the arrays of each layer, the result is empty.
    """
    array_names = set(module.names.values())
    if not array_names:
        return []  # the file itself lists the arrays of its layers
    if prefix:
        front = prefix if prefix[-1] in "./_" else f"{prefix}/"
        behind = range(bisect_left(names, front), len(names))
        matching = [names[index] for index in takewhile(lambda index: names[index].startswith(front), behind)]
    else:
        matching = list(names)
    return [
        name
        for name in matching
        if not any(name.startswith((f"{array}/", f"{array}.")) for array in array_names)
    ]


def is_in_submodule(name: str) -> bool:
    """Returns True if an array is in a submodule other than a normalisation, by its name: it may be copied.

    >>> [is_in_submodule(name) for name in ("head.weight", "layernorm_i.weight", "ln.bias", "h0")]
    [True, False, False, False]
    """
    *fronts, _ = re.split("[./]", name)
    return bool(fronts) and not any(NORMALISES.search(front) for front in fronts)


def check_merges(modules: Iterable[Module]) -> None:
    """Raises `LayoutError` if neither the file nor the user says how a bidirectional module (recurrent layer)
    merges the outputs of its two directions, which a new model has to say.
    """
    for module in modules:
        if module.merge is None:
            name = bare(module.name) or "the layer"
            choice = " or ".join(map(repr, MERGES))
            remedy = option("semantics", field="merge", value="VALUE", choice=choice)
            raise LayoutError(
                f"{name} runs in both directions, and the file does not say how their outputs are merged: "
                f"say {remedy}"
            )


def check_stack(modules: tuple[Module, ...], output: Path | str, assumed: bool) -> None:
    """Raises `LayoutError` unless the modules (recurrent layers) can run one after the other as the layers of
    the new file or stack `output`: each is an ordinary layer, and takes the outputs of the one before at all
    steps.

    assumed: True if modules whose inputs the file does not specify are assumed to be stacked.
    """
    for module in modules:
        if module.alone:
            raise LayoutError(
                f"{output} would run {bare(module.name)} as an ordinary layer, and it "
                f"{module.alone}: {BY_ITSELF}, or convert it to a file of arrays, as .npz or .safetensors"
            )
    later = [module.parts[-1] for module in modules]
    if modules and modules[0].follows in later:
        raise LayoutError(
            f"{modules[0].bare[0]} takes the outputs of {bare(modules[0].follows)}, which {output} "
            f"would run after it: {BY_ITSELF}"
        )
    for below, module in pairwise(modules):
        names = [layer.bare[-1] or "the weights" for layer in (below, module)]
        if below.flipped:
            raise LayoutError(
                f"{names[0]} returns its outputs last step first, and {names[1]} takes them in this order, "
                f"which {output} cannot express: {BY_ITSELF}"
            )
        if below.last_only:
            raise LayoutError(
                f"{names[0]} returns only its last output, and {output} would run {names[1]} over its "
                f"outputs at all steps: {BY_ITSELF}"
            )
        if module.follows == below.parts[-1] or (assumed and module.follows is None):
            continue
        if module.follows is None:
            reason = f"the file does not say that it takes them: say {option('stack')} if it does, or"
        elif not module.follows:
            reason = "the file says that it takes something else, or more, which would be lost:"
        else:
            reason = f"it takes {bare(module.follows)} instead:"
        raise LayoutError(
            f"{output} would run {names[1]} over the outputs of {names[0]}; {reason} {BY_ITSELF}"
        )
