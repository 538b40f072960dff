"""Lowering of a stage to loops: each loop computes some of the stage's nodes together in registers."""

from dataclasses import replace

import numpy as np

from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.fibers import Fibers
from stepnet.compiler.plan.groups import results_of
from stepnet.compiler.plan.passes.rewrite import view_chain
from stepnet.compiler.plan.phases import is_of_recurrence, phases
from stepnet.compiler.plan.views import view_indices
from stepnet.compiler.targets.cpu.lower.fiber_loop import fiber_loop
from stepnet.compiler.targets.cpu.lower.loops import (
    CopyLoop,
    FoldLoop,
    InnerLoop,
    InnerReduceLoop,
    LaneLoop,
    Loop,
    Operand,
    Phase,
    ProductSum,
    Register,
    UnitLoop,
    VectorLoad,
)
from stepnet.compiler.targets.cpu.lower.product import product
from stepnet.compiler.targets.cpu.lower.rowwise import concatenation, gather, reduction, scan
from stepnet.compiler.targets.cpu.lower.segments import lane_by_lane
from stepnet.compiler.targets.cpu.lower.stage import StageLowering
from stepnet.compiler.targets.cpu.machine.records import Field
from stepnet.compiler.targets.cpu.products.constants import ConstantNode
from stepnet.errors import NetError


def loops_by_phase(stage: StageLowering) -> list[Phase]:
    """Lowers each phase of a stage (nodes between two barriers) to loops; returns the non-empty phases.

    Phases that run lane by lane (one sequence completely before the next) are merged. Each phase begins with
    the copies and encodings of operands that its loops need, which lowering collects in `stage.pending`.
    Results that are views, constants or sources (values computed before the stage) are copied in a last
    phase.
    """
    by_phase: list[tuple[list[Loop], list[Loop | InnerLoop]]] = []
    for numbers in stage.phases:
        lowered = lower(stage, numbers)
        by_phase.append((stage.pending, lowered))
        stage.pending = []
    work = [*lane_by_lane(stage.segments, by_phase), result_copies(stage)]
    return [phase for phase in work if phase]


def loops(stage: StageLowering) -> list[list[Loop]]:
    """Lowers each phase of a stage that has no inner sequences to loops over rows; returns them by phase."""
    all_phases = loops_by_phase(stage)
    of_rows = [phase for phase in all_phases if not isinstance(phase, LaneLoop | InnerLoop)]
    assert len(of_rows) == len(all_phases)
    return of_rows


def lower(stage: StageLowering, numbers: tuple[int, ...]) -> list[Loop | InnerLoop]:
    """Lowers one phase (nodes between two barriers of threads) to loops. numbers: its nodes, in order.

    Nodes that are fused into a reduction, or are results of an inner recurrence, have no loop of their own.
    Raises `NetError` for an operation that has no loop.
    """
    loops: list[Loop | InnerLoop] = []
    units: dict[tuple[int, str], list[int]] = {}
    for number in numbers:
        node = stage.net.nodes[number]
        if number in stage.fused_into or number in stage.fiber_work or is_of_recurrence(stage.net, number):
            continue
        key = node.types[0].size, stage.segments.axis(node.types[0])
        if stage.segments.is_over_inner_steps(number):
            loops.append(inner_reduction(stage, number))
        elif stage.segments.folds(number):
            loops.append(fold(stage, number))
        elif node.kind == "reduce":
            loops.append(reduction(stage, number))
        elif node.kind == "scan":
            loops.append(scan(stage, number))
        elif node.operation == "recur":
            loops.append(inner_loop(stage, number))
        elif node.operation == "gather":
            loops.append(gather(stage, number))
        elif node.operation == "concatenate":
            loops += concatenation(stage, number)
        elif node.kind in ("pointwise", "matmul") or node.operation == "result":
            units.setdefault(key, []).append(number)
        else:
            raise NetError(f"a stage cannot compute {node.operation}")
    works = dict.fromkeys(stage.fiber_work[number] for number in numbers if number in stage.fiber_work)
    loops += [fiber_loop(stage, work) for work in works]
    return loops + [unit_loop(stage, size, members) for (size, _), members in units.items() if size]


def unit_loop(stage: StageLowering, size: int, members: list[int]) -> UnitLoop:
    """Makes the loop over `size` units (numbers of a value) that computes the nodes `members`: products with
    matrices, and pointwise nodes, whose values are stored if something else reads them.
    """
    products: list[ProductSum] = []
    nodes: list[tuple[int, tuple[Operand, ...]]] = []
    for number in members:
        node = stage.net.nodes[number]
        if node.kind == "matmul":
            products.append(product(stage, number, members))
        elif node.kind == "pointwise":
            operands = tuple(stage.operand(operand, node.type, number) for operand in node.inputs)
            nodes.append((number, operands))
    stores: list[tuple[Operand, Field]] = []
    for number in members:
        if stage.net.nodes[number].operation == "products":
            continue
        for target in stage.fields.get(number, []):
            stores.append((Register(number, stage.net.type_of(number).dtype), target))
    return UnitLoop(size, tuple(products), tuple(nodes), tuple(stores))


def result_copies(stage: StageLowering) -> list[Loop]:
    """Makes loops that copy the results which no loop stores: views, constants, values computed earlier, and
    matrices that lie in the order of fibers (elements summed to one result, a unit).
    """
    loops: list[Loop] = []
    stored = {number: targets for number, targets in stage.targets_of.items() if number not in stage.fields}
    for number, targets in (stored | stage.rearranged).items():
        if not targets:
            continue
        type_ = stage.net.type_of(number)
        if type_.size:
            source = stage.operand(number, type_, -1)
            loops += [CopyLoop(type_.size, source, target, 0) for target in targets]
    return loops


# ---- words


def fused_nodes(stage: StageLowering, number: int) -> tuple[tuple[int, tuple[Operand, ...]], ...]:
    """Lists the pointwise nodes that are fused into reduction `number`, each with its operands, in order."""
    nodes: list[tuple[int, tuple[Operand, ...]]] = []
    for member in sorted(n for n, into in stage.fused_into.items() if into == number):
        node = stage.net.nodes[member]
        nodes.append((member, tuple(stage.operand(operand, node.type, member) for operand in node.inputs)))
    return tuple(nodes)


def fold(stage: StageLowering, number: int) -> FoldLoop:
    """Lowers a reduction, node `number`, of all features of a word to a loop, with nodes fused into it."""
    node = stage.net.nodes[number]
    read = stage.net.type_of(node.inputs[0])
    nodes, source = fused_nodes(stage, number), stage.operand(node.inputs[0], read, number)
    return FoldLoop(node.operation, read.size, nodes, source, stage.targets(number))


def inner_reduction(stage: StageLowering, number: int) -> InnerReduceLoop:
    """Lowers a reduction (node `number`) over each row's words to a loop, with the nodes fused into it."""
    node = stage.net.nodes[number]
    nodes, source = fused_nodes(stage, number), stage.operand(node.inputs[0], node.type, number)
    axis = stage.segments.axis(stage.net.type_of(node.inputs[0]))
    how: str = node.attributes["how"]
    return InnerReduceLoop(how, axis, node.type.size, nodes, source, stage.targets(number))


# ---- inner recurrences


def inner_loop(stage: StageLowering, number: int) -> InnerLoop:
    """Lowers an inner recurrence (node `number`), which runs over inner sequences within one step.

    Its memories (recurrent states) and statics (values that every step reads) are in separate records (memory
    of a row's values), one for each lane (slot for a sequence), and are copied from and to the step's
    records.
    """
    node = stage.net.nodes[number]
    recur, records = node.recur, stage.records
    body, operands = recur.body, recur.operands_by_kind(node.inputs)
    outputs, finals = recur.results_by_kind(results_of(stage.net, number))
    axis = stage.segments.axis(stage.net.type_of(operands.sequences[0]))
    sources = {
        inner: inner_field(stage, operand, axis)
        for inner, operand in zip(recur.sequences, operands.sequences, strict=True)
    }
    targets_of, parameters = dict[int, list[Field]](), dict[int, ConstantNode]()
    begin, end = list[CopyLoop](), list[CopyLoop]()
    for memory, operand, after, final in zip(
        recur.memories, operands.memories, recur.following, finals, strict=True
    ):
        now = sources[memory] = records.field("inner now", body.type_of(memory))
        following = replace(now, record="inner next")
        targets_of.setdefault(after, []).append(following)
        begin += copies(stage.operand(operand, body.type_of(memory), -1), (now,))
        end += copies(VectorLoad(following, 0, now.dtype), stage.targets(final))
    for static, operand in zip(recur.others, operands.others, strict=True):
        if body.type_of(static).extent == CONST:
            parameters[static] = stage.constant(operand)
        else:
            sources[static] = records.field("inner lane", body.type_of(static))
            begin += copies(stage.operand(operand, body.type_of(static), -1), (sources[static],))
    for output, picked in zip(recur.outputs, outputs, strict=True):
        targets = (replace(target, record=f"at {axis}") for target in stage.targets(picked))
        targets_of.setdefault(output, []).extend(targets)
    index = None
    for inner, inner_node in enumerate(body.nodes):
        if inner_node.operation == "index":
            index = sources[inner] = records.field("inner lane", inner_node.type)
    computed = [n for n, inner_node in enumerate(body.nodes) if inner_node.operation != "input"]
    inner_phases = phases(body, [n for n in computed if body.nodes[n].types[0].extent != CONST])
    inner_stage = replace(
        stage,
        net=body,
        inside=False,
        scratch="inner lane",
        sources=sources,
        targets_of=targets_of,
        phases=inner_phases,
        parameters=parameters,
        fibers=Fibers(body),
    )
    inner_loops = tuple(map(tuple, loops(inner_stage)))
    return InnerLoop(body, axis, recur.reverse, tuple(begin), inner_loops, tuple(end), index)


def copies(source: Operand, targets: tuple[Field, ...]) -> list[CopyLoop]:
    """Makes loops that copy a whole value to each of some fields; fields without elements need none."""
    return [CopyLoop(target.size, source, target, 0) for target in targets if target.size]


def inner_field(stage: StageLowering, number: int, axis: str) -> Field:
    """Returns the field (place in memory) from which an inner recurrence reads an inner sequence: the current
    word (step of the sequence) of each row.

    It is copied first if it is not stored contiguously. number, axis: its node, and the axis of its words.
    """
    root, _ = view_chain(stage.net, number)
    indices, type_ = view_indices(stage.net, number).ravel(), stage.net.type_of(number)
    if root in stage.sources or root in stage.fields:
        source = stage.field_of(root)
        start = int(indices[0]) if len(indices) else 0
        if np.array_equal(indices, start + np.arange(len(indices))):
            is_complete = len(indices) == stage.net.type_of(root).size
            return current_inner_field(source if is_complete else source.slice(start, type_.size), axis)
    copied = stage.new_field(type_, kept=True)
    stage.pending.append(CopyLoop(type_.size, stage.operand(number, type_, -1), copied, 0))
    return current_inner_field(copied, axis)


def current_inner_field(field: Field, axis: str) -> Field:
    """Makes the field by which an inner recurrence reads the current word (inner step) of each row. field,
    axis: the field of all words of a row, and the axis of the words.
    """
    return field if field.is_outside else replace(field, record=f"at {axis}")
