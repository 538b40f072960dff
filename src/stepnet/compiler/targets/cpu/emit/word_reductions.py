"""The machine code of reductions over words, the steps of a row's inner sequence: one value per row.

The words are combined in order, one chain of operations per number, so bits do not depend on the batch.
Several unit blocks are reduced side by side to hide the latency of a chain. A row without words gets zeros.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from stepnet.compiler.net.ir import Node
from stepnet.compiler.net.types import ROWS, Type
from stepnet.compiler.targets.cpu.emit.cells import ABREAST, CellCode, TileCell, split_vector
from stepnet.compiler.targets.cpu.emit.reductions import combine_vectors, fold_vector
from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.lower.loops import FoldLoop, InnerReduceLoop, UnitLoop
from stepnet.compiler.targets.cpu.writing.code import element_type, register_type, store_vector, width_of
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise

COMBINE = {"sum": "add", "mean": "add", "max": "maximum"}
"""The operation that combines a word with those before it. The other reductions select one word."""


def emit_inner_reduction(stage: StageCode, loop: InnerReduceLoop) -> None:
    """Writes the reduction over all words (steps of an inner sequence) of a row to one value: `ABREAST` (4)
    vectors of features at a time, then single ones. stage: the writer of the loops, whose rows are the words.
    """
    code, blocks = stage.code, -(-loop.size // stage.width)
    unrolled_blocks = blocks // ABREAST * ABREAST
    if unrolled_blocks:
        with code.loop(code.number(0), code.number(unrolled_blocks), ABREAST) as block:
            reduce_blocks(stage, loop, block, ABREAST)
    for block in range(unrolled_blocks, blocks):
        reduce_blocks(stage, loop, code.number(block), 1)


def reduce_blocks(stage: StageCode, loop: InnerReduceLoop, block: ir.Value, abreast: int) -> None:
    """Writes the reduction over a row's words (steps of an inner sequence) of `abreast` unit blocks (vectors
    of features) at the same time, from unit block `block` on.

    "sum", "mean" and "max" combine all words; "first" and "last" select one. No words give zeros.
    """
    code, count = stage.code, stage.rows.count
    units = CellCode(stage, UnitLoop(loop.size, (), loop.nodes, ()))

    def value(inner_step: ir.Value) -> ir.Value:
        """Returns the values of the unit blocks at the word with this index, as a long vector."""
        cells = [TileCell(inner_step, code.add(block, code.number(index)), {}) for index in range(abreast)]
        return units.abreast(loop.source, cells, units.computed(cells))

    has_words = code.icmp_signed(">", count, code.number(0))
    last = code.select(has_words, code.sub(count, code.number(1)), code.number(0))
    total = value(last if loop.how == "last" else code.number(0))
    if loop.how in COMBINE:
        total = combine_inner_steps(stage, loop, total, value)
    if loop.how == "mean":
        number = code.sitofp(code.add(last, code.number(1)), element_type(total.type))
        total = code.fdiv(total, code.spread(number, width_of(total)))
    total = code.select(has_words, total, code.splat(total.type, 0))
    for index, vector in enumerate(split_vector(code, total, abreast)):
        for target in loop.targets:
            units.store(vector, target, code.number(0), code.add(block, code.number(index)))


def emit_fold(stage: StageCode, loop: FoldLoop) -> None:
    """Writes the reduction over the features of each word (step of an inner sequence) of a row to one number,
    `ABREAST` (4) words at a time.

    The last group may reach beyond the last word, into memory that is never read.
    """
    code = stage.code
    with code.loop(code.number(0), stage.rows.count, ABREAST) as first:
        cells = [code.add(first, code.number(index)) for index in range(ABREAST)]
        total = reduce_features(stage, loop, cells)
        for inner_step, vector in zip(cells, split_vector(code, total, ABREAST), strict=True):
            for target in loop.targets:
                pointer = code.at(stage.rows.at(code, target.record, inner_step), target.offset)
                store_vector(code, target.dtype, fold_vector(code, loop, vector), pointer, target.itemsize)


def reduce_features(stage: StageCode, loop: FoldLoop, inner_steps: Sequence[ir.Value]) -> ir.Value:
    """Writes a reduction over the features of some words (inner steps), vector by vector. Returns one long
    vector of partial results: `stage.width` elements for each word, word after word.
    """
    units = CellCode(stage, UnitLoop(loop.size, (), loop.nodes, ()))

    def value(block: ir.Value) -> ir.Value:
        """Returns the values of one unit block (vector of features) of all these words, as a long vector."""
        cells = [TileCell(inner_step, block, {}) for inner_step in inner_steps]
        return units.abreast(loop.source, cells, units.computed(cells))

    type_ = register_type(loop.targets[0].dtype, stage.width * len(inner_steps))
    return combine_vectors(stage.code, loop, type_, loop.size, stage.width, value)


def combine_inner_steps(
    stage: StageCode, loop: InnerReduceLoop, first: ir.Value, value: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """Combines the values of all words (steps of an inner sequence) of a row in order; returns the result.

    first: the value of the first word.
    value: writes the computation of the value of the word at an index.
    """
    code, dtype = stage.code, loop.targets[0].dtype
    node = Node(COMBINE[loop.how], (), (Type(ROWS, (), dtype),))

    def combined(index: ir.Value, partial: list[ir.Value]) -> list[ir.Value]:
        """Combines the partial result with the value of the word (inner step) at an index."""
        return [pointwise(code, node, [partial[0], value(index)], [dtype, dtype])]

    return code.carry(1, stage.rows.count, [first], combined)[0]
