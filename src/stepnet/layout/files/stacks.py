"""Modules of a file that are layers of one: joined into a module of several layers, and taken apart again.

a GRU of 3 inputs and 4 units, and a GRU of 4 inputs and 4 units above it     <->     a GRU of two layers
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepnet.layout.files.model import Array, Module


def stacked(modules: tuple[Module, ...], assumed: bool = False) -> tuple[Module, ...]:
    """Joins consecutive modules (recurrent layers) to one module of several layers, where their layout (a
    framework's arrangement of weights) can store them so.

    A GRU that follows a GRU of the same sizes and semantics is its second layer: `0/kernel`, `1/kernel`.

    assumed: True if a module whose input the file does not specify is assumed to take the module before it.
    """
    stacks: list[Module] = []
    for module in modules:
        below = stacks[-1] if stacks else None
        if below is not None and is_next(below, module, assumed):
            stacks[-1] = with_layer(below, module)
        else:
            stacks.append(module)
    return tuple(stacks)


def is_next(below: Module, module: Module, assumed: bool) -> bool:
    """Returns True if `module` (a recurrent layer) can be stored as the next layer of the module `below`: it
    takes the outputs of the last layer of `below`, both have the same layout (arrangement of weights),
    settings, names of weights and sizes (but for the inputs), and neither has notes or other facts that would
    be lost. A layer that runs in reverse alone, or whose two directions are not concatenated, cannot.

    assumed: True if a module whose input the file does not specify is assumed to take the module before it.
    """
    last = below.parts[-1]
    follows = last if assumed and module.follows is None else module.follows
    if follows != last or below.layout != module.layout:
        return False
    ways = [(neighbour.semantics, neighbour.reverse, neighbour.merge) for neighbour in (below, module)]
    if ways[0] != ways[1] or module.reverse or module.merge != "concat":
        return False
    cannot_stack = (
        below.returned
        or below.last_only
        or any(neighbour.notes or neighbour.alone for neighbour in (below, module))
    )
    if cannot_stack or not module.record.names_layers:
        return False
    lower, upper = below.solved_sizes(), module.solved_sizes()
    layer = {name for name in below.arrays if below.record.layer_of(name) == lower.layers - 1}
    if upper.layers > 1 or layer != {
        module.record.in_layer(name, lower.layers - 1, lower) for name in module.arrays
    }:
        return False
    return upper == replace(lower, inputs=lower.directions * lower.output, layers=1)


def with_layer(below: Module, module: Module) -> Module:
    """Returns a module of several recurrent layers: the layers of `below`, and on top the one layer of
    `module`, which takes their outputs.
    """
    layout_record, sizes = below.record, below.solved_sizes()
    sizes = replace(sizes, layers=sizes.layers + 1)
    lower = {name: layout_record.in_layer(name, layout_record.layer_of(name), sizes) for name in below.arrays}
    upper = {name: layout_record.in_layer(name, sizes.layers - 1, sizes) for name in module.arrays}
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


def renamed(mapping: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns a copy of `mapping`, a dictionary, with its keys renamed; names: {old key: new key}."""
    return {names[name]: value for name, value in mapping.items()}


def layer_arrays(module: Module) -> list[dict[str, Array]]:
    """Returns the arrays of each layer of a module, by the names that they have in a module of one layer."""
    layers = module.solved_sizes().layers
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
