"""Minimises the bytes that a forward recurrence saves for the backward recurrence.

    forward gives  a = x @ W, all of it          forward gives  b = a[512:]
    backward       b = a[512:]; d * b      ->    backward       d * b

The transposed step begins with cheap functions of saved values, which may be computed on either side. So the
values to save are a minimum cut (`compiler/net/cut.py`) between those that must be saved and those that the
rest of the transposed step reads.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from stepnet.compiler.net.cut import is_expensive, smallest_cut
from stepnet.compiler.net.ir import Builder, Net, Recur
from stepnet.compiler.net.types import ROWS
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Handover:
    """The values that one recurrence of a net saves for another.

    saved: for inputs of the later body, the positions of the outputs of the earlier recurrence that they
        read.
    early: nodes of the later body that the earlier recurrence computes and saves instead.
    """

    saved: dict[int, int]
    early: tuple[int, ...]


def handed_over(net: Net) -> Net:
    """Makes a gradient net from another one, in which recurrences save other values for the recurrences that
    read them later, if these take fewer bytes.
    """
    saves = {(by, to): handover for by, to, handover in handovers(net)}
    builder = Builder()
    copy_of: dict[int, int] = {}
    results_of: dict[int, list[int]] = {}
    extra: dict[tuple[int, int], list[int]] = {}
    for number, node in enumerate(net.nodes):
        if node.operation == "result" and node.inputs[0] in results_of:
            copy_of[number] = results_of[node.inputs[0]][node.attributes["of"]]
            continue
        operands = [copy_of[operand] for operand in node.inputs]
        if node.operation != "recur":
            copy_of[number] = builder.copy(node, operands)
        else:
            # It may read values of several others: all at once, as the numbers in its body change.
            recur, replaced = node.recur, dict[int, int]()
            for (by, to), handover in saves.items():
                if to == number:
                    replaced |= zip(handover.early, extra[by, to], strict=True)
            if replaced:
                recur, operands = receiving(recur, operands, replaced)
            # A recurrence may save values for several others, separately for each.
            own = len(recur.outputs)
            for (by, to), handover in saves.items():
                if by == number:
                    recur = giving(recur, net.nodes[to].recur.body, handover)
            results = recur.add_results(builder, operands)
            more = results.outputs[own:]
            for (by, to), handover in saves.items():
                if by == number:
                    extra[by, to], more = more[: len(handover.early)], more[len(handover.early) :]
            results_of[number] = [*results.outputs[:own], *results.memories]
    return builder.net(copy_of[result] for result in net.results)


def handovers(net: Net) -> Iterator[tuple[int, int, Handover]]:
    """Finds the pairs of recurrences where one reads outputs of the other that could take fewer bytes. Yields
    for each pair the number of the earlier recurrence, that of the later one, and what to save instead.
    """
    for number, node in enumerate(net.nodes):
        if node.operation != "recur":
            continue
        by: dict[int, dict[int, int]] = {}
        for inner, operand in zip(node.recur.sequences, node.inputs, strict=False):
            source = net.nodes[operand]
            if source.operation == "result" and net.nodes[source.inputs[0]].operation == "recur":
                by.setdefault(source.inputs[0], {})[inner] = source.attributes["of"]
        for earlier, saved in by.items():
            if early := lightest(net, number, saved):
                yield earlier, number, Handover(saved, early)


def lightest(net: Net, number: int, saved: dict[int, int]) -> tuple[int, ...]:
    """Returns the cheap nodes of a recurrence's body (the net of its step) that an earlier recurrence should
    compute and save in place of the values that it saves now, as they take fewer bytes; empty if no change
    pays.

    Candidates are cheap functions of saved values. The choice is the minimum cut, which takes the fewest
    bytes per step; values that are saved in any case count as one byte.

    saved: for inputs of the body, the outputs of the earlier recurrence that they read.
    """
    node = net.nodes[number]
    body, users = node.recur.body, net.users()
    cheap: set[int] = set()
    for inner, inside in enumerate(body.nodes):
        read = [operand for operand in inside.inputs if body.nodes[operand].operation != "constant"]
        easy = inside.kind in ("pointwise", "view") and len(inside.types) == 1 and not is_expensive(inside)
        if easy and inside.type.extent == ROWS and read and all(n in saved or n in cheap for n in read):
            cheap.add(inner)
    early = cheap | saved.keys()
    others = [other for inner, other in enumerate(body.nodes) if inner not in cheap]
    sinks = early & {*body.results, *(operand for other in others for operand in other.inputs)}
    weights = {inner: max(1, body.type_of(inner).size * body.type_of(inner).itemsize) for inner in early}
    for inner, operand in zip(node.recur.sequences, node.inputs, strict=False):
        if inner in saved and (len(users[operand]) > 1 or operand in net.results):
            weights[inner] = 1  # it is saved in any case
    operands = {inner: [n for n in body.nodes[inner].inputs if n in early] for inner in cheap}
    cut = smallest_cut(operands, weights, saved, sinks, latest=False)
    return tuple(sorted(cut & cheap))


def giving(recur: Recur, later: Net, handover: Handover) -> Recur:
    """Returns a recurrence with further outputs, for nodes that it now computes and saves for a later
    recurrence.

    later: the body of the later recurrence (the net of its step), from which these nodes are copied.
    handover: the change: which nodes these are, and which inputs of that body are outputs of this recurrence.
    """
    builder = Builder()
    copy_of = [0] * len(recur.body.nodes)
    for number, node in enumerate(recur.body.nodes):
        copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
    there = {inner: copy_of[recur.outputs[of]] for inner, of in handover.saved.items()}

    def made(number: int) -> int:
        """Copies a node of the body (the net of a step) of the later recurrence, which reads saved values,
        into the body of the earlier one, which then computes it; returns its number there.
        """
        if number not in there:
            node = later.nodes[number]
            there[number] = builder.copy(node, [made(operand) for operand in node.inputs])
        return there[number]

    outputs = [*(copy_of[number] for number in recur.outputs), *map(made, handover.early)]
    return replace(recur, body=builder.net([*outputs, *(copy_of[number] for number in recur.following)]))


def receiving(recur: Recur, operands: list[int], saved_by: Mapping[int, int]) -> tuple[Recur, list[int]]:
    """Replaces nodes of a recurrence's body (the net of its step) by input sequences, as earlier recurrences
    now compute and save them. Returns the changed recurrence and its operands.

    operands: the operands of the recurrence before the change, in the new net.
    saved_by: for each replaced node of the body, the sequence of its values in the new net.
    """
    body, by_kind = recur.body, recur.operands_by_kind(operands)
    outside = {**dict(zip(recur.sequences, by_kind.sequences, strict=True)), **saved_by}
    read = still_read(body, saved_by)
    sequences = [number for number in outside if number in read]
    builder = Builder()
    copy_of: dict[int, int] = {}
    for number in (*sequences, *recur.memories, *recur.others):
        copy_of[number] = builder.input(body.type_of(number), body.nodes[number].name or f"saved{number}")
    for number, node in enumerate(body.nodes):
        if number in read and number not in copy_of:
            copy_of[number] = builder.copy(node, [copy_of[operand] for operand in node.inputs])
    receiving_body = builder.net(copy_of[result] for result in body.results)
    changed = replace(recur, body=receiving_body, sequence_count=len(sequences))
    return changed, [*(outside[number] for number in sequences), *by_kind.memories, *by_kind.others]


def still_read(body: Net, inputs: Container[int]) -> set[int]:
    """Returns the nodes of a body (the net of a step) on which its results depend, without those behind the
    nodes `inputs`, which become inputs of the body.
    """
    read: set[int] = set()
    waiting = list(body.results)
    while waiting:
        number = waiting.pop()
        if number not in read:
            read.add(number)
            waiting += [] if number in inputs else body.nodes[number].inputs
    return read
