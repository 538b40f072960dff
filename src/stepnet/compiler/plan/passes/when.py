"""The time at which each value of a net becomes known, which is independent of its extent.

    ONCE           when parameters are bound        a parameter, and values of parameters only
    PER_SEQUENCE   when a sequence begins           a static, an initial memory
    BEFORE         before the loop                  an input, and values that need no memory
    IN             in the loop                      values that need a memory, or the step index
    AFTER          after the loop                   values that need its results, or every step of a sequence
    TOTAL          after all steps of all rows      a contract, a reduce to const, and values of these

A constant may be known ONCE or only in TOTAL; zeros with one entry per row are known ONCE. The passes and the
planner use this analysis to move and group work.
"""

from enum import IntEnum

from stepnet.compiler.net.ir import Net, Node, Recur
from stepnet.compiler.net.type_rules import TOTALS
from stepnet.compiler.net.types import CONST, ROWS, is_static_extent


class When(IntEnum):
    """The time at which a value is known. A value is known when the latest of its operands is."""

    ONCE = 0
    PER_SEQUENCE = 1
    BEFORE = 2
    IN = 3
    AFTER = 4
    TOTAL = 5


def when(net: Net) -> list[When]:
    """Determines, for each node of a net, the earliest time at which its values can be known: ONCE (from
    parameters alone), PER_SEQUENCE, BEFORE the loop over steps, IN it, AFTER it, or in TOTAL, as a sum over
    all rows.

    >>> from stepnet.compiler.net.ir import Builder
    >>> from stepnet.compiler.net.types import STEPS, Type
    >>> builder = Builder()
    >>> x = builder.input(Type(STEPS, (2,), "float32"), "x")
    >>> W = builder.input(Type(CONST, (2, 3), "float32"), "W")
    >>> net = builder.net([builder.add("contract", x, builder.add("matmul", x, W))])
    >>> [known.name for known in when(net)]
    ['BEFORE', 'ONCE', 'BEFORE', 'TOTAL']
    """
    inputs = {number: time_of_input(net.nodes[number]) for number in net.inputs}
    return known_times(
        net, [inputs.get(number, time_of_operation(node)) for number, node in enumerate(net.nodes)]
    )


def when_inside(recur: Recur) -> list[When]:
    """Determines, for each node of a recurrence's body (the net of its step), the earliest time at which its
    value is known, such as once per sequence, for all steps before the loop, or only in the loop.
    """
    body = recur.body
    kinds = ((recur.sequences, When.BEFORE), (recur.memories, When.IN), (recur.others, When.PER_SEQUENCE))
    inputs = {number: kind for numbers, kind in kinds for number in numbers}
    return known_times(body, [inputs.get(number, When.ONCE) for number in range(len(body.nodes))])


def known_once(net: Net) -> set[int]:
    """Returns the constants that are computed from parameters and literals alone."""
    pairs = enumerate(zip(net.nodes, when(net), strict=True))
    return {number for number, (node, time) in pairs if time == When.ONCE and is_constant(node)}


def is_constant(node: Node) -> bool:
    """Tells whether a node has extent const: one value for all rows."""
    return all(type_.extent == CONST for type_ in node.types)


def time_of_input(node: Node) -> When:
    """Returns the time at which an input of a net is known, from which the times of all other nodes follow:
    ONCE for a parameter, PER_SEQUENCE (when a sequence begins) for a value per row, and BEFORE (the loop over
    the steps) for a sequence.
    """
    extent = node.type.extent
    return When.ONCE if extent == CONST else When.PER_SEQUENCE if extent == ROWS else When.BEFORE


def time_of_operation(node: Node) -> When:
    """Returns the earliest time at which the value of a node can be known, if its operands were always known:
    AFTER (the loop) if its operation needs all steps, as a recurrence or a reduction of steps, otherwise
    ONCE.
    """
    ends = node.operation == "recur" or is_of_steps(node)
    return When.AFTER if ends else When.ONCE


def is_of_steps(node: Node) -> bool:
    """Tells whether a node reduces the values of all steps of a sequence to one value per row."""
    return node.operation in ("reduce", "contract") and node.type.extent == ROWS


def known_times(net: Net, earliest: list[When]) -> list[When]:
    """Returns, for each node of a net, the time at which its value is known: when the last of its operands is
    known, but not before its time in `earliest`.
    """
    times: list[When] = []
    for node, first in zip(net.nodes, earliest, strict=True):
        operands = (times[operand] for operand in node.inputs)
        times.append(max((by_extent(node, first), *operands)))
    return times


def by_extent(node: Node, earliest: When) -> When:
    """Returns the earliest time at which a node's value is known, from its extent (per sequence, per step,
    ...) and the time `earliest` at which its operands are.

    A constant is known ONCE, when parameters are given, or in TOTAL, after all steps, if it is a sum over all
    rows; a value per step not before BEFORE, ahead of the loop over steps; the step's index IN the loop.
    """
    if is_constant(node):
        return When.TOTAL if node.operation in TOTALS else When.ONCE
    if node.operation == "index":
        return When.IN
    # The number of steps of a sequence is known with its steps.
    steps = any(len(type_.extent) > 1 and not is_static_extent(type_.extent) for type_ in node.types)
    return max(earliest, When.BEFORE if steps else When.ONCE)
