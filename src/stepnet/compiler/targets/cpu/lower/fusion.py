"""Fusion of pointwise nodes into reductions of words, so that their values stay in registers.

    e = tanh(k + expand(q))       ->   s = sum(tanh(k + expand(q)) * v)
    s = sum(e * v)

A node is fused if all its readers are the reduction or nodes fused into it, and read it elementwise.
"""

from collections.abc import Container

import numpy as np

from stepnet.compiler.plan.passes.rewrite import readers_of, view_chain
from stepnet.compiler.plan.views import reads_along, view_indices
from stepnet.compiler.targets.cpu.lower.segments import Segments


def fused_into(segments: Segments, stored: Container[int]) -> dict[int, int]:
    """Finds the pointwise nodes that are fused into a reduction of words (steps of inner sequences).

    A node is fused if only the reduction and nodes fused into it read it, and all read it elementwise.

    stored: the nodes that are stored; these are not fused.

    Returns, for each fused node, the number of the reduction.
    """
    numbers = [number for phase in segments.phases for number in phase]
    reductions = [
        number for number in numbers if segments.is_over_inner_steps(number) or segments.folds(number)
    ]
    if not reductions:
        return {}
    net = segments.net
    users = net.users()
    nodes = {n for n in numbers if net.nodes[n].kind == "pointwise" and n not in stored}
    reduction_of = dict[int, int]()
    for reduction in reductions:
        fused = {reduction}
        for number in sorted(nodes, reverse=True):
            readers = readers_of(net, users, number)
            only_fused = bool(readers) and fused.issuperset(readers)
            if only_fused and all(reads_elementwise(segments, number, user) for user in readers):
                fused.add(number)
        reduction_of |= dict.fromkeys(fused - {reduction}, reduction)
    return reduction_of


def reads_elementwise(segments: Segments, number: int, user: int) -> bool:
    """Tells whether node `user` reads node `number` elementwise, at the same indices, as fusion requires."""
    net, node = segments.net, segments.net.nodes[user]
    operands = [n for n in node.inputs if view_chain(net, n)[0] == number]
    if segments.folds(user):
        in_order = np.arange(net.type_of(number).size)
        return all(np.array_equal(view_indices(net, operand).ravel(), in_order) for operand in operands)
    return all(reads_along(net, operand, node) for operand in operands)
