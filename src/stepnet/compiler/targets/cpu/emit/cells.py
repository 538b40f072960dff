"""The machine code of register tiles: products accumulated in registers, and their epilogue, cell by cell.

A tile may extend past the last row: records are allocated there, but their contents are never read.
"""

from dataclasses import field, replace
from functools import partial

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.emit.tile_place import TilePlace, fetched_ahead
from stepnet.compiler.targets.cpu.lower import loops
from stepnet.compiler.targets.cpu.machine.records import Field
from stepnet.compiler.targets.cpu.products.arithmetic import arithmetic
from stepnet.compiler.targets.cpu.products.matrix import MatrixTiles
from stepnet.compiler.targets.cpu.products.tile import FetchList, LeftOperand, Sums, accumulate
from stepnet.compiler.targets.cpu.products.tiles import Tile
from stepnet.compiler.targets.cpu.writing.code import (
    Code,
    lane_indices,
    register_type,
    store_vector,
    width_of,
)
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise
from stepnet.compiler.values.records import dataclass

# The number of cells whose epilogues are interleaved, as one long vector that LLVM splits again. A cell's
# chain of dependent operations is long, and out-of-order execution does not reach the next cell's.
ABREAST = 4


@dataclass(frozen=True)
class TileCell:
    """Cell of a tile: a row, a unit block (a vector of units), and the sums of its products, by node."""

    row: ir.Value
    block: ir.Value
    sums: dict[int, ir.Value]


def join_vectors(code: Code, vectors: list[ir.Value]) -> ir.Value:
    """Concatenates vectors of equal width, whose number is a power of two, to one long vector."""
    while len(vectors) > 1:
        width = 2 * width_of(vectors[0])
        order = lane_indices(0, width)
        vectors = [code.shuffle_vector(a, b, order) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def split_vector(code: Code, value: ir.Value, count: int) -> list[ir.Value]:
    """Splits a long vector into `count` vectors of equal width, in order."""
    if count == 1:
        return [value]
    width = width_of(value) // count
    return [code.slice(value, first, width) for first in range(0, count * width, width)]


def added(code: Code, sums: Sums, others: Sums) -> Sums:
    """Writes the addition of integer sums [row][unit block][gate] to others."""
    return [
        [[code.add(*pair) for pair in zip(*gates, strict=True)] for gates in zip(*units, strict=True)]
        for units in zip(sums, others, strict=True)
    ]


@dataclass
class CellCode:
    """Writer of the code of a loop over units, by cells: each a row and one of `blocks` vectors of units.

    matrix: writes the products of tiles that instructions for matrices compute; None if there are none.
    """

    stage: StageCode
    loop: loops.UnitLoop
    blocks: int = field(init=False)
    matrix: MatrixTiles | None = None

    def __post_init__(self) -> None:
        """Computes the number of unit blocks: vectors that hold all units of a row."""
        self.code = self.stage.code
        self.blocks = -(-self.loop.size // self.stage.width)

    def plain(self) -> None:
        """Writes the elementwise work of a loop without products, which threads divide by rows or units
        (features of the result). Where code may read beyond the last row, `ABREAST` rows are computed at a
        time, as one long vector.
        """
        if self.stage.shares_units:
            with self.stage.own_groups(self.blocks) as (row, block):
                self.epilogue([TileCell(row, block, {})])
            return
        code, abreast = self.code, ABREAST if self.stage.reaches_beyond else 1
        with (
            self.stage.own_rows(abreast) as row,
            code.loop(code.number(0), code.number(self.blocks)) as block,
        ):
            self.epilogue(
                [TileCell(code.add(row, code.number(index)), block, {}) for index in range(abreast)]
            )

    def tile(self, tile: Tile, place: TilePlace, initial: Sums | None = None) -> list[TileCell]:
        """Writes the products of one register tile (rows x unit blocks, which are vectors of features of the
        result); returns its cells with their sums. If the tile computes a group of gates, the cells have its
        sums under the first of the nodes that the sums compute (`ports`).

        initial: the sums over the sections of k before; None for zeros.
        """
        code = self.code
        cells = [
            TileCell(code.add(place.row, code.number(i)), code.add(place.block, code.number(u)), {})
            for u in range(tile.units)
            for i in range(tile.rows)
        ]
        for product in self.loop.products:
            sums = self.products(product, tile, place, initial)
            for index, cell in enumerate(cells):
                gates = sums[index % tile.rows][index // tile.rows]
                cell.sums.update(zip(product.ports[: len(gates)], gates, strict=True))
        return cells

    def products(self, product: loops.ProductSum, tile: Tile, place: TilePlace, initial: Sums | None) -> Sums:
        """Writes one sum of matrix products over a tile (rows x unit blocks, which are vectors of features);
        returns the accumulators [row][unit block][gate]. initial: those to begin with; None for zeros.
        """
        sums = initial
        for operand in product.operands:
            sums = self.operand_product(operand, len(product.ports), sums, tile, place)
        assert sums is not None
        return sums

    def operand_product(
        self, operand: loops.ProductOperand, gates: int, initial: Sums | None, tile: Tile, place: TilePlace
    ) -> Sums:
        """Writes the products of one left operand over a tile (rows x unit blocks, which are vectors of
        features), added to the sums so far; returns the sums.

        gates: the number of products per unit.
        initial: the sums so far, [row][unit block][gate]; None for zeros.

        Products with weights in int8 have separate accumulators, which are scaled at the end.
        """
        code, width, source = self.code, self.stage.width, operand.field
        kind = arithmetic(operand.weights, source.dtype, width, code.processor)
        left = self.left_operand(source, source.offset + operand.start * source.itemsize, tile, place.row)
        line_bytes = gates * width * kind.word_bytes
        word_count = kind.word_count(operand.inner)
        unit_bytes = (kind.heads + word_count) * line_bytes
        first = code.at(self.stage.constants, operand.packed)
        packed = code.at(first, code.mul(place.block, code.number(unit_bytes)))
        own_gates = gates // tile.gate_groups
        if place.gate_group is not None:
            group_bytes = code.number(own_gates * width * kind.word_bytes)
            packed = code.at(packed, code.mul(place.gate_group, group_bytes))
        words = code.at(packed, kind.heads * line_bytes)
        word_count //= tile.sections
        if tile.sections > 1:
            assert place.section is not None
            done = code.mul(place.section, code.number(word_count))
            words = code.at(words, code.mul(done, code.number(line_bytes)))
            offset = code.mul(done, code.number(kind.left_bytes))
            left = replace(left, pointers=tuple(code.at(row, offset) for row in left.pointers))
        shape = {
            "inner": word_count,
            "gates": own_gates,
            "width": width,
            "line_bytes": line_bytes,
            "unit_bytes": unit_bytes,
        }
        ahead = [
            fetched_ahead(code, first, unit_bytes, word_count, tile, place),
            self.listed(operand, word_count, tile, place),
        ]
        ahead = [each for each in ahead if each is not None]
        summed = partial(accumulate, code, tile, left, words, kind, **shape, ahead=ahead)
        if not kind.heads:
            return summed(initial=initial)

        def head(line: int, dtype: str) -> list[list[ir.Value]]:
            """Loads a line of numbers that lies before the packed words of a matrix, 0 for the initial sums
            or 1 for the scales of columns, as vectors [unit block][gate]: for each vector of features, one
            per product.
            """
            type_ = register_type(dtype, width)
            offsets = [
                [unit * unit_bytes + (line * gates + gate) * width * 4 for gate in range(own_gates)]
                for unit in range(tile.units)
            ]
            return [[code.read(type_, code.at(packed, index), 4 * width) for index in u] for u in offsets]

        begin = None if operand.scales is None else [head(0, "int32")] * tile.rows
        if tile.by_matrix:
            assert self.matrix is not None
            assert begin is not None
            for each in ahead:
                if isinstance(each, FetchList):
                    each.fetch(code, code.number(0), word_count)
            totals = added(code, self.matrix.products(left, words, units=tile.units, **shape), begin)
        else:
            totals = summed(initial=begin)
        scales: list[ir.Value | None] = [None] * tile.rows
        if operand.scales is not None:
            own = self.left_operand(operand.scales, operand.scales.offset, tile, place.row)
            scales = [self.spread(*place) for place in own.rows(code, tile.rows, code.number(0))]
        columns, scaled = head(1, "float32"), list[list[list[ir.Value]]]()
        for index, scale in enumerate(scales):
            previous = [None] * tile.units if initial is None else initial[index]
            units = zip(totals[index], columns, previous, strict=True)
            scaled.append([self.scaled(sums, scale, factors, addends) for sums, factors, addends in units])
        return scaled

    def spread(self, pointer: ir.Value, offset: int) -> ir.Value:
        """Loads the float32 at an offset in bytes from a pointer, and broadcasts it to a vector."""
        number = self.code.read(ir.FloatType(), self.code.at(pointer, offset), 4)
        return self.code.spread(number, self.stage.width)

    def scaled(
        self,
        sums: list[ir.Value],
        scale: ir.Value | None,
        columns: list[ir.Value],
        initial: list[ir.Value] | None,
    ) -> list[ir.Value]:
        """Writes code that turns the sums of an int8 product into float32: each sum times the scale of its
        row and that of its column of weights, plus its element of `initial`, if any.

        sums: a vector of features for each gate (one of the products computed together, as for a GRU), all of
            one row.
        scale: the scale of the row, whose sums are integers; None for a row that is not encoded. columns,
            initial: the scales of the columns, and the float32 numbers to add, as vectors like those of
            `sums`.
        """
        code, values = self.code, sums
        if scale is not None:
            values = [code.fmul(code.sitofp(integer_sum, scale.type), scale) for integer_sum in sums]
        values = [code.fmul(value, column) for value, column in zip(values, columns, strict=True)]
        if initial is None:
            return values
        return [code.fadd(sum_, value) for sum_, value in zip(initial, values, strict=True)]

    def left_operand(self, source: Field, offset: int, tile: Tile, row: ir.Value) -> LeftOperand:
        """Computes the pointers by which a matrix product reads its left operand, for the rows of a tile,
        from `row` on. Rows of an array of the call are not a stride apart, so each has a pointer.

        source: the field of the operand, which says in which memory it is. If the operand is a window of
            steps that is read in place, the pointers are to the addresses of its steps.
        offset: the offset of its first element in the memory of a row, in bytes.
        """
        code, rows = self.code, self.stage.rows
        if not source.is_outside:
            pointer = code.at(rows.at(code, source.record, row), offset)
            return LeftOperand((pointer,), rows.strides[source.record])
        tile_rows = [code.add(row, code.number(index)) for index in range(tile.rows)]
        pointers = tuple(code.at(rows.at(code, source.record, row), offset) for row in tile_rows)
        return LeftOperand(pointers, pieces=source.pieces)

    def epilogues(self, cells: list[TileCell]) -> None:
        """Writes the elementwise work and the stores of a tile's cells (each a row and a vector of features
        of the result), whose sums of products are in registers.

        All cells are computed before any is stored, so that shared operands are loaded once.
        """
        computed = [(cell, self.results([cell])) for cell in cells]
        for cell, results in computed:
            self.store_results([cell], results)

    def epilogue(self, cells: list[TileCell]) -> None:
        """Writes elementwise work and stores of cells (row, unit block), interleaved in one long vector."""
        self.store_results(cells, self.results(cells))

    def results(self, cells: list[TileCell]) -> list[ir.Value]:
        """Writes the elementwise work of cells (each a row and a vector of features). Returns the values to
        store: for each of the loop's stores, one vector with the values of all cells side by side.
        """
        values = self.computed(cells)
        return [self.abreast(operand, cells, values) for operand, _ in self.loop.stores]

    def store_results(self, cells: list[TileCell], results: list[ir.Value]) -> None:
        """Writes stores of cells (a row and a unit block each). results: for each a vector of all cells."""
        for value, (_, target) in zip(results, self.loop.stores, strict=True):
            for cell, vector in zip(cells, split_vector(self.code, value, len(cells)), strict=True):
                self.store(vector, target, cell.row, cell.block)

    def computed(self, cells: list[TileCell]) -> dict[int, ir.Value]:
        """Writes the elementwise nodes of a loop for some cells (each a row and a vector of features);
        returns, by node, the values of these and of the sums of products. Each value is one long vector with
        all cells side by side, so that their operations interleave.
        """
        code = self.code
        values = {
            number: join_vectors(code, [cell.sums[number] for cell in cells]) for number in cells[0].sums
        }
        for number, operands in self.loop.nodes:
            vectors = [self.abreast(operand, cells, values) for operand in operands]
            node = self.stage.net.nodes[number]
            values[number] = pointwise(code, node, vectors, [operand.dtype for operand in operands])
        return values

    def addresses(self, row: ir.Value, block: ir.Value) -> list[ir.Value]:
        """Computes the addresses of the memory that the elementwise work on one cell (a row and a unit block,
        a vector of features) reads and writes.
        """
        code, width, addresses = self.code, self.stage.width, list[ir.Value]()
        for field_, start in self.fetched:
            offset = field_.offset + start * field_.itemsize
            base = code.at(self.stage.rows.at(code, field_.record, row), offset)
            addresses.append(code.at(base, code.mul(block, code.number(width * field_.itemsize))))
        return addresses

    @property
    def fetched(self) -> list[tuple[Field, int]]:
        """The fields that the elementwise work on a cell (a row and a vector of features) reads and writes,
        each with the first of its elements.
        """
        operands = [operand for _, operands in self.loop.nodes for operand in operands]
        loads = dict.fromkeys(operand for operand in operands if isinstance(operand, loops.VectorLoad))
        return [
            *((load.field, load.start) for load in loads),
            *((target, 0) for _, target in self.loop.stores),
        ]

    def listed(
        self, operand: loops.ProductOperand, words: int, tile: Tile, place: TilePlace
    ) -> FetchList | None:
        """Returns the memory that a tile (rows x unit blocks) fetches during the products of a left operand:
        that of its elementwise work during the longest one, else none. words: the packed words of k of this
        operand.
        """
        operands = [operand for product in self.loop.products for operand in product.operands]
        if place.fetched is None or operand is not max(operands, key=lambda each: each.inner):
            return None
        turn = self.code.number(0) if place.gate_group is None else place.gate_group
        begin = self.code.mul(turn, self.code.number(words))
        entries = tile.rows * tile.units * len(self.fetched)
        return FetchList(place.fetched, entries, tile.gate_groups * words, begin)

    def abreast(self, operand: loops.Operand, cells: list[TileCell], values: dict[int, ir.Value]) -> ir.Value:
        """Returns an operand for some cells (each a row and a vector of features) as one long vector, with
        the values of all cells side by side. values: the registers computed so far, by node.
        """
        if isinstance(operand, loops.Register):
            return values[operand.number]
        return join_vectors(
            self.code, [self.stage.operand(operand, cell.row, cell.block, {}) for cell in cells]
        )

    def store(self, value: ir.Value, target: Field, row: ir.Value, block: ir.Value) -> None:
        """Writes a store of a vector to a unit block of a row. target: the value's position in the row."""
        code, width = self.code, self.stage.width
        base = code.at(self.stage.rows.at(code, target.record, row), target.offset)
        pointer = code.at(base, code.mul(block, code.number(width * target.itemsize)))
        store_vector(code, target.dtype, value, pointer, min(width * target.itemsize, target.alignment))
