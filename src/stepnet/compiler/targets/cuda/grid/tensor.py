"""Products of a block of a group on tensor cores: the columns of its units, for all rows.

    left side      main memory -> shared memory [vectors][k, apart], at each step, 16 bytes at a time
    weights        main memory -> shared memory [tile][operand][lane][4], once; or -> registers, at each step
    sums           registers -> shared memory [part][vector][columns], added up there by the threads

Sizes are those of `grid/tiles.py`, operands those of loops on tensor cores (`tensor/operands.py`).
Each term of a product of float32 (`NumbersFacts.terms`) has a sum of its own in each part.
"""

from collections.abc import Mapping

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I32, integer
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.elements import RowOfThread, RowShare, zero
from stepnet.compiler.targets.cuda.entries.entry import EntryWriter
from stepnet.compiler.targets.cuda.entries.statements import Statement
from stepnet.compiler.targets.cuda.functions import F32, FOUR, QUAD
from stepnet.compiler.targets.cuda.grid.products import Areas, GridColumnWriter
from stepnet.compiler.targets.cuda.grid.share import GridShare
from stepnet.compiler.targets.cuda.grid.tiles import (
    COLUMNS,
    UNROLLED,
    VECTORS,
    GridProduct,
    GridTiles,
    grid_products,
    left_stride,
    product_of,
)
from stepnet.compiler.targets.cuda.tensor.operands import packed, values_of, weights_of
from stepnet.compiler.values.records import dataclass

Value = ir.Value


@dataclass(frozen=True)
class TileAreas:
    """The places in shared memory of the operands of products on tensor cores.

    lefts: of left sides, by node. sums: of the sums of parts. weights: of the weights of products that stay
    there, by the product's key and the place of the left side. tiles: the tiles of all products, by key.
    """

    lefts: Mapping[int, int]
    sums: int
    weights: Mapping[tuple[int, int], int]
    tiles: Mapping[int, GridTiles]


@dataclass(frozen=True)
class Item:
    """The work of a warp: its part of the sums, tile of columns, first tile of vectors, and the place of the
    tile among those whose sums lie in shared memory.
    """

    part: Value
    tile: Value
    vectors: Value
    place: Value


class GridTileWriter(GridColumnWriter):
    """Writer of the products of the columns of a block on tensor cores. tile_areas: in shared memory."""

    def __init__(
        self,
        writer: EntryWriter,
        share: RowShare,
        row: RowOfThread,
        grid: GridShare,
        areas: TileAreas,
        first: Value,
    ) -> None:
        """Takes the writer of the entry, and the share of the block; finds the lane of the thread."""
        super().__init__(writer, share, row, grid, Areas(areas.lefts, {}), first)
        code, self.tile_areas = self.code, areas
        self.warp, self.lane = code.divided(code.thread, LANES)
        self.quad, self.in_quad = code.divided(self.lane, 4)

    def stride(self, length: int) -> int:
        """Returns the numbers from a vector of a left side to the next one, in shared memory."""
        return left_stride(length)

    # ---- operands

    def keep_weights(self) -> None:
        """Writes the copies of the block's columns of matrices to shared memory, as far as there is room."""
        for product in grid_products(self.grid.owners.statements):
            if self.tile_areas.tiles[product.key].is_kept:
                self.keep_product(product)

    def ks(self, operand: Value, half: int, depth: int) -> list[Value]:
        """Writes the numbers k of a thread's register in an operand: one, or two of 16 bits."""
        code = self.code
        first = code.summed(code.multiplied(operand, depth), integer(depth // 2 * half))
        if depth == 8:
            return [code.summed(first, self.in_quad)]
        pair = code.summed(first, code.multiplied(self.in_quad, 2))
        return [pair, code.summed(pair, integer(1))]

    def weights(
        self, product: GridProduct, place: int, tile: Value, operand: Value, only: int | None
    ) -> list[Value]:
        """Writes the four registers of a thread of an operand of weights, as they are stored.

        only: the result that the tile belongs to; None if it may have columns of several.
        """
        code, tiles = self.code, self.tile_areas.tiles[product.key]
        length = self.net.type_of(product.lefts[place]).shape[-1]
        found = list[Value]()
        for register in range(4):
            at = code.summed(code.multiplied(tile, COLUMNS), integer(8 * (register & 1)))
            result, mine = code.divided(code.summed(at, self.quad), tiles.pitch)
            column, is_there = self.column_of(mine, product.columns)
            is_there = code.and_(is_there, code.icmp_signed("<", mine, integer(tiles.own)))
            column = code.select(is_there, column, integer(0))
            numbers = list[Value]()
            for k in self.ks(operand, register >> 1, tiles.facts.depth):
                is_inside = is_there
                if not tiles.is_whole(length):
                    is_inside = code.and_(is_there, code.icmp_signed("<", k, integer(length)))
                    k = code.smaller(k, integer(length - 1))
                value: Value = zero("float32")
                for number, rights in enumerate(product.rights):
                    if only in (None, number):
                        is_its = code.icmp_signed("==", result, integer(number))
                        self.writer.begin()
                        read = self.of_matrix(rights[place], k, column, "float32")
                        value = code.select(code.and_(is_inside, is_its), read, value)
                numbers.append(value)
            found.append(packed(code, numbers, tiles.numbers))
        self.writer.begin()
        return found

    def keep_product(self, product: GridProduct) -> None:
        """Writes the copies of a product's weights to shared memory."""
        code, tiles = self.code, self.tile_areas.tiles[product.key]
        for place, left in enumerate(product.lefts):
            area = self.tile_areas.weights[product.key, place]
            operands = tiles.parts * tiles.share(self.net.type_of(left).shape[-1])
            with code.loop(self.warp, integer(tiles.tiles * operands), self.share.threads // LANES) as index:
                tile, operand = code.divided(index, operands)
                four: Value = ir.Constant(FOUR, ir.Undefined)
                for register, weight in enumerate(self.weights(product, place, tile, operand, None)):
                    four = code.insert_element(four, weight, ir.Constant(I32, register))
                code.write(four, code.at(code.shared(area), self.place_of(index)), 16)

    def place_of(self, operand: Value) -> Value:
        """Writes the offset of the thread's 16 bytes of an operand."""
        code = self.code
        return code.multiplied(code.summed(code.multiplied(operand, LANES), self.lane), 16)

    # ---- sums

    def write(self, together: list[Statement]) -> None:
        """Writes the sums of products of some results of a node, which have one size."""
        code, product = self.code, product_of(self.net, together)
        tiles = self.tile_areas.tiles[product.key]
        if tiles.is_kept:
            self.write_items(product, None, integer(0), integer(tiles.tiles))
            code.barrier()
            for number, statement in enumerate(together):
                self.add_parts(product, statement, integer(0), tiles.own, number * tiles.pitch)
            code.barrier()
            return
        count, columns = tiles.tiles // tiles.results, COLUMNS * tiles.at_once
        for only, statement in enumerate(together):
            with code.loop(integer(0), integer(count), tiles.at_once) as tile:
                until = code.smaller(code.add(tile, integer(tiles.at_once)), integer(count))
                self.write_items(
                    product, only, code.summed(tile, integer(count * only)), code.sub(until, tile)
                )
                code.barrier()
                self.add_parts(product, statement, code.multiplied(tile, COLUMNS), columns, 0)
                code.barrier()

    def write_items(self, product: GridProduct, only: int | None, first: Value, count: Value) -> None:
        """Writes the work of all warps at some tiles, which the sums in shared memory are of."""
        code, tiles = self.code, self.tile_areas.tiles[product.key]
        items = code.multiplied(count, tiles.chunks * tiles.parts)
        with code.loop(self.warp, items, self.share.threads // LANES) as index:
            rest, part = code.divided(index, tiles.parts)
            place, chunk = code.divided(rest, tiles.chunks)
            vectors, tile = code.multiplied(chunk, tiles.abreast), code.summed(place, first)
            self.write_item(product, Item(part, tile, vectors, place), only)

    def write_item(self, product: GridProduct, item: Item, only: int | None) -> None:
        """Writes the work of a warp."""
        code, tiles = self.code, self.tile_areas.tiles[product.key]
        terms = len(tiles.facts.terms)
        sums: list[Value] = [zero("float32")] * (4 * terms * tiles.abreast)
        for place, left in enumerate(product.lefts):
            share = tiles.share(self.net.type_of(left).shape[-1])
            first = code.multiplied(item.part, share)
            vectors = [self.vector_of(item, number, left, tiles) for number in range(tiles.abreast)]
            unrolled = next(count for count in UNROLLED if share % count == 0)

            def turn(
                step: Value,
                carried: list[Value],
                place: int = place,
                first: Value = first,
                vectors: list[Value] = vectors,
                unrolled: int = unrolled,
            ) -> list[Value]:
                """Writes the products of some operands, all of whose weights are read first."""
                operands = [
                    code.summed(code.summed(first, step), integer(number)) for number in range(unrolled)
                ]
                weights = [self.operand(product, place, item.tile, each, only) for each in operands]
                for operand, a in zip(operands, weights, strict=True):
                    carried = self.multiplied(product, place, operand, a, vectors, carried)
                return carried

            sums = code.carry(0, share, sums, turn, step=unrolled)
        for number in range(tiles.abreast):
            own = sums[4 * terms * number : 4 * terms * (number + 1)]
            for element in range(4):
                total = own[element]
                for term in range(1, terms):
                    total = code.fadd(total, own[4 * term + element])
                code.write(total, self.sum_at(tiles, item, number, element), 4)

    def vector_of(self, item: Item, number: int, left: int, tiles: GridTiles) -> Value:
        """Writes the address of the thread's vector of a left side in a tile of vectors."""
        code, length = self.code, self.net.type_of(left).shape[-1]
        at = code.multiplied(code.summed(item.vectors, integer(number)), VECTORS)
        vector = code.summed(at, self.quad)
        if tiles.vectors % VECTORS:
            vector = code.smaller(vector, integer(tiles.vectors - 1))
        offset = code.multiplied(vector, 4 * left_stride(length))
        return code.at(code.shared(self.tile_areas.lefts[left]), offset)

    def operand(
        self, product: GridProduct, place: int, tile: Value, operand: Value, only: int | None
    ) -> list[Value]:
        """Writes the read of the four registers of an operand of weights, as they are stored."""
        code, tiles = self.code, self.tile_areas.tiles[product.key]
        if not tiles.is_kept:
            return self.weights(product, place, tile, operand, only)
        operands = tiles.parts * tiles.share(self.net.type_of(product.lefts[place]).shape[-1])
        number = code.summed(code.multiplied(tile, operands), operand)
        there = code.at(code.shared(self.tile_areas.weights[product.key, place]), self.place_of(number))
        four = code.read(FOUR, there, 16)
        return [code.extract_element(four, ir.Constant(I32, register)) for register in range(4)]

    def multiplied(
        self,
        product: GridProduct,
        place: int,
        operand: Value,
        weights: list[Value],
        vectors: list[Value],
        sums: list[Value],
    ) -> list[Value]:
        """Writes the products of an operand of weights with the vectors, added to the sums."""
        code, tiles = self.code, self.tile_areas.tiles[product.key]
        facts, length = tiles.facts, self.net.type_of(product.lefts[place]).shape[-1]
        a, made = [weights_of(code, weight, tiles.numbers) for weight in weights], list[Value]()
        halves = [self.ks(operand, half, facts.depth) for half in (0, 1)]
        if not tiles.is_whole(length):
            halves = [[code.smaller(k, integer(length - 1)) for k in ks] for ks in halves]
        for number, vector in enumerate(vectors):
            b = [
                values_of(code, [code.read_element("float32", vector, k) for k in ks], tiles.numbers, False)
                for ks in halves
            ]
            for term, (i, j) in enumerate(facts.terms):
                at = 4 * (len(facts.terms) * number + term)
                operands = [*(v[i] for v in a), *(v[j] for v in b), *sums[at : at + 4]]
                quad = code.function_call(f"mma{facts.instruction}", QUAD, operands)
                made += [code.extract_value(quad, element) for element in range(4)]
        return made

    def sum_at(self, tiles: GridTiles, item: Item, number: int, element: int) -> Value:
        """Writes the address of an element of a thread's sum of a part."""
        code = self.code
        vector = code.multiplied(code.summed(item.vectors, integer(number)), VECTORS)
        beside = code.summed(code.multiplied(self.in_quad, 2), integer(element & 1))
        column = code.summed(code.multiplied(item.place, COLUMNS), integer(8 * (element >> 1)))
        return self.sum_of(tiles, item.part, code.summed(vector, beside), code.summed(column, self.quad))

    def sum_of(self, tiles: GridTiles, part: Value, vector: Value, column: Value) -> Value:
        """Writes the address of a sum of a part."""
        code, vectors = self.code, tiles.chunks * tiles.abreast * VECTORS
        row = code.summed(code.multiplied(part, vectors), vector)
        at = code.summed(code.multiplied(row, tiles.sums_stride), column)
        return code.at(code.shared(self.tile_areas.sums), code.multiplied(at, 4))

    def add_parts(
        self, product: GridProduct, statement: Statement, first: Value, columns: int, offset: int
    ) -> None:
        """Writes the sums of all parts, in order, to the places of a result.

        first: the first column of the result, of those of the block. columns: how many there may be.
        offset: the column of the sums at which they begin.
        """
        code, tiles = self.code, self.tile_areas.tiles[product.key]
        slot = self.writer.slots[statement.number]
        with code.loop(code.thread, integer(tiles.vectors * columns), self.share.threads) as index:
            vector, place = code.divided(index, columns)
            mine = code.summed(place, first)
            column, is_there = self.column_of(mine, product.columns)
            is_there = code.and_(is_there, code.icmp_signed("<", mine, integer(tiles.own)))
            there = code.summed(place, integer(offset))
            parts = [
                code.read(F32, self.sum_of(tiles, integer(part), vector, there), 4)
                for part in range(tiles.parts)
            ]
            total = parts[0]
            for part in parts[1:]:
                total = code.fadd(total, part)
            with code.when(is_there):
                row, beam = code.divided(vector, product.lead)
                flat = code.summed(code.multiplied(beam, product.columns), column)
                self.writer.write_slot(total, slot, row, flat)
