"""Several recurrences of a net as one part, for engines that run them in one piece.

    f = recur x, forward             joined part    reads    x, first memories of f and of b
    b = recur x, reverse      ->                    members  ((f, b),)
    y = concatenate f b                             results  y, last memories of f and of b

What belongs together is found by `passes/pair.py` and `passes/stack.py`. The members of a joined part are the
parts that its recurrences are apart, with their plans, so an engine that knows a recurrence alone knows what
it is asked to join; and it can run the members one after the other where a call asks for that.
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
    """The layers of both directions, and the stacks. Each recurrence is recognised once for both."""
    cells = Cells(net)
    both = pairs(net, cells)
    return [*both], [stack.layers for stack in stacks_of(net, layers_of(net, both), cells)]


def chains(net: Net) -> tuple[Layers, ...]:
    """What may be in one piece: layers, each on the one before, and layers of both directions alone."""
    both, piled = pairs_and_stacks(net)
    within = {layer for layers in piled for layer in layers}
    return (*piled, *((pair,) for pair in both if pair not in within))


def layers_in(net: Net) -> list[str]:
    """The layers of both directions, and the stacks of a net, in words."""
    both, piled = pairs_and_stacks(net)
    return [described(net, layers) for layers in (*((pair,) for pair in both), *piled)]


def joined_part(layers: Layers, parts: Mapping[int, Part], net: Net) -> Part:
    """The part that joins these layers of a net. parts: those that its recurrences are apart, by number."""
    apart = tuple(tuple(parts[number] for number in members(layer)) for layer in layers)
    listed = [part for layer in apart for part in layer]
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
        members=apart,
        merge=top.merge if isinstance(top, Pair) else "",
        inside=frozenset([*inside, *(layer.output for layer in layers if isinstance(layer, Pair))]),
    )


def hindrance(part: Part, net: Net, groups: Groups, others: Sequence[Part]) -> str | None:
    """Why a joined part cannot run at one time, whatever the engine, beside others; None where it can."""
    if not groups.once.issuperset(part.parameters):
        return "their parameters are results of other parts"
    return (
        "one of them needs the results of another, by way of others"
        if circular(net, [*others, part])
        else None
    )


def first_memories(part: Part) -> tuple[int, ...]:
    """The values with which the memories of a recurrence begin; it has no statics."""
    return part.reads[len(part.reads) - part.memories :]


def circular(net: Net, joined: Sequence[Part]) -> bool:
    """Whether joined parts need their own results, by way of others or of one another."""
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
    """Layers in words, recurrences by their places among all of the net."""
    flat = sorted(number for number, node in enumerate(net.nodes) if node.operation == "recur")
    places = [" and ".join(str(flat.index(number)) for number in members(layer)) for layer in layers]
    if len(places) > 1:
        return f"recurrences {'; '.join(places)}: layers, each on the one before"
    (layer,) = layers
    merged = "side by side" if isinstance(layer, Pair) and layer.merge == "concat" else "added"
    return f"recurrences {places[0]}: both directions of a layer, {merged}"
