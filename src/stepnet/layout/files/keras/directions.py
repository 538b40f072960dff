"""The two directions of a Bidirectional of a Keras file: one module where they differ in direction alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepnet.errors import FileError
from stepnet.layout.files.keras.file import KerasLayer
from stepnet.layout.files.keras.names import DIRECTIONS, MERGES
from stepnet.layout.files.keras.parts import Sublayer
from stepnet.layout.files.model import Module


def merged_directions(
    path: Path, layer: KerasLayer, cells: Sequence[tuple[Sublayer, Module]]
) -> list[Module]:
    """Returns the modules (recurrent layers) of a Keras layer, with the two directions of a Bidirectional
    merged to one module if they differ only in direction. Else each direction is marked as a part of a
    Bidirectional, which cannot run alone.

    path: of the file, for messages. cells: the parts of the layer that are modules, each with its module.
    """
    by_path, modules = {sublayer.path: cell_module for sublayer, cell_module in cells}, list[Module]()
    for sublayer, module in cells:
        front = sublayer.path[:-1]
        name = "/".join((layer.name, *front))
        ways = [by_path.get((*front, direction)) for direction in DIRECTIONS.values()]
        forward, backward = ways
        if sublayer.direction is None:
            modules.append(module)
        elif (
            forward is None
            or backward is None
            or returns_both(sublayer)
            or not are_directions(forward, backward)
        ):
            modules.append(as_one_direction(path, sublayer, module))
        elif module is forward:
            merge = merge_of(path, sublayer, name)
            modules.append(bidirectional(name, forward, backward, merge))
    return modules


def returns_both(sublayer: Sublayer) -> bool:
    """Returns True if the Bidirectional around a part (`sublayer`) of a Keras layer, such as a cell, states
    that it returns the outputs of both directions (merge_mode null).
    """
    return sublayer.merge is None and bool(sublayer.run)


def are_directions(forward: Module, backward: Module) -> bool:
    """Returns True if two modules (recurrent layers) differ only in direction, so that they can be merged to
    one bidirectional module.
    """
    shapes = [
        {name: array.shape for name, array in direction.arrays.items()} for direction in (forward, backward)
    ]
    same = forward.layouts == backward.layouts and forward.semantics == backward.semantics
    gives = [(direction.last_only, direction.states) for direction in (forward, backward)]
    same = same and gives[0] == gives[1]
    return same and shapes[0] == shapes[1] and backward.reverse and not forward.reverse


def bidirectional(name: str, forward: Module, backward: Module, merge: str | None) -> Module:
    """Merges a forward and a backward module (recurrent layer) to one bidirectional module called `name`.
    merge: how their outputs are merged, such as "concat"; None if that is unknown.
    """
    ways = {"forward": forward, "backward": backward}
    return replace(
        forward,
        name=name,
        arrays={
            f"{direction}/{own}": array
            for direction, module in ways.items()
            for own, array in module.arrays.items()
        },
        names={
            f"{direction}/{own}": path
            for direction, module in ways.items()
            for own, path in module.names.items()
        },
        merge=merge,
    )


def as_one_direction(path: Path, sublayer: Sublayer, module: Module) -> Module:
    """Returns a module (recurrent layer), made of the part `sublayer` of a Keras layer, with the reason why
    it cannot run alone: it is one direction of a Bidirectional. A module that has another reason keeps that
    one. path: of the file, for messages.
    """
    both = returns_both(sublayer)
    merge = None if both else merge_of(path, sublayer, module.name)
    how = "returns" if both else "merges"
    return replace(
        module,
        alone=module.alone
        or f"is one direction of a Bidirectional, which {how} both{f' by {merge}' if merge else ''}",
    )


def merge_of(path: Path, sublayer: Sublayer, name: str) -> str | None:
    """Returns how the Bidirectional around a part (`sublayer`) of a Keras layer, such as a cell, merges the
    outputs of its directions, such as "concat"; None if the file does not specify it. Raises `FileError` if
    it does not merge them to one output. path: of the file; name: of the part, both for messages.
    """
    if sublayer.merge is None and not sublayer.run:
        return None
    if not isinstance(sublayer.merge, str) or sublayer.merge not in MERGES:
        raise FileError(
            f"{path}: {name!r} has merge_mode {str(sublayer.merge)[:100]!r}, which gives no one output"
        )
    return MERGES[sublayer.merge]
