"""The machine code of a stage: its loops, over rows and unit blocks.

Rows go in tiles: most of them many at a time, what is left some at a time or one by one. A tile may reach
beyond the rows there are (their records lie there, and nobody reads what is put into them), so a remainder
costs one tile.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np
from llvmlite import ir

from stepnet.engines.llvm.code import I32, I64, Code, lanes_of, load_lanes, register_type, store_lanes
from stepnet.engines.llvm.loops import (
    Broadcast,
    CopyLoop,
    GatherLoop,
    Immediate,
    Load,
    Loop,
    Operand,
    Product,
    ReduceLoop,
    Register,
    ScanLoop,
    Table,
    Uniform,
    UnitLoop,
)
from stepnet.engines.llvm.pointwise import pointwise
from stepnet.engines.llvm.records import Field
from stepnet.engines.llvm.reductions import emit_reduction
from stepnet.engines.llvm.scans import emit_scan
from stepnet.engines.llvm.tile import Left, Tile, accumulate, cover, tiles
from stepnet.ir import Net

# Cells of a tile whose pointwise work is done at the same time, as one long vector that LLVM takes apart
# again. A cell's own chain of operations is long, and the processor looks ahead too little to find the next
# cell's by itself.
ABREAST = 4


@dataclass(frozen=True)
class Rows:
    """Where the rows of a stage lie: per record a pointer to its first row, and the stride."""

    pointers: dict[str, ir.Value]
    strides: dict[str, int]
    count: ir.Value

    def at(self, code: Code, record: str, row: ir.Value) -> ir.Value:
        """The pointer to a row of a record."""
        return code.at(self.pointers[record], code.mul(row, code.number(self.strides[record])))


@dataclass
class StageCode:
    """What the loops of a stage are written with."""

    code: Code
    net: Net
    rows: Rows
    constants: ir.Value
    status: ir.Value
    thread: ir.Value
    threads: ir.Value
    lanes: int

    def emit(self, loop: Loop) -> None:
        """The code of one loop."""
        if isinstance(loop, UnitLoop):
            UnitCode(self, loop).emit()
        elif isinstance(loop, CopyLoop):
            self.copy(loop)
        elif isinstance(loop, ReduceLoop):
            with self.own_rows() as row:
                emit_reduction(self, loop, row)
        elif isinstance(loop, ScanLoop):
            with self.own_rows() as row:
                emit_scan(self, loop, row)
        else:
            self.gather(loop)

    # ---- sharing work

    def own_rows(self) -> AbstractContextManager[ir.Value]:
        """A loop over the rows that are this thread's: every so-manieth."""
        return self.code.loop(self.thread, self.rows.count, self.threads)

    def own_blocks(self, blocks: int, grain: int) -> tuple[ir.Value, ir.Value]:
        """The first and last unit block that are this thread's, in whole grains."""
        code = self.code
        grains = -(-blocks // grain)

        def edge(thread: ir.Value) -> ir.Value:
            whole = code.sdiv(code.mul(code.number(grains), thread), self.threads)
            return code.smaller(code.mul(whole, code.number(grain)), code.number(blocks))

        return edge(self.thread), edge(code.add(self.thread, code.number(1)))

    # ---- operands

    def operand(
        self, operand: Operand, row: ir.Value, block: ir.Value, values: dict[int, ir.Value]
    ) -> ir.Value:
        """An operand on registers, for a row (pointers are found from its number) and a unit block."""
        code, lanes = self.code, self.lanes
        itemsize = np.dtype(operand.dtype).itemsize
        if isinstance(operand, Register):
            return values[operand.number]
        if isinstance(operand, Immediate):
            return code.splat(register_type(operand.dtype, lanes), operand.value)
        run = code.mul(block, code.number(lanes * itemsize))
        if isinstance(operand, Broadcast):
            pointer = code.at(code.at(self.constants, operand.offset), run)
            return load_lanes(code, operand.dtype, lanes, pointer, lanes * itemsize)
        base = code.at(self.rows.at(code, operand.field.record, row), operand.field.offset)
        if isinstance(operand, Load):
            align = lanes * itemsize if operand.start == 0 else itemsize
            pointer = code.at(code.at(base, operand.start * itemsize), run)
            return load_lanes(code, operand.dtype, lanes, pointer, min(align, 64))
        if isinstance(operand, Uniform):
            number = load_lanes(code, operand.dtype, 1, code.at(base, operand.start * itemsize), itemsize)
            return code.spread(number, lanes)
        return self.through_table(operand, base, block)

    def through_table(self, operand: Table, base: ir.Value, block: ir.Value) -> ir.Value:
        """An operand whose places stand in a table."""
        code, lanes = self.code, self.lanes
        itemsize = np.dtype(operand.dtype).itemsize
        table = code.at(self.constants, operand.offset)

        def pointer(entry: ir.Value) -> ir.Value:
            return code.at(base, code.mul(code.read_number(table, entry), code.number(itemsize)))

        if operand.per == "block":
            return load_lanes(code, operand.dtype, lanes, pointer(block), itemsize)
        if operand.per == "spread":
            return code.spread(load_lanes(code, operand.dtype, 1, pointer(block), itemsize), lanes)
        first = code.mul(block, code.number(lanes))
        result: ir.Value = ir.Constant(register_type(operand.dtype, lanes), ir.Undefined)
        for lane in range(lanes):
            one = load_lanes(code, operand.dtype, 1, pointer(code.add(first, code.number(lane))), itemsize)
            result = code.insert_element(result, one, ir.Constant(I32, lane)) if lanes > 1 else one
        return result

    # ---- copies and gathers

    def copy(self, loop: CopyLoop) -> None:
        """Features moved to another place; one thread does a row.

        The place may begin inside a field, behind which another value lies: so the last ones go number by
        number.
        """
        code, lanes = self.code, self.lanes
        itemsize = loop.target.itemsize
        whole, rest = divmod(loop.size, lanes)
        with self.own_rows() as row:
            record = self.rows.at(code, loop.target.record, row)
            base = code.at(record, loop.target.offset + loop.start * itemsize)
            with code.loop(code.number(0), code.number(whole)) as block:
                value = self.operand(loop.source, row, block, {})
                pointer = code.at(base, code.mul(block, code.number(lanes * itemsize)))
                store_lanes(code, loop.target.dtype, value, pointer, itemsize)
            if rest:
                value = self.operand(loop.source, row, code.number(whole), {})
                for lane in range(rest):
                    number = code.extract_element(value, ir.Constant(I32, lane))
                    pointer = code.at(base, (whole * lanes + lane) * itemsize)
                    store_lanes(code, loop.target.dtype, number, pointer, itemsize)

    def gather(self, loop: GatherLoop) -> None:
        """Rows of a table; an integer outside sets the status and reads row 0."""
        code = self.code
        target = loop.targets[0]
        width = loop.width * target.itemsize
        with self.own_rows() as row, code.loop(code.number(0), code.number(loop.indices)) as place:
            index = self.one_number(loop.index, row, place)
            from_end = code.icmp_signed("<", index, code.number(0))
            wrapped = code.select(from_end, code.add(index, code.number(loop.count)), index)
            fits = code.icmp_unsigned("<", wrapped, code.number(loop.count))
            with code.when(code.not_(fits)):
                code.write(code.number(1), self.status, 8)
            safe = code.select(fits, wrapped, code.number(0))
            source = code.at(code.at(self.constants, loop.table), code.mul(safe, code.number(width)))
            for one in loop.targets:
                base = code.at(self.rows.at(code, one.record, row), one.offset)
                code.copy_bytes(code.at(base, code.mul(place, code.number(width))), source, width)

    def one_number(self, operand: Operand, row: ir.Value, place: ir.Value) -> ir.Value:
        """One integer of an operand, as 64 bits."""
        code = self.code
        narrow = replace(self, lanes=1)
        if isinstance(operand, Table):
            block = code.sdiv(place, code.number(self.lanes)) if operand.per != "lane" else place
            base = code.at(self.rows.at(code, operand.field.record, row), operand.field.offset)
            value = narrow.through_table(operand, base, block)
        else:
            value = narrow.operand(operand, row, place, {})
        return value if value.type == I64 else code.sext(value, I64)


@dataclass(frozen=True)
class Cell:
    """One row and unit block of a tile, and what its products gave."""

    row: ir.Value
    block: ir.Value
    sums: dict[int, ir.Value]


def joined(code: Code, parts: list[ir.Value]) -> ir.Value:
    """Vectors one after the other as one long vector: a power of two of them."""
    while len(parts) > 1:
        lanes = 2 * lanes_of(parts[0])
        order = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
        parts = [code.shuffle_vector(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def parted(code: Code, value: ir.Value, count: int) -> list[ir.Value]:
    """A long vector as `count` vectors."""
    if count == 1:
        return [value]
    lanes = lanes_of(value) // count
    empty = ir.Constant(value.type, ir.Undefined)
    orders = [list(range(first, first + lanes)) for first in range(0, count * lanes, lanes)]
    return [code.shuffle_vector(value, empty, ir.Constant(ir.VectorType(I32, lanes), o)) for o in orders]


@dataclass
class UnitCode:
    """The code of one unit loop."""

    stage: StageCode
    loop: UnitLoop
    blocks: int = field(init=False)
    grain: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        self.code = self.stage.code
        self.blocks = -(-self.loop.size // self.stage.lanes)

    def emit(self) -> None:
        """All tiles of all rows, for the unit blocks of this thread."""
        code = self.code
        gates = sum(len(product.ports) for product in self.loop.products)
        if not gates:
            self.plain()
            return
        widest = max(p.left.itemsize for p in self.loop.products) * self.stage.lanes
        shapes = tiles(code.target, gates, self.blocks, max(1, widest // code.target.vector_bytes))
        self.grain = shapes[-1].units
        first, last = self.stage.own_blocks(self.blocks, self.grain)
        stop = code.number(0)
        for shape, count in zip(shapes, self.tile_counts(shapes), strict=True):
            start, stop = stop, code.add(stop, code.mul(count, code.number(shape.rows)))
            self.tiled(shape, first, last, start, stop)

    def tile_counts(self, shapes: tuple[Tile, ...]) -> list[ir.Value]:
        """How many tiles of each shape: whole large ones, and the cheapest for the rows left over."""
        code, size = self.code, shapes[0].rows
        whole = code.sdiv(self.stage.rows.count, code.number(size))
        left = code.sub(self.stage.rows.count, code.mul(whole, code.number(size)))
        some = code.icmp_signed(">", whole, code.number(0))
        counts = [whole, code.number(0), code.number(0)]
        for rest in range(1, size):
            here = code.icmp_signed("==", left, code.number(rest))
            for others, condition in ((False, code.not_(some)), (True, some)):
                best = cover(shapes, rest, others)
                chosen = code.and_(here, condition)
                new = [
                    code.add(whole, code.number(best.large)),
                    code.number(best.small),
                    code.number(best.single),
                ]
                counts = [code.select(chosen, a, b) for a, b in zip(new, counts, strict=True)]
        return [
            counts[0],
            *(counts[1:2] if len(shapes) > 2 else []),
            *(counts[2:] if len(shapes) > 1 else []),
        ]

    def plain(self) -> None:
        """Pointwise work alone: row by row."""
        code = self.code
        with self.stage.own_rows() as row, code.loop(code.number(0), code.number(self.blocks)) as block:
            self.epilogue([Cell(row, block, {})])

    def tiled(self, tile: Tile, first: ir.Value, last: ir.Value, start: ir.Value, stop: ir.Value) -> None:
        """A tile's code over unit blocks and rows; unit blocks that do not fill the tile go one by one."""
        code = self.code
        span = code.sub(last, first)
        whole = code.add(first, code.mul(code.sdiv(span, code.number(tile.units)), code.number(tile.units)))
        with code.loop(first, whole, tile.units) as block, code.loop(start, stop, tile.rows) as row:
            self.tile(tile, row, block)
        if self.blocks % tile.units or self.grain % tile.units:
            narrow = Tile(tile.rows, 1)
            with code.loop(whole, last) as block, code.loop(start, stop, tile.rows) as row:
                self.tile(narrow, row, block)

    def tile(self, tile: Tile, row: ir.Value, block: ir.Value) -> None:
        """One tile: its products, then the epilogue of each row and unit on registers."""
        code = self.code
        cells = [
            Cell(code.add(row, code.number(i)), code.add(block, code.number(u)), {})
            for u in range(tile.units)
            for i in range(tile.rows)
        ]
        for product in self.loop.products:
            sums = self.products(product, tile, row, block)
            for place, cell in enumerate(cells):
                gates = sums[place % tile.rows][place // tile.rows]
                cell.sums.update(zip(product.ports, gates, strict=True))
        while cells:
            abreast = next(size for size in (ABREAST, 2, 1) if size <= len(cells))
            self.epilogue(cells[:abreast])
            cells = cells[abreast:]

    def products(
        self, product: Product, tile: Tile, row: ir.Value, block: ir.Value
    ) -> list[list[list[ir.Value]]]:
        """The accumulators of one product."""
        code, lanes = self.code, self.stage.lanes
        source = product.left
        gates = len(product.ports)
        record = self.stage.rows.at(code, source.record, row)
        pointer = code.at(record, source.offset + product.start * source.itemsize)
        left = Left(pointer, self.stage.rows.strides[source.record])
        unit_bytes = product.inner * gates * lanes * source.itemsize
        first = code.at(self.stage.constants, product.packed)
        packed = code.at(first, code.mul(block, code.number(unit_bytes)))
        return accumulate(
            code, tile, left, packed, inner=product.inner, gates=gates, dtype=source.dtype, lanes=lanes
        )

    def epilogue(self, cells: list[Cell]) -> None:
        """The pointwise nodes of some cells abreast, and the stores."""
        code = self.code
        values = {number: joined(code, [cell.sums[number] for cell in cells]) for number in cells[0].sums}
        for number, operands in self.loop.nodes:
            found = [self.abreast(operand, cells, values) for operand in operands]
            node = self.stage.net.nodes[number]
            values[number] = pointwise(code, node, found, [operand.dtype for operand in operands])
        for operand, target in self.loop.stores:
            parts = parted(code, self.abreast(operand, cells, values), len(cells))
            for cell, part in zip(cells, parts, strict=True):
                self.store(part, target, cell.row, cell.block)

    def abreast(self, operand: Operand, cells: list[Cell], values: dict[int, ir.Value]) -> ir.Value:
        """An operand of some cells, side by side in one long vector."""
        if isinstance(operand, Register):
            return values[operand.number]
        return joined(self.code, [self.stage.operand(operand, cell.row, cell.block, {}) for cell in cells])

    def store(self, value: ir.Value, target: Field, row: ir.Value, block: ir.Value) -> None:
        """A register put into its field."""
        code, lanes = self.code, self.stage.lanes
        base = code.at(self.stage.rows.at(code, target.record, row), target.offset)
        pointer = code.at(base, code.mul(block, code.number(lanes * target.itemsize)))
        store_lanes(code, target.dtype, value, pointer, min(lanes * target.itemsize, 64))
