"""Recurrences that do not use a memory replaced by work on all steps at once.

    recur(d, h, W): h' = d @ W.T; y = h'      ->      y = d @ W.T

A recurrence is replaced if its step reads no memory and nothing reads the final memory. A plan has no loop
for such a recurrence. Gradients contain such recurrences too.
"""

from dataclasses import replace
from functools import partial

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.type_rules import recur_extent
from stepnet.compiler.plan.inner import has_inner
from stepnet.compiler.plan.passes.outward import Outward
from stepnet.compiler.plan.passes.prune import prune
from stepnet.compiler.plan.passes.rewrite import rewritten
from stepnet.compiler.plan.passes.when import When, when_inside

Results = dict[int, list[int]]
"""For each recurrence, the numbers of its outputs."""


def unloop(net: Net) -> Net:
    """Replaces recurrences that use no memory by work on all steps at once; returns the new net."""
    pruned = prune(net)
    lost = any(node.operation == "recur" and not node.recur.memory_count for node in pruned.nodes)
    # The pruned net is used only if needed: pruning changes the order of sums, on which gradients with
    # checkpoints rely.
    return rewritten(pruned if lost else net, partial(unlooped, {}))


def unlooped(results: Results, builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: replaces a recurrence whose step reads no memory, step index or inner sequence by its
    work on all steps at once. Returns for it its first operand, as nothing but its `result` nodes is read,
    and for a `result` node of it the output computed for all steps. Any other recurrence is copied, with
    those inside its step replaced; None for other nodes.

    results: for each replaced recurrence, the numbers of its outputs; filled here.
    operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if node.operation == "result" and node.inputs[0] in results:
        of: int = node.attributes["of"]
        return results[node.inputs[0]][of]
    if node.operation != "recur":
        return None
    recur = replace(node.recur, body=unloop(node.recur.body))
    known = when_inside(recur)
    counts = any(time == When.IN for time in known)  # memories, or the step index
    if recur.memory_count or counts or has_inner(recur.body):
        return builder.copy(node, operands, body=recur.body)
    deep = recur_extent([builder.type_of(operands[0])], node.attributes)
    fixed = {index for index, time in enumerate(known) if time <= When.PER_SEQUENCE}
    outward = Outward(builder, recur.body, deep, fixed, dict(zip(recur.body.inputs, operands, strict=True)))
    results[number] = [outward.at_steps(output) for output in recur.outputs]
    return operands[0]
