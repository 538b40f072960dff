"""The machine code of reductions over words: a value of a row from those of its words.

The words are combined in their order, whatever else is computed: one chain for each number. Several unit
blocks go side by side, so that a chain does not wait for itself. A row without words gets zeros.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from stepnet.engines.llvm.emit.cells import ABREAST, Cell, CellCode, parted
from stepnet.engines.llvm.emit.reductions import folded, in_vectors
from stepnet.engines.llvm.emit.stage import StageCode
from stepnet.engines.llvm.lower.loops import FoldLoop, UnitLoop, WordsReduceLoop
from stepnet.engines.llvm.writing.code import (
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
    for place, part in enumerate(parted(code, total, abreast)):
        for target in loop.targets:
            units.store(part, target, code.number(0), code.add(block, code.number(place)))


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
    units = CellCode(stage, UnitLoop(loop.size, (), loop.nodes, ()))

    def value(block: ir.Value) -> ir.Value:
        cells = [Cell(word, block, {}) for word in words]
        return units.abreast(loop.source, cells, units.computed(cells))

    type_ = register_type(loop.targets[0].dtype, stage.width * len(words))
    return in_vectors(stage.code, loop, type_, loop.size, stage.width, value)


def chained(
    stage: StageCode, loop: WordsReduceLoop, first: ir.Value, value: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """All words combined in their order, beginning with the first."""
    code, dtype = stage.code, loop.targets[0].dtype
    node = Node(COMBINE[loop.how], (), (Type(ROWS, (), dtype),))

    def combined(index: ir.Value, partial: list[ir.Value]) -> list[ir.Value]:
        return [pointwise(code, node, [partial[0], value(index)], [dtype, dtype])]

    return code.carry(1, stage.rows.count, [first], combined)[0]
