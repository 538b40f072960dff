"""Cuts a net into the parts of a schedule, and plans them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress

from stepnet.compiler.net.ir import Builder, Net, Recur, without_unused
from stepnet.compiler.net.type_rules import deeper, recur_extent
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent, Type
from stepnet.compiler.plan.groups import Groups, is_plain, results_of, waves, windows_in_place
from stepnet.compiler.plan.inner import has_inner
from stepnet.compiler.plan.inner_sequences import why_in_parts
from stepnet.compiler.plan.passes.behind_reads import behind_reads
from stepnet.compiler.plan.passes.divide import divide
from stepnet.compiler.plan.passes.lift import lift
from stepnet.compiler.plan.passes.unloop import unloop
from stepnet.compiler.plan.passes.when import is_constant, known_once
from stepnet.compiler.plan.plan import Plan, Planning, planned
from stepnet.compiler.plan.schedule import Cut, Part, Schedule, is_nested
from stepnet.errors import NetError


def cut_of(traced: Net, lifted: Net | None, planning: Planning) -> Cut:
    """Cuts a net into parts that run one after the other; returns the net that they refer to, and the parts.

    lifted: the net after `lift`, which moves inner recurrences out of steps, if that pass has run already;
        else None.
    planning: the passes and costs of the engine for which the parts are planned.
    """
    if lifted is not None:
        return lifted, parts_of(lifted, planning)
    fits = planning.costs.chunks
    alone = traced
    if fits is not None:
        alone = divide(traced if is_nested(traced) else behind_reads(traced, fits), fits)
    single = plan_of_all(alone, planning)
    if single is not None:
        return alone, (single_part(single),)
    net = unloop(lift(alone))
    return net, parts_of(net, planning)


def plan_of_all(net: Net, planning: Planning) -> Plan | None:
    """Makes the plan (what runs when) of a net with one recurrence, by the passes and costs of an engine
    (`planning`); None if it needs more than one pass over the steps, has sequences inside a step, or has not
    exactly one recurrence.
    """
    if is_nested(net) or [node.operation for node in net.nodes].count("recur") != 1:
        return None
    try:
        return planned(net, planning)
    except NetError:
        return None


def single_part(single: Plan) -> Part:
    """Makes the only part of a schedule, for a net that a single plan runs in one pass over the steps."""
    net, ends = single.traced, single.ends
    parameters = tuple(sorted(net.inputs[index] for index in ends.parameters))
    reads = tuple(net.inputs[index] for index in (*ends.sequences, *ends.memories, *ends.statics))
    results = tuple(net.results[index] for index in (*ends.steps, *ends.rows, *ends.totals))
    counts = len(ends.memories), len(ends.statics)
    return Part("recurrence", reads, results, STEPS, single, *counts, parameters)


def parts_of(net: Net, planning: Planning) -> tuple[Part, ...]:
    """Cuts a net into the parts of a schedule, in the order they run. Nodes that are ready at the same time
    and have one extent (such as one value per step) share a part; recurrences and others are parts alone.

    planning: the passes and costs of the engine for which the parts are planned.
    """
    groups = Groups.of(net, planning.costs.find_pairs, planning.costs.accumulates)
    levels, without_part = waves(net, groups), groups.without_part
    together: dict[tuple[int, int, Extent], list[int]] = {}
    for number, node in enumerate(net.nodes):
        if node.operation in ("input", "index", "result") or number in without_part:
            continue
        joins = is_plain(node) and not is_constant(node) and number not in groups.pairs
        alone = 0 if joins else number + 1
        extent = node.types[0].extent if joins else CONST
        together.setdefault((levels[number], alone, extent), []).append(number)
    parts = {key: part_of(net, numbers, groups, planning) for key, numbers in together.items()}
    ordered = with_windows_in_place(net, [parts[key] for key in sorted(parts)])
    return tuple(
        replace(part, is_bound_per_call=bool(late_reads(net, part) - groups.once)) for part in ordered
    )


def with_windows_in_place(net: Net, parts: Sequence[Part]) -> list[Part]:
    """Returns the parts of a net's schedule, with those windows (neighbouring steps as features) noted in
    their plans (operations in order) that products read where the steps lie. Windows that some part needs
    copied are not noted.
    """
    wanted = [() if part.plan is None else windows_in_place(net, part.reads, part.plan) for part in parts]
    pairs = list(zip(parts, wanted, strict=True))
    copied = {*net.results} | {number for part, own in pairs for number in {*part.reads} - {*own}}
    return [
        replace(part, plan=replace(part.plan, windows=places))
        if part.plan is not None
        and (places := tuple(part.reads.index(number) for number in own if number not in copied))
        else part
        for part, own in pairs
    ]


def late_reads(net: Net, part: Part) -> set[int]:
    """Returns the constants (one value for all rows) that a part of a schedule reads, if it is a loop or has
    operations for an engine; none for other parts. If another part computes one of them, this part cannot be
    given its parameters once for all calls.
    """
    if part.plan is None and part.inner is None:
        return set()
    return {
        number for number in (*part.parameters, *part.reads) if number >= 0 and is_constant(net.nodes[number])
    }


def part_of(net: Net, numbers: list[int], groups: Groups, planning: Planning) -> Part:
    """Makes the part of a schedule that computes the nodes `numbers`: one node, or several plain ones, which
    compute each step from that step alone.

    Totals (over all rows) and nodes that lead from steps to sequences or to other steps, such as sums over
    steps, are parts of their own; an engine runs plain nodes and recurrences. A recurrence with inner
    sequences that one plan cannot run is a loop over the parts of its step.

    groups: the nodes that need no part of their own. planning: the passes and costs of the engine.
    """
    node = net.nodes[numbers[0]]
    if is_constant(node):
        return Part("total", node.inputs, tuple(numbers), node=node)
    if (group := groups.pairs.get(numbers[0])) is not None:
        return Part("across", group.reads, (group.result,), node=node, body=group.body)
    if is_plain(node):
        return plain_part(net, numbers, groups, planning)
    if node.operation == "contract":
        return contract_part(net, numbers[0], planning)
    if node.operation != "recur":
        return Part("across", node.inputs, tuple(numbers), node=node)
    body: Net = node.attributes["body"]
    extent = recur_extent([net.type_of(node.inputs[0])], node.attributes)
    inner = planning.costs.inner
    if has_inner(body) and (not inner or why_in_parts(node, extent)):
        return loop_part(net, numbers[0], extent, planning)
    return recurrence(net, numbers[0], groups, planning)


# ---- the nets of parts -------------------------------------------------------------------------------------


def name_of(net: Net, number: int) -> str:
    """Returns a value's name in the net of a part, as `explain` shows it: an argument's own, or a number."""
    return net.nodes[number].name or f"value{number}"


class LoopBodyBuilder:
    """Builder of the net of a part of a schedule, from nodes of the whole net and constants they need.

    Constants that are known when parameters are bound are computed in the new net. A total that another part
    computes becomes a parameter of it.
    """

    def __init__(self, net: Net) -> None:
        """Begins an empty net for a part of the schedule of `net`, whose nodes are then copied into it."""
        self.net, self.builder, self.once = net, Builder(), known_once(net)
        self.copy_of: dict[int, int] = {}
        self.parameters: list[int] = []

    def input(self, number: int, type_: Type) -> int:
        """Adds an input to the part's net for node `number` of the whole net; returns its new number."""
        self.copy_of[number] = self.builder.input(type_, name_of(self.net, number))
        return self.copy_of[number]

    def of(self, number: int) -> int:
        """Returns the number that a node of the whole net has in the net of the part of a schedule that is
        being built. A node that is not there yet has one value for all rows: if it is known once parameters
        are bound, it is copied with its operands; if it is a parameter, or a total that another part
        computes, it becomes a parameter of this part.
        """
        if number not in self.copy_of:
            node = self.net.nodes[number]
            if node.operation == "input" or number not in self.once:
                self.parameters.append(number)
                return self.input(number, node.type)
            self.copy_of[number] = self.builder.copy(node, [self.of(operand) for operand in node.inputs])
        return self.copy_of[number]

    def add_totals(self, numbers: Iterable[int]) -> list[int]:
        """Copies the totals `numbers` (nodes that sum a recurrence's results) into the part's net, in order;
        returns the nodes that became inputs for them.
        """
        more = list[int]()
        for number in numbers:
            node = self.net.nodes[number]
            for operand in node.inputs:
                if operand not in self.copy_of and self.net.type_of(operand).extent == STEPS:
                    self.input(operand, self.net.type_of(operand))
                    more.append(operand)
            self.copy_of[number] = self.builder.copy(node, [self.of(operand) for operand in node.inputs])
        return more


def plain_part(net: Net, numbers: list[int], groups: Groups, planning: Planning) -> Part:
    """Makes the part of a schedule for the nodes `numbers`, which compute each step from that step alone: a
    recurrence whose memory is a number that nothing reads.

    If the nodes also read values per sequence, or are summed over steps, it is a recurrence over the
    sequences: the values per sequence are statics (inputs that all steps share), and the sums, if there are
    any, are its memories, which begin with zeros.

    groups: says which expansions the nodes read through, and which sums belong to this part.
    planning: the passes and costs of the engine for which the part is planned.
    """
    chosen = set(numbers)
    read = {operand for number in numbers for operand in net.nodes[number].inputs}
    read = {number for number in read - chosen if not is_constant(net.nodes[number])}
    seen = sorted(read & groups.through)
    reads, rows = sorted(read - groups.through), sorted({net.nodes[number].inputs[0] for number in seen})
    sums = sorted(number for number in groups.sums if net.nodes[number].inputs[0] in chosen)
    others = (node for n, node in enumerate(net.nodes) if n not in chosen and n not in sums)
    used = {operand for node in others for operand in node.inputs}.union(net.results)
    results = [number for number in numbers if number in used]

    body, outer = LoopBodyBuilder(net), Builder()
    for number in reads:
        body.input(number, net.type_of(number).at(ROWS))
    kinds = [net.type_of(number).at(ROWS) for number in sums] or [Type(ROWS, (), "float32")]
    memories = [body.builder.input(kind, f"sum{index}") for index, kind in enumerate(kinds)]
    for number in rows:
        body.input(number, net.type_of(number).at(ROWS))
    for number in seen:
        body.copy_of[number] = body.copy_of[net.nodes[number].inputs[0]]
    for number in numbers:
        node = net.nodes[number]
        body.copy_of[number] = body.builder.copy(node, [body.of(operand) for operand in node.inputs])
    after = [
        body.builder.add("add", memory, body.copy_of[net.nodes[number].inputs[0]])
        for memory, number in zip(memories, sums, strict=False)
    ]
    inner = body.builder.net([*(body.copy_of[number] for number in results), *(after or memories)])

    operands = [outer.input(net.type_of(number).at(STEPS), name_of(net, number)) for number in reads]
    operands += [outer.input(kind, f"sum{index}") for index, kind in enumerate(kinds)]
    operands += [outer.input(net.type_of(number).at(ROWS), name_of(net, number)) for number in rows]
    operands += [outer.input(net.type_of(number), name_of(net, number)) for number in body.parameters]
    recurrence_net = net_of_recurrence(outer, operands, Recur(inner, len(reads), len(kinds)))
    extent, parameters = net.nodes[numbers[0]].types[0].extent, tuple(body.parameters)
    if not rows and not sums:
        return Part(
            "plain",
            tuple(reads),
            tuple(results),
            extent,
            planned(recurrence_net, planning),
            parameters=parameters,
        )
    zeros, outputs = [-1] * len(kinds), [*results, *(sums or [-1])]
    return Part(
        "recurrence",
        (*reads, *zeros, *rows),
        tuple(outputs),
        extent,
        planned(recurrence_net, planning),
        len(kinds),
        len(rows),
        parameters,
    )


def contract_part(net: Net, number: int, planning: Planning) -> Part:
    """Makes the part of a schedule for a contract (a sum of outer products) over the steps of each sequence:
    an empty recurrence over these steps, with a memory that nothing reads, and behind it the contract of its
    sequences.

    number: the node of the contract. planning: the passes and costs of the engine for which the part is
        planned.
    """
    node, inside, outer = net.nodes[number], Builder(), Builder()
    reads = tuple(dict.fromkeys(node.inputs))
    copy_of = dict[int, int]()
    for operand in reads:
        type_, name = net.type_of(operand), name_of(net, operand)
        inside.input(type_.at(ROWS), name)
        copy_of[operand] = outer.input(type_.at(STEPS), name)
    none = Type(ROWS, (), "float32")
    body = inside.net([inside.input(none, "none")])
    operands = [*copy_of.values(), outer.input(none, "none")]
    _, final = Recur(body, len(reads), 1).add_results(outer, operands)
    made = outer.copy(node, [copy_of[operand] for operand in node.inputs])
    whole = planned(outer.net([*final, made]), planning)
    return Part("recurrence", (*reads, -1), (-1, number), net.type_of(reads[0]).extent, whole, 1)


def net_of_recurrence(builder: Builder, operands: list[int], recur: Recur) -> Net:
    """Makes the net that consists of one recurrence, with all its results. operands: numbers in `builder`."""
    outputs, final = recur.add_results(builder, operands)
    return builder.net([*outputs, *final])


def recurrence(net: Net, number: int, groups: Groups, planning: Planning) -> Part:
    """Makes the part of a schedule for a recurrence whose steps have no sequences inside: its outputs that
    are read, its final memories, and the totals (sums over rows) of its results. Values that only these
    totals read are not results. In the part, -1 stands for an initial memory of zeros and for a final memory
    that nothing reads.

    groups: the nodes that other parts compute. planning: the passes and costs of the engine.
    """
    node = net.nodes[number]
    ends, totals = groups.ends.get(number, {}), groups.totals.get(number, ())
    recur = node.recur
    outputs, final = recur.results_by_kind(results_of(net, number))
    picked = [index for index, output in enumerate(outputs) if output >= 0]
    body = without_unused(recur.body.nodes, (*(recur.outputs[index] for index in picked), *recur.following))
    extent = recur_extent([net.type_of(node.inputs[0])], node.attributes)
    outer = LoopBodyBuilder(net)
    operands: list[int] = []
    reads: list[int] = []
    for index, operand in enumerate(node.inputs):
        type_ = body.type_of(body.inputs[index])
        if type_.extent == CONST:
            operands.append(outer.of(operand))
            continue
        reads.append(-1 if operand in groups.zeros else operand)
        here = deeper(STEPS, type_.extent) if index < recur.sequence_count else type_.extent
        operands.append(outer.builder.input(type_.at(here), name_of(net, operand)))
        if here == STEPS:
            outer.copy_of[operand] = operands[-1]
    recurrence_net = replace(recur, body=body).add_results(outer.builder, operands)
    numbers: list[int] = [*(outputs[index] for index in picked), *final]
    new_numbers: list[int] = [*recurrence_net.outputs, *recurrence_net.memories]
    outer.copy_of |= dict(zip(numbers, new_numbers, strict=True))
    more = outer.add_totals(totals)
    numbers += sorted(totals, key=lambda number: net.type_of(number).extent == CONST)
    new_numbers += [outer.copy_of[total] for total in numbers[len(new_numbers) :]]
    users, inside = net.users(), {*totals}
    # A final memory that is not read is -1: it is not a result, so an engine need not compute it.
    is_kept = [n >= 0 and (n in net.results or not inside.issuperset(users[n])) for n in numbers]
    numbers, new_numbers = (list(compress(values, is_kept)) for values in (numbers, new_numbers))
    sequences = recur.sequence_count
    return Part(
        "recurrence",
        (*reads[:sequences], *more, *reads[sequences:]),
        tuple(ends.get(number, number) for number in numbers),
        extent,
        planned(outer.builder.net(new_numbers), planning),
        recur.memory_count,
        len(reads) - recur.sequence_count - recur.memory_count,
        tuple(outer.parameters),
        node,
        last_only=bool(ends),
    )


def loop_part(net: Net, number: int, extent: Extent, planning: Planning) -> Part:
    """Makes the part of a schedule for a recurrence whose step does not run as one plan (operations in their
    order), such as one that returns sequences: each step runs a schedule of its own.

    number: the node of the recurrence. extent: the extent of its steps, such as rows/steps. planning: the
        passes and costs of the engine for which that schedule is planned.
    """
    node = net.nodes[number]
    body: Net = node.attributes["body"]
    return Part(
        "loop", node.inputs, results_of(net, number), extent, node=node, inner=Schedule(body, planning, body)
    )
