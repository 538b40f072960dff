"""The machine code of products and their epilogues: register tiles of rows x unit blocks.

    for each group of unit blocks:        a multiple of every tile's width: its weights stay in a near cache
        for each kind of tile:
            for block, for row:
                products                  one microkernel per kind: accumulators in registers. Large weights
                                          of the next block are fetched, by each of the tiles a part
                epilogue                  one for all kinds: it reads the accumulators from memory

    if the weights of a block and of the next one exceed a near cache:
            for block, for 8 tiles of rows, for section of k, for each of these tiles:
                products                  the accumulators of the section before are read from memory. Weights
                                          of the next section are fetched
                epilogue                  after the last section

A table says how many tiles of each kind cover the rows. The epilogue, the elementwise work on the sums, is
written once: it is most of the code, so another kind of tile adds little. A short epilogue reads the
accumulators from registers.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from math import lcm

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.cells import ABREAST, CellCode, TileCell
from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.emit.tile_place import Following, TilePlace
from stepnet.compiler.targets.cpu.emit.tile_sums import TileSums
from stepnet.compiler.targets.cpu.emit.unit_groups import UnitGroup, unit_groups
from stepnet.compiler.targets.cpu.lower.loops import UnitLoop, exchanged_fields
from stepnet.compiler.targets.cpu.lower.tiling import Tiling
from stepnet.compiler.targets.cpu.machine.records import LINE
from stepnet.compiler.targets.cpu.products.matrix import TILE_WRITERS
from stepnet.compiler.targets.cpu.products.tiles import Tile, power_of_two
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, register_type


def emit_units(stage: StageCode, loop: UnitLoop) -> None:
    """Writes the matrix products of a loop and the elementwise work on them, for this thread's unit blocks
    (vectors of features of the result): tile by tile, each some rows x unit blocks that fit the registers.
    """
    cells = CellCode(stage, loop)
    code, blocks, width = stage.code, cells.blocks, stage.width
    if not loop.products:
        cells.plain()
        return
    tiling = Tiling.of(stage.net, loop, width, code.processor)
    fetch_exchanged(stage, loop)
    cells.matrix = TILE_WRITERS["amx-int8"](code) if tiling.shapes[0].by_matrix else None
    configured = cells.matrix.configured(stage.rows.count) if cells.matrix else nullcontext()
    tiled = Tiled(cells, tiling)
    counts, full_tiles, least = tiled.row_counts()
    with configured, unit_groups(stage, tiling, blocks, tiled.group, least) as group:
        tiled.emit(counts, full_tiles, group)


def fetch_exchanged(stage: StageCode, loop: UnitLoop) -> None:
    """Writes prefetches of the values that a loop multiplies by parameters, for steps that threads share:
    another thread has just written a part of each row. All lines are then on their way at the same time,
    where products would wait for one after the other.
    """
    code, fields = stage.code, exchanged_fields(loop)
    if not fields:
        return
    is_shared = code.icmp_signed(">", stage.threads, code.number(1))
    with code.when(is_shared), code.loop(code.number(0), stage.rows.count) as row:
        for field_ in fields:
            begin = code.at(stage.rows.at(code, field_.record, row), field_.offset)
            with code.loop(code.number(0), code.number(field_.bytes), LINE) as offset:
                code.prefetch(code.at(begin, offset))


ENTRIES = ("rows", "units", "mask", "shift", "narrow", "sections")
"""The words of a kind of tile in the table that the code reads.

rows, units: its shape. mask, shift: its cell c is row c & mask, unit c >> shift. narrow: the number of the
kind with as many rows and one unit block. sections: the number of sections of k.
"""
Entries = dict[str, ir.Value]
ABREAST_TILES = 8
"""The most tiles that compute a section of k before they all compute the next one."""


def narrow(tile: Tile) -> Tile:
    """Makes a tile of as many rows with a single unit block, for the unit blocks that wider tiles leave."""
    return replace(tile, units=1)


class Tiled:
    """Writer of the code of all register tiles (rows x unit blocks, whose sums are in registers) of a range
    of unit blocks (vectors of units).

    Unit blocks that do not fill a tile are computed by its narrow kind, one by one. A long epilogue is
    written once for all kinds of tiles, and reads the accumulators from memory.

    ahead: whether parameters of tiles that follow are prefetched.
    has_sections: whether some kind of tile computes k in sections.
    sums: the memory of the sums that the epilogue reads, which is written once; None if each kind of tile has
        its own epilogue.
    fetched: the pointer to stack memory for the addresses that the epilogue of a tile reads and writes, which
        are prefetched, `listed_bytes` for each tile; None if they are not.
    """

    def __init__(self, unit: CellCode, tiling: Tiling) -> None:
        """Prepares to write a loop's tiles: their tables, and stack memory for sums.

        unit, tiling: the writer of single tiles, and the choice of tile shapes.
        """
        shapes, grain, vector_bytes = tiling.shapes, tiling.grain, tiling.vector_bytes
        self.unit, self.code, self.shapes = unit, unit.code, shapes
        self.group = lcm(*(shape.units for shape in shapes))
        parted = [shape for shape in shapes if unit.blocks % shape.units or grain % shape.units]
        self.has_narrow = bool(parted)
        self.kinds = list(dict.fromkeys([*shapes, *(narrow(shape) for shape in parted)]))
        ports = {
            port: register_type(product.dtype, unit.stage.width)
            for product in unit.loop.products
            for port in product.ports
            if port >= 0
        }
        self.ahead, self.has_sections = tiling.fetches_ahead, any(shape.sections > 1 for shape in shapes)
        self.sums: TileSums | None = None
        self.fetched: ir.Value | None = None
        self.entries = self.table("tiles", [word for kind in self.kinds for word in self.entries_of(kind)])
        counts = tiling.counts()
        self.counts = self.table("counts", [*chain(*counts)])
        self.widths = self.table("widths", [self.width_of(line) for line in counts])
        with self.code.goto_entry_block():
            self.next_row = self.code.alloca(I64)
        if tiling.keeps_sums:
            cells = max(kind.rows * kind.units for kind in self.kinds)
            tiles = ABREAST_TILES if self.has_sections else 1
            self.sums = TileSums.of(self.code, ports, vector_bytes, cells, tiles)
            if tiling.is_large:
                self.listed_bytes = 8 * cells * len(unit.fetched)
                self.fetched = self.code.stack_memory(tiles * self.listed_bytes, 8)

    def table(self, name: str, numbers: list[int]) -> ir.Value:
        """Adds a constant table of integers to the module; returns the pointer to it."""
        module, type_ = self.code.module, ir.ArrayType(I64, len(numbers))
        table = ir.GlobalVariable(module, type_, module.get_unique_name(name))
        table.linkage, table.global_constant = "internal", True
        table.initializer = ir.Constant(type_, numbers)
        return self.code.inttoptr(self.code.ptrtoint(table, I64), POINTER)

    def width_of(self, counts: Sequence[int]) -> int:
        """Returns the fewest unit blocks (vectors of features) that fill tiles of all shapes that are used.
        counts: the number of tiles of each, a line of `Tiling.counts`; the largest shape may have more.
        """
        used = (shape for shape, count in zip(self.shapes[1:], counts[1:], strict=True) if count)
        return lcm(self.shapes[0].units, *(shape.units for shape in used))

    def row_counts(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Computes the number of tiles of each shape (rows x unit blocks, which are vectors of features) that
        cover the rows that the loop runs over, from a table by their number.

        Returns the pointer to the counts by shape; a number to add to that of the first, largest shape: how
        many whole tiles of it fit in the rows; and the fewest unit blocks that fill tiles of all of them.
        """
        code, rows, large = self.code, self.unit.stage.rows.count, self.code.number(self.shapes[0].rows)
        full_tiles = code.sdiv(rows, large)
        left = code.sub(rows, code.mul(full_tiles, large))
        line = code.select(code.icmp_signed(">", full_tiles, code.number(0)), code.add(large, left), left)
        counts = code.at(self.counts, code.mul(line, code.number(8 * len(self.shapes))))
        return counts, full_tiles, code.read_number(self.widths, line)

    def emit(self, counts: ir.Value, full_tiles: ir.Value, group: UnitGroup) -> None:
        """Writes code that computes all rows of a group of unit blocks (vectors of features), in tiles of
        rows x unit blocks: as many tiles of each shape as the table says.

        counts: the pointer to the table with the number of tiles of each shape.
        full_tiles: a number to add to that of the first, largest shape.
        """
        code = self.code
        code.store(code.number(0), self.next_row)
        with code.loop(code.number(0), code.number(len(self.shapes))) as index:
            count = code.read_number(counts, index)
            first = code.icmp_signed("==", index, code.number(0))
            count = code.add(count, code.select(first, full_tiles, code.number(0)))
            with code.when(code.icmp_signed(">", count, code.number(0))):
                self.shape(index, count, group)

    def shape(self, index: ir.Value, count: ir.Value, group: UnitGroup) -> None:
        """Writes `count` tiles of one shape (rows x unit blocks, which are vectors of features), one after
        the other along the rows, from the row in `next_row` on, which is advanced. Unit blocks that do not
        fill a tile are computed by its narrow kind, of as many rows and one block. index: the number of the
        shape.
        """
        code, begin, end = self.code, group.begin, group.end
        entries = self.entries_at(index)
        start = code.load(self.next_row)
        stop = code.add(start, code.mul(count, entries["rows"]))
        code.store(stop, self.next_row)
        if not self.has_narrow:
            self.tiles(index, group, start, stop)
            return
        full_tiles = code.add(
            begin, code.mul(code.sdiv(code.sub(end, begin), entries["units"]), entries["units"])
        )
        with code.loop(code.number(0), code.number(2)) as half:
            wide = code.icmp_signed("==", half, code.number(0))
            first, last = code.select(wide, begin, full_tiles), code.select(wide, full_tiles, end)
            own = UnitGroup(first, last, group.following)
            self.tiles(code.select(wide, index, entries["narrow"]), own, start, stop)

    def tiles(self, kind: ir.Value, group: UnitGroup, start: ir.Value, stop: ir.Value) -> None:
        """Writes all tiles of one kind (rows x unit blocks, which are vectors of features), over the unit
        blocks of a group and rows `start` to `stop`. kind: its number, known only at run time: the code tests
        it against each kind.
        """
        code = self.code
        entries = self.entries_at(kind)
        with code.loop(group.begin, group.end, entries["units"]) as block:
            if self.has_sections:
                self.by_sections(kind, block, group, start, stop)
                return
            with code.loop(start, stop, entries["rows"]) as row:
                following = self.following(row, block, group, start, stop, entries) if self.ahead else None
                place = TilePlace(row, block, following=following, fetched=self.fetched)
                if self.fetched is not None:
                    self.list_addresses(self.fetched, row, block, entries)
                if self.sums is None:
                    self.products(kind, place, None)
                else:
                    self.products(kind, place, self.sums.pointer)
                    self.epilogues(row, block, entries, self.sums, self.sums.pointer)

    def by_sections(
        self, kind: ir.Value, block: ir.Value, group: UnitGroup, start: ir.Value, stop: ir.Value
    ) -> None:
        """Writes the tiles of one kind (rows x unit blocks, which are vectors of features) at a unit block,
        in sections of k: some tiles along the rows compute a section, then these the next one. The other
        arguments are those of `tiles`.
        """
        code, entries, sums, fetched = self.code, self.entries_at(kind), self.sums, self.fetched
        assert sums is not None and fetched is not None  # noqa: PT018
        abreast = code.mul(entries["rows"], code.number(ABREAST_TILES))
        with code.loop(start, stop, abreast) as begin:
            end = code.smaller(stop, code.add(begin, abreast))
            with (
                code.loop(code.number(0), entries["sections"]) as section,
                code.loop(begin, end, entries["rows"]) as row,
            ):
                number = code.sdiv(code.sub(row, begin), entries["rows"])
                own, listed = sums.tile(number), code.mul(number, code.number(self.listed_bytes))
                behind = code.add(section, code.number(1))
                is_last = code.icmp_signed("==", behind, entries["sections"])
                following = self.following(row, block, group, begin, end, entries)
                again = code.or_(code.not_(is_last), code.icmp_signed("<", end, stop))
                following = replace(
                    following,
                    block=code.select(again, block, following.block),
                    section=code.select(is_last, code.number(0), behind),
                )
                place = TilePlace(
                    row, block, following=following, fetched=code.at(fetched, listed), section=section
                )
                with code.when(code.icmp_signed("==", section, code.number(0))):
                    self.list_addresses(code.at(fetched, listed), row, block, entries)
                    sums.clear(own)
                self.products(kind, place, own)
                with code.when(is_last):
                    self.epilogues(row, block, entries, sums, own)

    def products(self, kind: ir.Value, place: TilePlace, memory: ir.Value | None) -> None:
        """Writes the products of a tile of rows x unit blocks (vectors of features), of each kind that it may
        be. kind: the number of its kind. memory: the pointer to the memory of its sums; None if their
        elementwise work is written here.
        """
        for number, tile in enumerate(self.kinds):
            with self.code.when(self.code.icmp_signed("==", kind, self.code.number(number))):
                if self.sums is None or memory is None:
                    self.unit.epilogues(self.unit.tile(tile, place))
                else:
                    self.store_sums(tile, place, self.sums, memory)

    def list_addresses(self, target: ir.Value, row: ir.Value, block: ir.Value, entries: Entries) -> None:
        """Writes the addresses that the elementwise work on a tile reads and writes to memory, cell by cell
        (a row and a vector of features).

        target: the pointer to this memory. row, block, entries: the tile's first row and unit block, and the
            sizes of its kind.
        """
        code, size = self.code, 8 * len(self.unit.fetched)
        with code.loop(code.number(0), code.mul(entries["rows"], entries["units"])) as number:
            place = code.at(target, code.mul(number, code.number(size)))
            addresses = self.unit.addresses(*self.row_and_block(number, row, block, entries))
            for index, address in enumerate(addresses):
                code.write(address, code.at(place, 8 * index), 8)

    def following(
        self,
        row: ir.Value,
        block: ir.Value,
        group: UnitGroup,
        start: ir.Value,
        stop: ir.Value,
        entries: Entries,
    ) -> Following:
        """Computes the parameters that the tile at a row and a unit block (a vector of features) fetches: its
        part of those of the next tile's unit blocks.

        start, stop: the rows over which tiles of this kind run. entries: the sizes of the kind.
        """
        code, rows = self.code, entries["rows"]
        behind = code.add(block, entries["units"])
        behind = code.select(code.icmp_signed("<", behind, group.end), behind, group.following)
        part, parts = (code.sdiv(code.sub(end, start), rows) for end in (row, stop))
        return Following(behind, part, parts)

    def entries_of(self, kind: Tile) -> list[int]:
        """Lists the entries of a kind of tile in the run-time table: its rows; its unit blocks (vectors of
        features); the mask and the shift that split the number of a cell; and the index of the kind with as
        many rows and a single unit block, or 0 if there is none.

        Cell c is row c & mask of unit block c >> shift; -1 and 63 make c the row of a single unit block.
        """
        assert kind.units == 1 or power_of_two(kind.rows) == kind.rows
        mask, shift = (-1, 63) if kind.units == 1 else (kind.rows - 1, kind.rows.bit_length() - 1)
        narrowed = narrow(kind)
        return [
            kind.rows,
            kind.units,
            mask,
            shift,
            self.kinds.index(narrowed) if narrowed in self.kinds else 0,
            kind.sections,
        ]

    def entries_at(self, kind: ir.Value) -> Entries:
        """Loads the entries of a kind of register tile (rows x unit blocks, which are vectors of features)
        from a table; returns them by name: its sizes and index masks.
        """
        code = self.code
        line = code.at(self.entries, code.mul(kind, code.number(8 * len(ENTRIES))))
        return {name: code.read_number(line, code.number(index)) for index, name in enumerate(ENTRIES)}

    def store_sums(self, tile: Tile, place: TilePlace, sums: TileSums, memory: ir.Value) -> None:
        """Writes the products of a tile, and stores of their sums to stack memory, where the epilogue (the
        elementwise work on the sums) of all kinds of tiles reads them. A tile with several groups of gates
        (products per unit) computes one group after the other. memory: the pointer to the tile's sums.
        """
        code, ports = self.code, [*sums.ports]
        if tile.gate_groups == 1:
            sums.store(self.unit.tile(tile, place, sums.initial(tile, ports, memory)), ports, memory)
            return
        firsts = [
            product.ports[: len(product.ports) // tile.gate_groups] for product in self.unit.loop.products
        ]
        with code.loop(code.number(0), code.number(tile.gate_groups)) as gate_group:
            initial = sums.initial(tile, firsts[0], sums.turn(memory, firsts[0], gate_group))
            cells = self.unit.tile(tile, replace(place, gate_group=gate_group), initial)
            for ports in firsts:
                sums.store(cells, ports, sums.turn(memory, ports, gate_group))

    def epilogues(
        self, row: ir.Value, block: ir.Value, entries: Entries, sums: TileSums, memory: ir.Value
    ) -> None:
        """Writes the elementwise work on a tile's sums of products, which are in stack memory, for `ABREAST`
        (4) cells (row, unit block) at a time, then for 2 and for 1 that are left.

        row, block: the tile's first row and unit block. entries: the sizes of its shape: its numbers of rows
            and of unit blocks (vectors of features). memory: the pointer to its sums.
        """
        code = self.code
        count = code.mul(entries["rows"], entries["units"])
        sizes = [kind.rows * kind.units for kind in self.kinds]
        begin: ir.Value = code.number(0)
        for abreast in (ABREAST, 2, 1):
            if not any(
                size % (2 * abreast) >= abreast if abreast < ABREAST else size >= abreast for size in sizes
            ):
                continue
            end = code.and_(count, code.number(-abreast))
            with code.loop(begin, end, abreast) as first:
                numbers = [code.add(first, code.number(index)) for index in range(abreast)]
                self.unit.epilogue(
                    [
                        TileCell(*self.row_and_block(each, row, block, entries), sums.cell(each, memory))
                        for each in numbers
                    ]
                )
            begin = end

    def row_and_block(
        self, number: ir.Value, row: ir.Value, block: ir.Value, entries: Entries
    ) -> tuple[ir.Value, ir.Value]:
        """Computes the row and the unit block (a vector of features) of cell `number` of the tile that begins
        at `row` and `block`.

        entries: the table entries of the tile's kind, by name; `mask` and `shift` split `number` into the row
            and the unit block within the tile.
        """
        code = self.code
        offsets = code.and_(number, entries["mask"]), code.ashr(number, entries["shift"])
        return code.add(row, offsets[0]), code.add(block, offsets[1])
