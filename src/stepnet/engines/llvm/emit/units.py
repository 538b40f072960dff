"""The machine code of products and pointwise work: tiles of rows and unit blocks, each done on registers.

Rows go in tiles: most of them many at a time, what is left some at a time or one by one. A tile may reach
beyond the rows there are (their records lie there, and nobody reads what is put into them), so a remainder
costs one tile.
"""

from dataclasses import dataclass, field

from llvmlite import ir

from stepnet.engines.llvm.emit.stage import StageCode
from stepnet.engines.llvm.lower.load import shapes
from stepnet.engines.llvm.lower.loops import Operand, Product, Register, Side, UnitLoop
from stepnet.engines.llvm.machine.records import Field
from stepnet.engines.llvm.products.arithmetic import arithmetic
from stepnet.engines.llvm.products.tile import Left, Sums, accumulate
from stepnet.engines.llvm.products.tiles import Tile, cover
from stepnet.engines.llvm.writing.code import Code, places, register_type, store_vector, width_of
from stepnet.engines.llvm.writing.pointwise import pointwise

# Cells of a tile whose pointwise work is done at the same time, as one long vector that LLVM takes apart
# again. A cell's own chain of operations is long, and the processor looks ahead too little to find the next
# cell's by itself.
ABREAST = 4


def emit_units(stage: StageCode, loop: UnitLoop) -> None:
    """All tiles of all rows."""
    UnitCode(stage, loop).emit()


@dataclass(frozen=True)
class Cell:
    """One row and unit block of a tile, and what its products gave."""

    row: ir.Value
    block: ir.Value
    sums: dict[int, ir.Value]


def joined(code: Code, parts: list[ir.Value]) -> ir.Value:
    """Vectors one after the other as one long vector: a power of two of them."""
    while len(parts) > 1:
        width = 2 * width_of(parts[0])
        order = places(0, width)
        parts = [code.shuffle_vector(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def parted(code: Code, value: ir.Value, count: int) -> list[ir.Value]:
    """A long vector as `count` vectors."""
    if count == 1:
        return [value]
    width = width_of(value) // count
    return [code.part(value, first, width) for first in range(0, count * width, width)]


@dataclass
class UnitCode:
    """The code of one unit loop."""

    stage: StageCode
    loop: UnitLoop
    blocks: int = field(init=False)

    def __post_init__(self) -> None:
        self.code = self.stage.code
        self.blocks = -(-self.loop.size // self.stage.width)

    def emit(self) -> None:
        """All tiles of all rows, for the unit blocks of this thread."""
        code = self.code
        if not self.loop.products:
            self.plain()
            return
        tiled = shapes(self.loop, self.stage.width, code.target)
        stop = code.number(0)
        for shape, count in zip(tiled, self.tile_counts(tiled), strict=True):
            start, stop = stop, code.add(stop, code.mul(count, code.number(shape.rows)))
            # Each shape is shared in its own grain: tiles of few unit blocks make even parts.
            first, last = self.stage.own_blocks(self.blocks, shape.units)
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
        """Pointwise work without products: row by row."""
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
        if self.blocks % tile.units:
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

    def products(self, product: Product, tile: Tile, row: ir.Value, block: ir.Value) -> Sums:
        """The accumulators of sums of products: each side goes on with those of the sides before it."""
        sums: Sums | None = None
        for side in product.sides:
            sums = self.side(side, len(product.ports), sums, tile, row, block)
        assert sums is not None
        return sums

    def side(
        self, side: Side, gates: int, begun: Sums | None, tile: Tile, row: ir.Value, block: ir.Value
    ) -> Sums:
        """The products of one left side, added to the sums so far; whole numbers are summed by themselves,
        and scaled when they are complete.
        """
        code, width, source = self.code, self.stage.width, side.left
        kind = arithmetic(side.weights, source.dtype, width, code.target)
        left = self.left(source, source.offset + side.start * source.itemsize, tile, row)
        line_bytes = gates * width * kind.word_bytes
        unit_bytes = (kind.heads + kind.words(side.inner)) * line_bytes
        first = code.at(self.stage.constants, side.packed)
        packed = code.at(first, code.mul(block, code.number(unit_bytes)))
        words = code.at(packed, kind.heads * line_bytes)
        shape = {"inner": kind.words(side.inner), "gates": gates, "width": width, "unit_bytes": unit_bytes}
        if side.scales is None:
            return accumulate(code, tile, left, words, kind, **shape, begun=begun)

        def head(line: int, dtype: str) -> list[list[ir.Value]]:
            type_ = register_type(dtype, width)
            places = [
                [unit * unit_bytes + (line * gates + gate) * width * 4 for gate in range(gates)]
                for unit in range(tile.units)
            ]
            return [[code.read(type_, code.at(packed, place), 4 * width) for place in u] for u in places]

        whole = accumulate(code, tile, left, words, kind, **shape, begun=[head(0, "int32")] * tile.rows)
        scales = self.left(side.scales, side.scales.offset, tile, row).rows(code, tile.rows, code.number(0))
        columns, made = head(1, "float32"), list[list[list[ir.Value]]]()
        for place, (pointer, behind) in enumerate(scales):
            own = code.spread(code.read(ir.FloatType(), code.at(pointer, behind), 4), width)
            made.append([])
            for unit, gate_columns in enumerate(columns):
                values: list[ir.Value] = [code.sitofp(each, own.type) for each in whole[place][unit]]
                values = [code.fmul(code.fmul(v, own), c) for v, c in zip(values, gate_columns, strict=True)]
                if begun is not None:
                    values = [code.fadd(a, b) for a, b in zip(begun[place][unit], values, strict=True)]
                made[-1].append(values)
        return made

    def left(self, source: Field, offset: int, tile: Tile, row: ir.Value) -> Left:
        """The rows of a left side from an offset on."""
        code, rows = self.code, self.stage.rows
        if not source.is_outside:
            pointer = code.at(rows.at(code, source.record, row), offset)
            return Left((pointer,), rows.strides[source.record])
        each = [code.add(row, code.number(place)) for place in range(tile.rows)]
        return Left(tuple(code.at(rows.at(code, source.record, one), offset) for one in each))

    def epilogue(self, cells: list[Cell]) -> None:
        """The pointwise nodes of some cells abreast, and the stores."""
        code = self.code
        values = {number: joined(code, [cell.sums[number] for cell in cells]) for number in cells[0].sums}
        for number, operands in self.loop.nodes:
            vectors = [self.abreast(operand, cells, values) for operand in operands]
            node = self.stage.net.nodes[number]
            values[number] = pointwise(code, node, vectors, [operand.dtype for operand in operands])
        for operand, target in self.loop.stores:
            parts = parted(code, self.abreast(operand, cells, values), len(cells))
            for cell, part in zip(cells, parts, strict=True):
                self.store(part, target, cell.row, cell.block)

    def abreast(self, operand: Operand, cells: list[Cell], values: dict[int, ir.Value]) -> ir.Value:
        """An operand of several cells, side by side in one long vector."""
        if isinstance(operand, Register):
            return values[operand.number]
        return joined(self.code, [self.stage.operand(operand, cell.row, cell.block, {}) for cell in cells])

    def store(self, value: ir.Value, target: Field, row: ir.Value, block: ir.Value) -> None:
        """Stores a register in its field."""
        code, width = self.code, self.stage.width
        base = code.at(self.stage.rows.at(code, target.record, row), target.offset)
        pointer = code.at(base, code.mul(block, code.number(width * target.itemsize)))
        store_vector(code, target.dtype, value, pointer, min(width * target.itemsize, target.alignment))
