"""The machine code of reductions over words: a value of a row from those of its words.

The words are combined in their order, whatever else is computed: one chain for each number. Several unit
blocks go side by side, so that a chain does not wait for itself. A row without words gets zeros.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from stepnet.engines.llvm.emit.cells import ABREAST, Cell, CellCode, parted
from stepnet.engines.llvm.emit.reductions import combine, folded, neutral
from stepnet.engines.llvm.emit.stage import StageCode
from stepnet.engines.llvm.lower.loops import FoldLoop, UnitLoop, WordsReduceLoop
from stepnet.engines.llvm.writing.code import (
    I1,
    I64,
    element_type,
    register_type,
    store_vector,
    width_of,
)
from stepnet.engines.llvm.writing.pointwise import pointwise
from stepnet.net.ir import Node
from stepnet.net.types import ROWS, Type

COMBINE = {"sum": "add", "mean": "add", "max": "maximum"}
"""The operation that combines a word with all before it; where there is none, one word is picked."""


def emit_words_reduction(stage: StageCode, loop: WordsReduceLoop) -> None:
    """The reduction of one row's words, which are the rows of the stage."""
    code, blocks = stage.code, -(-loop.size // stage.width)
    whole = blocks // ABREAST * ABREAST
    if whole:
        with code.loop(code.number(0), code.number(whole), ABREAST) as block:
            of_blocks(stage, loop, block, ABREAST)
    for block in range(whole, blocks):
        of_blocks(stage, loop, code.number(block), 1)


def of_blocks(stage: StageCode, loop: WordsReduceLoop, block: ir.Value, abreast: int) -> None:
    """The reduction of unit blocks side by side."""
    code, count = stage.code, stage.rows.count
    units = CellCode(stage, UnitLoop(loop.size, (), loop.nodes, ()))

    def value(word: ir.Value) -> ir.Value:
        cells = [Cell(word, code.add(block, code.number(place)), {}) for place in range(abreast)]
        return units.abreast(loop.source, cells, units.computed(cells))

    some = code.icmp_signed(">", count, code.number(0))
    last = code.select(some, code.sub(count, code.number(1)), code.number(0))
    total = value(last if loop.how == "last" else code.number(0))
    if loop.how in COMBINE:
        total = chained(stage, loop, total, value)
    if loop.how == "mean":
        number = code.sitofp(code.add(last, code.number(1)), element_type(total.type))
        total = code.fdiv(total, code.spread(number, width_of(total)))
    total = code.select(some, total, code.splat(total.type, 0))
    for target in loop.targets:
        base = code.at(stage.rows.at(code, target.record, code.number(0)), target.offset)
        for place, part in enumerate(parted(code, total, abreast)):
            here = code.mul(code.add(block, code.number(place)), code.number(stage.width * target.itemsize))
            store_vector(
                code,
                target.dtype,
                part,
                code.at(base, here),
                min(stage.width * target.itemsize, target.alignment),
            )


def emit_fold(stage: StageCode, loop: FoldLoop) -> None:
    """The reduction of all features of each word: several words abreast, the last ones beyond the words that
    there are, where nobody reads them.
    """
    code = stage.code
    with code.loop(code.number(0), stage.rows.count, ABREAST) as first:
        cells = [code.add(first, code.number(place)) for place in range(ABREAST)]
        total = of_features(stage, loop, cells)
        for word, part in zip(cells, parted(code, total, ABREAST), strict=True):
            for target in loop.targets:
                pointer = code.at(stage.rows.at(code, target.record, word), target.offset)
                store_vector(code, target.dtype, folded(code, loop, part), pointer, target.itemsize)


def of_features(stage: StageCode, loop: FoldLoop, words: Sequence[ir.Value]) -> ir.Value:
    """Vectors of partial results of some words, side by side: each block of features combined with those
    before it.
    """
    code, width = stage.code, stage.width
    units = CellCode(stage, UnitLoop(loop.size, (), loop.nodes, ()))
    whole, rest = divmod(loop.size, width)

    def value(block: ir.Value) -> ir.Value:
        cells = [Cell(word, block, {}) for word in words]
        return units.abreast(loop.source, cells, units.computed(cells))

    type_ = register_type(loop.targets[0].dtype, width * len(words))
    begun = neutral(code, loop, type_)
    partial: ir.Value = begun
    if whole:
        start, body = code.block, code.append_basic_block("features")
        after = code.append_basic_block("folded")
        code.branch(body)
        code.position_at_end(body)
        index, before = code.phi(I64), code.phi(type_)
        partial = combine(code, loop, before, value(index))
        following = code.add(index, code.number(1))
        for phi, first, then in ((index, code.number(0), following), (before, begun, partial)):
            phi.add_incoming(first, start)
            phi.add_incoming(then, code.block)
        code.cbranch(code.icmp_signed("<", following, code.number(whole)), body, after)
        code.position_at_end(after)
    if rest:
        kept = [ir.Constant(I1, int(element % width < rest)) for element in range(width * len(words))]
        mask = ir.Constant(ir.VectorType(I1, len(kept)), kept) if len(kept) > 1 else kept[0]
        partial = combine(code, loop, partial, code.select(mask, value(code.number(whole)), begun))
    return partial


def chained(
    stage: StageCode, loop: WordsReduceLoop, first: ir.Value, value: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """All words combined in their order, beginning with the first."""
    code, dtype = stage.code, loop.targets[0].dtype
    node = Node(COMBINE[loop.how], (), (Type(ROWS, (), dtype),))
    start, head = code.block, code.append_basic_block("words")
    body, after = code.append_basic_block("word"), code.append_basic_block("combined")
    code.branch(head)
    code.position_at_end(head)
    index, partial = code.phi(I64), code.phi(first.type)
    index.add_incoming(code.number(1), start)
    partial.add_incoming(first, start)
    code.cbranch(code.icmp_signed("<", index, stage.rows.count), body, after)
    code.position_at_end(body)
    total = pointwise(code, node, [partial, value(index)], [dtype, dtype])
    index.add_incoming(code.add(index, code.number(1)), code.block)
    partial.add_incoming(total, code.block)
    code.branch(head)
    code.position_at_end(after)
    return partial
