"""Patches: parts of stepnet that run layers of other libraries than torch.nn.

    layer, its holder  --patch-->  Patched(kind, left)  --accelerate-->  layer.__class__ = kind

`accelerate` asks the patches about the modules that are no layers of torch.nn, and knows no library by name.
A patch is a row of `PATCHES`, or an entry point of an installed package in the group `stepnet.patches`. It is
imported when `accelerate` is first called, and `stepnet.torch` works without any.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, cast

from stepnet.compiler.values.entry_points import installed, load_object
from stepnet.compiler.values.fork_guard import module_late
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Patched:
    """Answer of a patch (support for another library) about a layer: how to replace it, or why not.

    Attributes:
        kind: The class that the layer is to have, with an `Origin` as its attribute `stepnets`; None if the
            layer is left unchanged. Its attribute `engine` is "auto"; `accelerate` sets it on a layer to the
            engines that it was asked for.
        left: The reasons why functions of the layer are not run by stepnet, by name; "" is the whole layer.
    """

    kind: Any = None
    left: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Origin:
    """Record in a class that a patch derived from a class of a library (attribute `stepnets`), to report and
    undo that.

    Attributes:
        theirs: The class of the library.
        runs: The names of the functions that stepnet runs, for the report.
        state: The names of attributes in which stepnet keeps prepared calls in a layer. `undo` removes them.
    """

    theirs: Any
    runs: tuple[str, ...]
    state: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patch:
    """Support for the layers of one library, by stepnet or by another package.

    Attributes:
        layers: The kind of layers, as in "the model has no layer of transformers that runs over steps".
        patched: The function from a layer, and the module that contains it, to the answer; None for a layer
            that the patch does not know. For a whole model the containing module is the model itself.
    """

    layers: str
    patched: Callable[[Any, Any], Patched | None]


PATCHES: Mapping[str, str] = {"transformers": "stepnet.torch.patches.transformers.patch"}
"""The modules of stepnet's own patches, by library. Each has its `Patch` as `PATCH`."""
GROUP = "stepnet.patches"
"""The entry points by which other packages add patches: the name of the library, and a `Patch`."""


def patches() -> tuple[Patch, ...]:
    """Imports the patches (support for layers of other libraries) of stepnet and of installed packages.

    Returns them in the order in which they are asked about a layer. Raises `LibraryError` if the patch of a
    package cannot be imported.
    """
    own = [module_late(module).PATCH for module in PATCHES.values()]
    others = [load_object(point, "patch") for name, point in installed(GROUP).items() if name not in PATCHES]
    return tuple(cast("list[Patch]", [*own, *others]))
