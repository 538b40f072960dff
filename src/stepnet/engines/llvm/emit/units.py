"""The machine code of products and elementwise work: tiles of rows and unit blocks, each done on registers.

    for a group of unit blocks:           as many as any tile has side by side, so that what they read is read
        for each kind of tile:            from a near cache by all tiles but the first
            for block, for row:
                products                  code of the kind's own: sums on registers
                elementwise work          code for all kinds, which reads the sums from memory

Which tiles compute how many rows is a table that the code reads. The elementwise work is written once: it is
most of the code, and another kind of tile adds little. Where it is short, it is done on the registers.
"""

from itertools import chain, product
from math import lcm

import numpy as np
from llvmlite import ir

from stepnet.engines.llvm.emit.cells import ABREAST, Cell, CellCode
from stepnet.engines.llvm.emit.stage import StageCode
from stepnet.engines.llvm.lower.loops import UnitLoop
from stepnet.engines.llvm.machine.records import LINE
from stepnet.engines.llvm.products.arithmetic import arithmetic
from stepnet.engines.llvm.products.tiles import Tile, cover, tiles
from stepnet.engines.llvm.writing.code import I8, I64, POINTER, register_type


def emit_units(stage: StageCode, loop: UnitLoop) -> None:
    """All tiles of all rows, for the unit blocks of this thread."""
    cells = CellCode(stage, loop)
    code, blocks, width = stage.code, cells.blocks, stage.width
    gates = sum(len(product.ports) for product in loop.products)
    if not gates:
        cells.plain()
        return
    sides = [side for product in loop.products for side in product.sides]
    vector_bytes = width * max(np.dtype(product.dtype).itemsize for product in loop.products)
    parts = max(arithmetic(side.weights, side.left.dtype, width, code.target).parts for side in sides)
    vectors = max(1, vector_bytes // code.target.vector_bytes)
    shapes = tiles(code.target, gates, blocks, vectors, parts)
    grain = grain_of(blocks, shapes[-1].units)
    first, last = stage.own_blocks(blocks, grain)
    tiled = Tiled(cells, shapes, gates, vector_bytes, grain)
    counts, whole = tiled.row_counts()
    with code.loop(first, last, tiled.group) as begin:
        end = code.smaller(code.add(begin, code.number(tiled.group)), last)
        tiled.emit(counts, whole, begin, end)


def grain_of(blocks: int, units: int) -> int:
    """The unit blocks that threads do not divide: as many as are done side by side for one row, where that
    leaves an even number of shares.
    """
    while 1 < units < blocks and blocks % (2 * units):
        units //= 2
    return units


WORDS = ("rows", "units", "mask", "shift")
"""What the code reads of a tile: its rows and units. Cell c is that of row c & mask and unit c >> shift."""


class Tiled:
    """The code of all tiles of some unit blocks.

    Unit blocks that do not fill a tile go one by one. Elementwise work that is long is written once, for any
    tile: it reads the sums of products from memory.
    """

    def __init__(
        self, unit: CellCode, shapes: tuple[Tile, ...], gates: int, vector_bytes: int, grain: int
    ) -> None:
        self.unit, self.code, self.shapes = unit, unit.code, shapes
        self.group = lcm(*(shape.units for shape in shapes))
        narrow = any(unit.blocks % shape.units or grain % shape.units for shape in shapes)
        self.kinds = [
            Tile(shape.rows, units)
            for shape in shapes
            for units in ((shape.units, 1) if narrow else (shape.units,))
        ]
        self.each = 2 if narrow else 1
        self.ports = [port for product in unit.loop.products for port in product.ports if port >= 0]
        self.shared = unit.length > 2 * gates
        self.words = self.table("tiles", [word for kind in self.kinds for word in words_of(kind)])
        self.counts = self.table("counts", counts_of(shapes, gates, vector_bytes))
        with self.code.goto_entry_block():
            self.next_row = self.code.alloca(I64)
            if self.shared:
                cells = max(kind.rows * kind.units for kind in self.kinds)
                self.bytes = -(-vector_bytes // LINE) * LINE
                sums = self.code.alloca(ir.ArrayType(I8, cells * len(self.ports) * self.bytes))
                sums.align = LINE
                self.sums = self.code.inttoptr(self.code.ptrtoint(sums, I64), POINTER)

    def table(self, name: str, numbers: list[int]) -> ir.Value:
        """Numbers that the code reads."""
        module, type_ = self.code.module, ir.ArrayType(I64, len(numbers))
        table = ir.GlobalVariable(module, type_, module.get_unique_name(name))
        table.linkage, table.global_constant = "internal", True
        table.initializer = ir.Constant(type_, numbers)
        return self.code.inttoptr(self.code.ptrtoint(table, I64), POINTER)

    def row_counts(self) -> tuple[ir.Value, ir.Value]:
        """Where it is said how many tiles of each shape there are, and how many large ones in addition."""
        code, rows, large = self.code, self.unit.stage.rows.count, self.code.number(self.shapes[0].rows)
        whole = code.sdiv(rows, large)
        left = code.sub(rows, code.mul(whole, large))
        line = code.select(code.icmp_signed(">", whole, code.number(0)), code.add(large, left), left)
        return code.at(self.counts, code.mul(line, code.number(8 * len(self.shapes)))), whole

    def emit(self, counts: ir.Value, whole: ir.Value, begin: ir.Value, end: ir.Value) -> None:
        """All rows of the unit blocks from `begin` to `end`, tile by tile, those of one kind together."""
        code = self.code
        code.store(code.number(0), self.next_row)
        with code.loop(code.number(0), code.number(len(self.shapes))) as place:
            count = code.read_number(counts, place)
            first = code.icmp_signed("==", place, code.number(0))
            count = code.add(count, code.select(first, whole, code.number(0)))
            with code.when(code.icmp_signed(">", count, code.number(0))):
                self.shape(code.mul(place, code.number(self.each)), count, begin, end)

    def shape(self, kind: ir.Value, count: ir.Value, begin: ir.Value, end: ir.Value) -> None:
        """So many tiles of a shape: unit blocks side by side, and those left over one by one."""
        code = self.code
        rows, units, _, _ = self.words_at(kind)
        start = code.load(self.next_row)
        stop = code.add(start, code.mul(count, rows))
        code.store(stop, self.next_row)
        span = code.sub(end, begin)
        whole = code.add(begin, code.mul(code.sdiv(span, units), units))
        if self.each == 1:
            self.tiles(kind, begin, whole, start, stop)
            return
        with code.loop(code.number(0), code.number(2)) as half:
            wide = code.icmp_signed("==", half, code.number(0))
            first, last = code.select(wide, begin, whole), code.select(wide, whole, end)
            self.tiles(code.add(kind, half), first, last, start, stop)

    def tiles(self, kind: ir.Value, begin: ir.Value, end: ir.Value, start: ir.Value, stop: ir.Value) -> None:
        """All tiles of a kind: the products by code of the kind's own, then the elementwise work."""
        code = self.code
        words = self.words_at(kind)
        with code.loop(begin, end, words[1]) as block, code.loop(start, stop, words[0]) as row:
            if self.shared:
                with code.loop(code.number(0), code.mul(words[0], words[1])) as number:
                    _, _, mask, shift = words
                    self.unit.fetch(code.add(row, code.and_(number, mask)), code.add(block, code.ashr(number, shift)))
            for number, tile in enumerate(self.kinds):
                with code.when(code.icmp_signed("==", kind, code.number(number))):
                    cells = self.unit.tile(tile, row, block)
                    if self.shared:
                        self.keep(cells)
                    else:
                        self.unit.epilogues(cells)
            if self.shared:
                self.epilogues(row, block, words)

    def words_at(self, kind: ir.Value) -> list[ir.Value]:
        """The words of a kind of tile."""
        code = self.code
        line = code.at(self.words, code.mul(kind, code.number(8 * len(WORDS))))
        return [code.read_number(line, code.number(place)) for place in range(len(WORDS))]

    def keep(self, cells: list[Cell]) -> None:
        """Puts the sums of a tile into memory, cell after cell."""
        places = product(cells, self.ports)
        for place, (cell, port) in enumerate(places):
            value = cell.sums[port]
            self.code.write(value, self.code.at(self.sums, place * self.bytes), 4)

    def epilogues(self, row: ir.Value, block: ir.Value, words: list[ir.Value]) -> None:
        """The elementwise work on a tile's cells in memory: as many abreast as there are."""
        code = self.code
        rows, units, _, _ = words
        count = code.mul(rows, units)
        sizes = [kind.rows * kind.units for kind in self.kinds]
        begin: ir.Value = code.number(0)
        for abreast in (ABREAST, 2, 1):
            if not any(
                size % (2 * abreast) >= abreast if abreast < ABREAST else size >= abreast for size in sizes
            ):
                continue
            end = code.and_(count, code.number(-abreast))
            with code.loop(begin, end, abreast) as first:
                self.unit.epilogue(
                    [self.cell(code.add(first, code.number(i)), row, block, words) for i in range(abreast)]
                )
            begin = end

    def cell(self, number: ir.Value, row: ir.Value, block: ir.Value, words: list[ir.Value]) -> Cell:
        """A cell of a tile, with its sums from memory."""
        code = self.code
        _, _, mask, shift = words
        at = code.at(self.sums, code.mul(number, code.number(len(self.ports) * self.bytes)))
        width, sums = self.unit.stage.width, dict[int, ir.Value]()
        place = 0
        for each in self.unit.loop.products:
            for port in each.ports:
                if port >= 0:
                    type_ = register_type(each.dtype, width)
                    sums[port] = code.read(
                        type_, code.at(at, place * self.bytes), np.dtype(each.dtype).itemsize * width
                    )
                    place += 1
        return Cell(code.add(row, code.and_(number, mask)), code.add(block, code.ashr(number, shift)), sums)


def words_of(tile: Tile) -> list[int]:
    """The words of a tile: a number of rows that is no power of two has one unit block."""
    if tile.units == 1:
        return [tile.rows, 1, -1, 63]
    assert tile.rows & (tile.rows - 1) == 0
    return [tile.rows, tile.units, tile.rows - 1, tile.rows.bit_length() - 1]


def counts_of(shapes: tuple[Tile, ...], gates: int, vector_bytes: int) -> list[int]:
    """How many tiles of each shape there are for each number of rows left over by the large ones: first where
    there is no large one, then how many more where there is one, which others may replace.
    """
    large = shapes[0].rows
    alone = [cover(shapes, rows, gates, vector_bytes) for rows in range(large)]
    after = [cover(shapes, rows + large, gates, vector_bytes) for rows in range(large)]
    return [*chain(*alone), *chain(*((first - 1, *rest) for first, *rest in after))]
