"""A stage as loops: which nodes are computed together on registers."""

from stepnet.engines.llvm.lower.loops import (
    CopyLoop,
    FoldLoop,
    LaneLoop,
    Loop,
    Operand,
    Phase,
    Product,
    Register,
    UnitLoop,
    WordsReduceLoop,
)
from stepnet.engines.llvm.lower.product import product
from stepnet.engines.llvm.lower.rowwise import concatenation, gather, reduction, scan
from stepnet.engines.llvm.lower.segments import lane_by_lane
from stepnet.engines.llvm.lower.stage import Stage
from stepnet.engines.llvm.machine.records import Field
from stepnet.errors import NetError


def phased(stage: Stage) -> list[Phase]:
    """The loops by phase; results that are views, constants or sources are copied in one more phase."""
    phases: list[tuple[list[Loop], list[Loop]]] = []
    for numbers in stage.phases:
        loops = lower(stage, numbers)
        phases.append((stage.settling, loops))
        stage.settling = []
    lowered = [*lane_by_lane(stage.segments, phases), result_copies(stage)]
    return [phase for phase in lowered if phase]


def loops(stage: Stage) -> list[list[Loop]]:
    """The loops by phase of a stage without inner sequences."""
    phases = phased(stage)
    of_rows = [phase for phase in phases if not isinstance(phase, LaneLoop)]
    assert len(of_rows) == len(phases)
    return of_rows


def lower(stage: Stage, numbers: tuple[int, ...]) -> list[Loop]:
    """The loops of one phase."""
    loops: list[Loop] = []
    units: dict[tuple[int, str], list[int]] = {}
    for number in numbers:
        node = stage.net.nodes[number]
        if number in stage.taken_in:
            continue
        key = node.types[0].size, stage.segments.axis(node.types[0])
        if stage.segments.is_over_words(number):
            loops.append(words_reduction(stage, number))
        elif stage.segments.folds(number):
            loops.append(fold(stage, number))
        elif node.kind == "reduce":
            loops.append(reduction(stage, number))
        elif node.kind == "scan":
            loops.append(scan(stage, number))
        elif node.operation == "gather":
            loops.append(gather(stage, number))
        elif node.operation == "concatenate":
            loops += concatenation(stage, number)
        elif node.kind in ("pointwise", "matmul") or node.operation == "result":
            units.setdefault(key, []).append(number)
        else:
            raise NetError(f"{node.operation} is no work of a stage")
    return loops + [unit_loop(stage, size, members) for (size, _), members in units.items() if size]


def unit_loop(stage: Stage, size: int, members: list[int]) -> UnitLoop:
    """Products and pointwise work of one size."""
    products: list[Product] = []
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


def result_copies(stage: Stage) -> list[Loop]:
    """Copies for results that are views, constants or sources."""
    loops: list[Loop] = []
    for number, targets in stage.wanted.items():
        if number in stage.fields or not targets:
            continue
        type_ = stage.net.type_of(number)
        if type_.size:
            source = stage.operand(number, type_, -1)
            loops += [CopyLoop(type_.size, source, target, 0) for target in targets]
    return loops


# ---- words


def nodes_into(stage: Stage, number: int) -> tuple[tuple[int, tuple[Operand, ...]], ...]:
    """The nodes that a reduction takes in, with their operands."""
    nodes: list[tuple[int, tuple[Operand, ...]]] = []
    for each in sorted(n for n, into in stage.taken_in.items() if into == number):
        own = stage.net.nodes[each]
        nodes.append((each, tuple(stage.operand(operand, own.type, each) for operand in own.inputs)))
    return tuple(nodes)


def fold(stage: Stage, number: int) -> FoldLoop:
    """A reduction of all features of each word, with the pointwise work ahead of it."""
    node = stage.net.nodes[number]
    read = stage.net.type_of(node.inputs[0])
    nodes, source = nodes_into(stage, number), stage.operand(node.inputs[0], read, number)
    return FoldLoop(node.operation, read.size, nodes, source, stage.targets(number))


def words_reduction(stage: Stage, number: int) -> WordsReduceLoop:
    """A reduction over words, with the pointwise work ahead of it."""
    node = stage.net.nodes[number]
    nodes, source = nodes_into(stage, number), stage.operand(node.inputs[0], node.type, number)
    axis = stage.segments.axis(stage.net.type_of(node.inputs[0]))
    how: str = node.attributes["how"]
    return WordsReduceLoop(how, axis, node.type.size, nodes, source, stage.targets(number))
