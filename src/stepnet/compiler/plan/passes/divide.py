"""Memories that do not depend on a matrix run in loops of their own, ahead of the loop of the matrix.

    recur(f, i, k, v, m, C):                    before, _ = recur(f, i, m):   m' = max(f + m, i)
        m' = max(f + m, i)                      outputs m
        a  = exp(f + m - m')             ->
        C' = a C + exp(i - m') k v              recur(f, i, k, v, before, C):
                                                m' = max(f + before, i), C' = ...

The loop of the matrix reads the memories before each step as inputs, and computes again what it needs of
them, which `hoist` moves ahead of it. It is done only if the matrix then has the form of
`plan/matrix_rule.py`, of sizes that the target runs in chunks of steps, and if the streams of other memories
are no wider than vectors of its heads. So the mLSTM becomes loops of m and of n, and linear attention with a
decay for each head.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from stepnet.compiler.net.cut import is_expensive
from stepnet.compiler.net.ir import Builder, Net, Recur, ancestors
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.plan.load import FitsChunks, MatrixSizes
from stepnet.compiler.plan.matrix_rule import FLOAT, is_plain, matrix_rule
from stepnet.compiler.plan.passes.read_before import with_early_reads
from stepnet.compiler.plan.passes.rewrite import rewritten
from stepnet.compiler.values.records import dataclass

Refuse = Callable[[Recur], str]
"""Tells why a recurrence of a matrix alone does not run in chunks; "" if it does."""


def divide(net: Net, fits: FitsChunks, refuse: Refuse = lambda recur: "") -> Net:
    """Divides the recurrences of a net that have a matrix among several memories; returns the new net, or the
    net itself if none is divided.

    fits: tells why a matrix of some sizes does not run in chunks of steps; "" if it does. refuse: tells it of
        the recurrence of the matrix alone.
    """
    results = dict[int, list[int]]()
    made = rewritten(net, partial(changed, fits, refuse, results), inside=False)
    return made if results else net


def changed(
    fits: FitsChunks,
    refuse: Refuse,
    results: dict[int, list[int]],
    builder: Builder,
    net: Net,
    number: int,
    operands: list[int],
) -> int | None:
    """Rewrite rule: replaces a recurrence by several, and each `result` node of it by one of theirs. Returns
    for the recurrence its first operand, as nothing but its results is read; None for any other node.

    results: for each replaced recurrence, the numbers of its results; filled here.
    """
    node = net.nodes[number]
    if node.operation == "result" and node.inputs[0] in results:
        of: int = node.attributes["of"]
        return results[node.inputs[0]][of]
    loops = loops_of(node.recur, fits) if node.operation == "recur" else None
    if loops is None or refuse(loops[-1].recur(node.recur)):
        return None
    results[number] = added(builder, node.recur, loops, operands, node.source)
    return operands[0]


@dataclass(frozen=True)
class DividedLoop:
    """One of the loops of a recurrence that is divided. All numbers are of the body's nodes.

    memories: its own. outputs: the results of the body that it gives. read: its operands, in order. before:
    those that are memories of earlier loops, which it reads as sequences. shown: its own memories that later
    loops read.
    """

    memories: tuple[int, ...]
    outputs: tuple[int, ...]
    read: tuple[int, ...]
    before: tuple[int, ...]
    shown: tuple[int, ...] = ()

    def recur(self, whole: Recur) -> Recur:
        """Returns the loop. Its sequences are the recurrence's own, then `before`, and its outputs are its
        own, then the memories that later loops read.
        """
        builder, copy_of, body = Builder(), dict[int, int](), whole.body
        for number in self.read:
            copy_of[number] = builder.input(body.type_of(number), body.nodes[number].name)
        following = dict(zip(whole.memories, whole.following, strict=True))
        results = [*self.outputs, *self.shown, *(following[memory] for memory in self.memories)]
        for number in sorted(ancestors(body.nodes, results)):
            if number not in copy_of:
                node = body.nodes[number]
                copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
        made = builder.net(copy_of[number] for number in results)
        first = self.read.index(self.memories[0])
        return replace(whole, body=made, sequence_count=first, memory_count=len(self.memories))


def loops_of(recur: Recur, fits: FitsChunks) -> list[DividedLoop] | None:
    """Returns the loops into which a recurrence is divided, that of its matrix last; None for a recurrence
    that is not divided.
    """
    body, memories = recur.body, recur.memories
    types = [body.type_of(memory) for memory in memories]
    if any(node.operation == "index" for node in body.nodes):
        return None
    # Joined values, as of rotary embeddings, may stay in the loop, which then does not run in chunks.
    if not is_plain(body, [n for n, node in enumerate(body.nodes) if not is_expensive(node)]):
        return None
    # A flag is no float: sequences that end early keep one loop.
    if len(memories) < 2 or not all(type_.dtype == FLOAT and type_.extent == ROWS for type_ in types):
        return None
    matrix = max(memories, key=lambda memory: body.type_of(memory).size)
    needs = dependencies(recur)
    if any(matrix in needs[memory] for memory in memories if memory != matrix):
        return None
    loops = divided(recur, [*in_order(needs, matrix), (matrix,)])
    early = with_early_reads(loops[-1].recur(recur))
    rule = early if isinstance(early, str) else matrix_rule(early)
    if isinstance(rule, str):
        return None
    heads, keys, values = rule.sizes
    counts = len(rule.reads), len(rule.writes)
    refused = fits(MatrixSizes(keys, values, *counts, bool(rule.decay), rule.by_key))
    widest = max(body.type_of(memory).size for memory in memories if memory != matrix)
    return None if refused or widest > heads * max(keys, values) else loops


def dependencies(recur: Recur) -> dict[int, set[int]]:
    """Returns for each memory of a recurrence those on which it depends, at this step or a later one."""
    own = {*recur.memories}
    pairs = zip(recur.memories, recur.following, strict=True)
    needs = {memory: ancestors(recur.body.nodes, [after]) & own for memory, after in pairs}
    for via in needs:
        for found in needs.values():
            found |= needs[via] if via in found else set()
    return needs


def in_order(needs: dict[int, set[int]], matrix: int) -> list[tuple[int, ...]]:
    """Lists the memories besides the matrix in groups that depend on one another, each behind those that it
    depends on. needs: the memories on which each depends.
    """
    groups = {
        tuple(n for n in needs if n == memory or (n in needs[memory] and memory in needs[n]))
        for memory in needs
        if memory != matrix
    }
    return sorted(groups, key=lambda group: (len(needs[group[0]] | {*group}), group))


def divided(recur: Recur, groups: Sequence[tuple[int, ...]]) -> list[DividedLoop]:
    """Makes a loop of each group of memories. An output is one of the last loop whose memories it needs."""
    nodes = recur.body.nodes
    place_of = {memory: place for place, group in enumerate(groups) for memory in group}
    following = dict(zip(recur.memories, recur.following, strict=True))
    outputs: list[list[int]] = [[] for _ in groups]
    for output in dict.fromkeys(recur.outputs):
        places = [place_of[n] for n in ancestors(nodes, [output]) if n in place_of]
        outputs[max(places, default=0)].append(output)
    loops, later = list[DividedLoop](), set[int]()
    for group, own in reversed([*zip(groups, outputs, strict=True)]):
        needed = ancestors(nodes, [*own, *(following[memory] for memory in group)])
        before = tuple(n for n in recur.memories if n in needed and n not in group)
        sequences = [n for n in recur.sequences if n in needed]
        sequences = sequences if sequences or before else recur.sequences[:1]
        others = [n for n in recur.others if n in needed]
        shown = tuple(n for n in group if n in later)
        read = (*sequences, *before, *group, *others)
        loops.append(DividedLoop(group, tuple(own), read, before, shown))
        later |= {*before}
    return loops[::-1]


def added(
    builder: Builder, whole: Recur, loops: Sequence[DividedLoop], operands: Sequence[int], source: str
) -> list[int]:
    """Adds the loops of a recurrence to a net; returns the numbers of the results of the recurrence.

    operands: of the recurrence, in the net. source: the user's line.
    """
    given = dict(zip(whole.body.inputs, operands, strict=True))
    output_of, final_of, before = dict[int, int](), dict[int, int](), dict[int, int]()
    for loop in loops:
        read = [before[n] if n in loop.before else given[n] for n in loop.read]
        found = loop.recur(whole).add_results(builder, read, source)
        final_of |= zip(loop.memories, found.memories, strict=True)
        count = len(loop.outputs)
        output_of |= zip(loop.outputs, found.outputs[:count], strict=True)
        before |= zip(loop.shown, found.outputs[count:], strict=True)
    return [*(output_of[n] for n in whole.outputs), *(final_of[n] for n in whole.memories)]
