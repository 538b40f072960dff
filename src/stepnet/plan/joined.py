"""Joined parts: several recurrences of a net as one part, for engines that run them in one call.

    f = recur x, forward             joined part    reads    x, first memories of f and of b
    b = recur x, reverse      ->                    members  ((f, b),)
    y = concatenate f b                             results  y, last memories of f and of b

`passes/pair.py` and `passes/stack.py` find the recurrences that belong together. The members of a joined part
are the parts that the recurrences would be if they were not joined, with their plans. So an engine that can
run a single recurrence recognises each member, and it can run the members one after the other if a call
requires that.
"""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from stepnet.net.ir import Net
from stepnet.net.types import STEPS
from stepnet.plan.groups import Groups
from stepnet.plan.passes.pair import Pair, pairs
from stepnet.plan.passes.pieces import Cells, with_results
from stepnet.plan.passes.stack import Layer, layers_of, members, stacks_of
from stepnet.plan.schedule import Part

Layers = tuple[Layer, ...]


def pairs_and_stacks(net: Net) -> tuple[list[Pair], list[Layers]]:
    """The bidirectional layers and the stacks of a net. Each recurrence is recognised once for both
    searches.
    """
    cells = Cells(net)
    both = pairs(net, cells)
    return [*both], [stack.layers for stack in stacks_of(net, layers_of(net, both), cells)]


def chains(net: Net) -> tuple[Layers, ...]:
    """The groups of layers that may be joined: stacks, and bidirectional layers that are in no stack."""
    both, piled = pairs_and_stacks(net)
    within = {layer for layers in piled for layer in layers}
    return (*piled, *((pair,) for pair in both if pair not in within))


def layers_in(net: Net) -> list[str]:
    """A description of each bidirectional layer and stack of a net."""
    both, piled = pairs_and_stacks(net)
    return [described(net, layers) for layers in (*((pair,) for pair in both), *piled)]


def joined_part(layers: Layers, parts: Mapping[int, Part], net: Net) -> Part:
    """The part that joins these layers of a net. parts: for each recurrence, the part that it is without
    joining.
    """
    separate = tuple(tuple(parts[number] for number in members(layer)) for layer in layers)
    listed = [part for layer in separate for part in layer]
    top, first = layers[-1], listed[0]
    memories = [number for part in listed for number in first_memories(part)]
    inside = with_results(net, *(number for layer in layers for number in members(layer)))
    return Part(
        "joined",
        (*first.reads[: len(first.reads) - first.memories], *memories),
        (
            top.output if isinstance(top, Pair) else listed[-1].results[0],
            *(number for part in listed for number in part.results[1:]),
        ),
        STEPS,
        memories=len(memories),
        parameters=tuple(number for part in listed for number in part.parameters),
        last_only=listed[-1].last_only,
        members=separate,
        merge=top.merge if isinstance(top, Pair) else "",
        inside=frozenset([*inside, *(layer.output for layer in layers if isinstance(layer, Pair))]),
    )


def hindrance(part: Part, net: Net, groups: Groups, others: Sequence[Part]) -> str | None:
    """The reason why no engine can run a joined part as one; None if one may. others: the other joined
    parts.
    """
    if not groups.once.issuperset(part.parameters):
        return "their parameters are results of other parts"
    return (
        "one of them depends on the results of another through other parts"
        if circular(net, [*others, part])
        else None
    )


def first_memories(part: Part) -> tuple[int, ...]:
    """The initial memories of a recurrence without statics."""
    return part.reads[len(part.reads) - part.memories :]


def circular(net: Net, joined: Sequence[Part]) -> bool:
    """Whether a joined part depends on its own results, through other parts or other joined parts."""
    part = {number: place for place, each in enumerate(joined) for number in each.inside}
    needed: dict[int, set[int]] = {}
    for number, node in enumerate(net.nodes):
        here = part.get(number, len(joined) + number)
        operands = {part.get(operand, len(joined) + operand) for operand in node.inputs}
        needed.setdefault(here, set()).update(operands - {here})
    try:
        TopologicalSorter(needed).prepare()
    except CycleError:
        return True
    return False


def described(net: Net, layers: Layers) -> str:
    """The description of some layers; recurrences are numbered in the order of the net."""
    flat = sorted(number for number, node in enumerate(net.nodes) if node.operation == "recur")
    places = [" and ".join(str(flat.index(number)) for number in members(layer)) for layer in layers]
    if len(places) > 1:
        return f"recurrences {'; '.join(places)}: layers, each on the one before"
    (layer,) = layers
    merged = "side by side" if isinstance(layer, Pair) and layer.merge == "concat" else "added"
    return f"recurrences {places[0]}: both directions of a layer, {merged}"
