"""Unused results and memories removed from recurrences (dead code elimination).

    recur(x, h): h' = f(x, h); y = h' @ V   ->   recur(x, h): h' = f(x, h)      only the final h is read

An output that is not read would still be computed and stored at every step, and a memory that only feeds
itself would be carried along.
"""

from dataclasses import replace
from functools import partial

from stepnet.compiler.net.ir import Builder, Net, Recur, ancestors
from stepnet.compiler.plan.passes.rewrite import rewritten

Places = dict[int, list[int]]
"""For each recurrence, the former positions of its remaining results."""


def prune(net: Net) -> Net:
    """Removes results of recurrences that nothing reads, and the memories that no other result needs."""
    return rewritten(net, partial(pruned, {}))


def pruned(positions: Places, builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: rebuilds a recurrence without unused outputs and memories, also of recurrences inside its
    step; and a `result` node, which picks one result of it, with the new position of that result. Returns the
    new number; None for other nodes.

    positions: for each recurrence that has lost results, the former positions of the remaining results;
        filled here.
    operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if node.operation == "result" and node.inputs[0] in positions:
        return builder.add("result", operands[0], of=positions[node.inputs[0]].index(node.attributes["of"]))
    if node.operation != "recur":
        return None
    read = {net.nodes[user].attributes["of"] for user in net.users()[number]}
    recur = replace(node.recur, body=prune(node.recur.body))
    by_kind = recur.results_by_kind(range(len(node.types)))
    outputs = [position for position in by_kind.outputs if position in read]
    memories = needed_memories(recur, outputs, [position in read for position in by_kind.memories])
    if (len(outputs), len(memories)) == (len(by_kind.outputs), len(by_kind.memories)):
        return builder.copy(node, operands, body=recur.body)
    positions[number] = [*outputs, *(by_kind.memories[position] for position in memories)]
    return reduced_recurrence(recur, outputs, memories).add(
        builder, [operands[position] for position in remaining_operands(recur, memories)]
    )


def needed_memories(recur: Recur, outputs: list[int], required: list[bool]) -> list[int]:
    """Returns the positions of the memories of a recurrence whose final values are read, or that a remaining
    output or memory needs; all others can be removed from the recurrence.

    outputs: the positions of the remaining outputs. required: for each memory, whether its final value is
        read.
    """
    results, needed = [recur.body.results[position] for position in outputs], list(required)
    while True:
        following = [number for number, need in zip(recur.following, needed, strict=True) if need]
        reached = ancestors(recur.body.nodes, [*results, *following])
        further = [need or number in reached for number, need in zip(recur.memories, needed, strict=True)]
        if further == needed:
            return [position for position, need in enumerate(needed) if need]
        needed = further


def remaining_operands(recur: Recur, memories: list[int]) -> list[int]:
    """Returns the positions of the operands that a recurrence still needs if it keeps only some memories.
    memories: the positions of these memories among all memories of the recurrence.
    """
    by_kind = recur.operands_by_kind(range(len(recur.body.inputs)))
    return [*by_kind.sequences, *(by_kind.memories[position] for position in memories), *by_kind.others]


def reduced_recurrence(recur: Recur, outputs: list[int], memories: list[int]) -> Recur:
    """Copies a recurrence with only some of its outputs and memories, and without the nodes and inputs that
    these do not need. outputs, memories: their positions among all outputs or all memories.
    """
    body = recur.body
    inputs = {body.inputs[position] for position in remaining_operands(recur, memories)}
    results = [
        *(recur.outputs[position] for position in outputs),
        *(recur.following[position] for position in memories),
    ]
    builder = Builder()
    copy_of: dict[int, int] = {}
    for number in sorted(ancestors(body.nodes, results) | inputs):
        node = body.nodes[number]
        copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
    return replace(recur, body=builder.net(copy_of[result] for result in results), memory_count=len(memories))
