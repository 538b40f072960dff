"""Stacks found in a net: consecutive recurrences of one cell, each over the outputs of the one before.

    a = recur x                       Stack(layers=(a, b, c))
    b = recur a              ->
    c = recur b

It pays if an engine runs the layers in one call: layer 1 at a step runs in parallel with layer 0 at the next
step. The net is not changed: a stack describes the nodes to an engine that asks for it. Layers are

- recurrences in the same direction, each of which runs only over the output of the one before; - of the same
known cell and number of units; the first may have another number of inputs; - without other readers of the
outputs between them; final memories may be read elsewhere.

The layers of a bidirectional stack are pairs: `Stack.layers` then contains pairs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stepnet.net.ir import Net
from stepnet.plan.groups import flat_recurrences
from stepnet.plan.passes.pair import Pair, pairs
from stepnet.plan.passes.pieces import (
    Cells,
    Piece,
    has_statics,
    only_output,
    piece_of,
    sequences_of,
    with_results,
)

Layer = int | Pair


@dataclass(frozen=True)
class Stack:
    """The layers of a stack, from the first to the last: numbers of recurrences, or pairs."""

    layers: tuple[Layer, ...]

    def piece(self, net: Net) -> Piece:
        """The stack as a separate net."""
        outputs = [layer.output for layer in self.layers if isinstance(layer, Pair)]
        recurrences = [number for layer in self.layers for number in members(layer)]
        return piece_of(net, [*with_results(net, *recurrences), *outputs])


def members(layer: Layer) -> tuple[int, ...]:
    """The recurrences of a layer."""
    return (layer.forward, layer.backward) if isinstance(layer, Pair) else (layer,)


def stacks(net: Net) -> tuple[Stack, ...]:
    """The stacks of a net, of two or more layers, in the order of their first layers."""
    cells = Cells(net)
    return stacks_of(net, layers_of(net, pairs(net, cells)), cells)


def stacks_of(net: Net, layers: Mapping[int, Layer], cells: Cells) -> tuple[Stack, ...]:
    """The stacks of these layers."""
    above = {below: layer for below, layer in steps_up(net, layers, cells) if not isinstance(layer, str)}
    lowest = [layer for layer in layers.values() if layer not in above.values()]
    made = [tuple(climbed(layer, above)) for layer in lowest]
    return tuple(Stack(layers) for layers in made if len(layers) > 1)


def climbed(layer: Layer, above: Mapping[Layer, Layer]) -> Iterator[Layer]:
    """A layer and the layers above it, upwards."""
    yield layer
    while layer in above:
        layer = above[layer]
        yield layer


def layers_of(net: Net, both: Sequence[Pair]) -> dict[int, Layer]:
    """The layers of a net by the number of their output, pairs first; a recurrence with several outputs that
    are read is not a layer.
    """
    paired = {number for pair in both for number in members(pair)}
    made: dict[int, Layer] = {pair.output: pair for pair in both}
    for number in sorted(flat_recurrences(net) - paired):
        output = only_output(net, number)
        if output is not None:
            made[output] = number
    return made


def steps_up(net: Net, layers: Mapping[int, Layer], cells: Cells) -> Iterator[tuple[Layer, Layer | str]]:
    """Each layer whose output another layer reads: with that layer, or the reason why they are not a
    stack.
    """
    outputs = {layer: output for output, layer in layers.items()}
    for above in layers.values():
        read = sequences_of(net.nodes[members(above)[0]])
        below = next((layers[number] for number in read if number in layers), None)
        if below is not None and below != above:
            yield below, reason_against(net, below, above, outputs[below], cells) or above


def reason_against(net: Net, below: Layer, above: Layer, output: int, cells: Cells) -> str | None:
    """The reason why two layers, one over the output of the other, are not a stack; None if they are."""
    lower, upper = members(below), members(above)
    if len(lower) != len(upper):
        return "one runs in both directions, and the other in one"
    if isinstance(below, Pair) and isinstance(above, Pair) and below.merge != above.merge:
        return f"their directions are merged by {below.merge} and by {above.merge}"
    users = [user for user in net.users()[output] if user not in upper]
    if users or output in net.results:
        return "the output between them is also read elsewhere"
    for one, other in zip(lower, upper, strict=True):
        nodes = net.nodes[one], net.nodes[other]
        if nodes[0].recur.reverse != nodes[1].recur.reverse:
            return "they run in different directions"
        if sequences_of(nodes[1]) != [output]:
            return "the upper one also runs over other sequences"
        if any(
            has_statics(net, node) or output in node.recur.operands_by_kind(node.inputs).memories
            for node in nodes
        ):
            return "their steps read statics"
        known = cells.both(one, other)
        if isinstance(known, str):
            return known
        picked = only_output(net, one)
        if picked is None or known[0].outputs[net.nodes[picked].attributes["of"]] != "h":
            return "the value between them is not the memory h"
    return None
