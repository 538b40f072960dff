"""Recurrences without memory as work on all steps.

    recur(d, h, W): h' = d @ W.T; y = h'      ->      y = d @ W.T

A step that does not read its memory is one, where nothing reads the last memory either. A plan would have no
loop for it. The gradient of a step whose memory nothing reads has such recurrences too.
"""

from dataclasses import replace
from functools import partial

from stepnet.net.ir import Builder, Net
from stepnet.net.type_rules import recur_extent
from stepnet.plan.groups import has_inner
from stepnet.plan.passes.outward import Outward
from stepnet.plan.passes.prune import prune
from stepnet.plan.passes.rewrite import rewritten
from stepnet.plan.passes.when import When, when_inside

Results = dict[int, list[int]]
"""By recurrence, where its outputs are."""


def unloop(net: Net) -> Net:
    """The net in which the steps of flat recurrences are done at once where no memory of theirs is read."""
    pruned = prune(net)
    lost = any(node.operation == "recur" and not node.recur.memory_count for node in pruned.nodes)
    # Pruning is for that alone: it changes the order of sums, which gradients with checkpoints rely on.
    return rewritten(pruned if lost else net, partial(unlooped, {}))


def unlooped(results: Results, builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """A recurrence's first operand in its place, and its outputs for its results; None for all else."""
    node = net.nodes[number]
    if node.operation == "result" and node.inputs[0] in results:
        of: int = node.attributes["of"]
        return results[node.inputs[0]][of]
    if node.operation != "recur":
        return None
    recur = replace(node.recur, body=unloop(node.recur.body))
    known = when_inside(recur)
    counts = any(time == When.IN for time in known)  # memories, or how many steps were before
    if recur.memory_count or counts or has_inner(recur.body):
        return builder.copy(node, operands, body=recur.body)
    deep = recur_extent([builder.type_of(operands[0])], node.attributes)
    fixed = {place for place, time in enumerate(known) if time <= When.PER_SEQUENCE}
    outward = Outward(builder, recur.body, deep, fixed, dict(zip(recur.body.inputs, operands, strict=True)))
    results[number] = [outward.at_steps(output) for output in recur.outputs]
    return operands[0]
