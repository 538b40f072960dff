"""Writes products of matrices in shared memory on tensor cores, whose tiles the warps of a block share."""

from collections.abc import Callable, Sequence
from functools import reduce

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I64, integer
from stepnet.compiler.targets.cuda.arrays.numbers_code import KernelNumbers
from stepnet.compiler.targets.cuda.arrays.product_shares import DEPTH, Operand, ProductTile, TensorShare
from stepnet.compiler.targets.cuda.chunked.form import MOST_TILES, TILE_COLUMNS, WARPS, tiles_together
from stepnet.compiler.targets.cuda.chunked.sizes import TILE_ROWS
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.functions import F32
from stepnet.compiler.values.records import dataclass

Value = ir.Value
DTYPE = "float32"
TWO = ir.VectorType(F32, 2)
ONE, ZERO = ir.Constant(F32, 1.0), ir.Constant(F32, 0.0)
Scale = Callable[[Value, Value], Value]
Store = Callable[[Value, Value, Value], Value | None]
MOST_WRITTEN = 2.0**127
"""The largest number that 0 times it is 0 on tensor cores, which round it."""


@dataclass(frozen=True)
class ChunkSide:
    """A side of a product in shared memory. row: the bytes between its rows (columns, of a right side); k:
    those between its k. scale: writes a factor for a row of the side and a k; None for 1.
    """

    first: Value
    row: int
    k: int
    scale: Scale | None = None


@dataclass(frozen=True)
class TileTerm:
    """A product that is a term of the results of tiles. depth: the number of terms of its sums.

    sides: takes the first row and column of a tile; writes where both sides begin there.
    store: takes the row, the column and a number of the sum of the terms so far; returns that with which the
        next term is added up, if there is one.
    pairs: whether a lane has k side by side, two of which are one load where they lie so; else every fourth.
    """

    depth: int | Value
    sides: Callable[[Value, Value], tuple[ChunkSide, ChunkSide]]
    store: Store
    pairs: bool = False


def are_within(code: PlaceWriter, numbers: Sequence[Value]) -> Value:
    """Writes whether 0 times each of some numbers is 0 on tensor cores: none is NaN or close to infinity."""
    most = ir.Constant(F32, MOST_WRITTEN)
    sizes = (code.intrinsic("fabs", F32, [number]) for number in numbers)
    return reduce(code.and_, (code.fcmp_ordered("<=", size, most) for size in sizes))


class TileWriter:
    """Writer of products of matrices in shared memory.

    code: of the kernel. way: how float32 is multiplied, a key of `TENSOR_WAYS`. warps: the number of warps of
    a block.
    is_anew: whether places are computed for each product, so that none is kept in a register between them.
    busy: how many tiles the products have that run beside each other.
    """

    def __init__(self, code: PlaceWriter, way: str, warps: int = WARPS, is_anew: bool = False) -> None:
        """Begins with the instructions of a way."""
        self.code, self.warps, self.is_anew, self.busy = code, warps, is_anew, 0
        tile = ProductTile(TILE_ROWS, TILE_COLUMNS, 1, 1)
        self.share = TensorShare(KernelNumbers(code, DTYPE), tile, way)

    def write(
        self,
        rows: int,
        columns: int,
        depth: int,
        sides: Callable[[Value, Value], tuple[ChunkSide, ChunkSide]],
        store: Callable[[Value, Value, Value], None],
        most: int = MOST_TILES,
        pairs: bool = False,
        follows: bool = False,
    ) -> None:
        """Writes products of [rows, depth] and [depth, columns], whose tiles the warps share.

        sides, store, pairs: of a term. most: tiles beside each other that have the same sides. follows:
            whether it begins with the warps behind those of the product before, beside which it runs.
        """
        self.write_terms(rows, columns, [TileTerm(depth, sides, store, pairs)], most, follows)

    def write_terms(
        self,
        rows: int,
        columns: int,
        terms: Sequence[TileTerm],
        most: int = MOST_TILES,
        follows: bool = False,
    ) -> None:
        """Writes results of [rows, columns] that are sums of products, one after another."""
        code = self.code
        below, beside = tiles_together(rows, columns, self.warps, most)
        across = columns // (TILE_COLUMNS * beside)
        thread = code.function_call("anew", I64, [code.thread]) if self.is_anew else code.thread
        warp, lane = code.divided(thread, LANES)
        tasks = rows // (TILE_ROWS * below) * across
        if follows:
            warp = code.and_(code.add(warp, integer(-self.busy % self.warps)), integer(self.warps - 1))
        self.busy = tasks + (self.busy if follows else 0)
        quad, place = code.divided(lane, 4)
        with code.loop(warp, integer(tasks), self.warps) as task:
            down, right_of = code.divided(task, across)
            row = code.multiplied(down, TILE_ROWS * below)
            column = code.multiplied(right_of, TILE_COLUMNS * beside)
            tiles = [code.add(row, integer(TILE_ROWS * n)) for n in range(below)]
            found: list[Value] = [ZERO] * (4 * below * beside)
            for term in terms:
                lefts = [term.sides(each, column)[0] for each in tiles]
                right = term.sides(row, column)[1]

                def turn(
                    k: Value,
                    totals: list[Value],
                    lefts: list[ChunkSide] = lefts,
                    right: ChunkSide = right,
                    pairs: bool = term.pairs,
                ) -> list[Value]:
                    """Writes the products of `DEPTH` k."""
                    steps = range(0, DEPTH, self.share.way.depth)
                    b = [
                        [self.operand(right, k, n, TILE_COLUMNS * tile, 1, quad, place, pairs) for n in steps]
                        for tile in range(beside)
                    ]
                    made = list[Value]()
                    for left in lefts:
                        a = [self.operand(left, k, n, 0, 2, quad, place, pairs) for n in steps]
                        made += self.share.products(a, b)
                    return [code.fadd(x, y) for x, y in zip(totals, made, strict=True)]

                found = code.carry(0, term.depth, found, turn, step=DEPTH)
                for index, value in enumerate(found):
                    tile, quarter = divmod(index, 4)
                    down_by, right_by = divmod(tile, beside)
                    lower, further = divmod(quarter, 2)
                    at = code.add(code.add(tiles[down_by], quad), integer(8 * lower))
                    beyond = code.add(code.multiplied(place, 2), integer(TILE_COLUMNS * right_by + further))
                    kept = term.store(at, code.add(column, beyond), value)
                    found[index] = value if kept is None else kept

    def operand(
        self,
        side: ChunkSide,
        k: Value,
        further: int,
        row: int,
        count: int,
        quad: Value,
        place: Value,
        pairs: bool,
    ) -> Operand:
        """Writes loads of a lane's registers of an operand. A product is a sum over its k in any order, which
        is the same on both sides: each register has one of them, or two of bfloat16.

        k, further: the first k of the product, which is the sum. row: the first row of the side, or column.
        count: 2 for the left side, of 16 rows; 1 for the right one. pairs: as in `TileTerm`.
        """
        code, packed = self.code, self.share.way.depth // 8
        first_k = code.add(k, integer(further))
        first_k = code.add(first_k, code.multiplied(place, 2) if pairs else place)

        def at(n: int, more: int) -> tuple[Value, Value, Value]:
            """Writes the row, the k and the address of the lane's number n of a row, `more` rows on."""
            own_k = code.add(first_k, integer(8 * (n // 2) + n % 2 if pairs else 4 * n))
            own = code.add(quad, integer(row + more))
            offset = code.add(code.multiplied(own, side.row), code.multiplied(own_k, side.k))
            return own, own_k, code.at(side.first, offset)

        def numbers(more: int) -> list[Value]:
            """Writes loads of all numbers of a row."""
            places = [at(n, more) for n in range(2 * packed)]
            if pairs and side.k == 4:
                twos = [code.read(TWO, address, 8) for _, _, address in places[::2]]
                loaded: list[Value] = [code.extract_element(x, integer(n)) for x in twos for n in range(2)]
            else:
                loaded = [code.read(F32, address, 4) for _, _, address in places]
            if side.scale is None:
                return loaded
            return [code.fmul(x, side.scale(*where[:2])) for x, where in zip(loaded, places, strict=True)]

        rows = [numbers(8 * n) for n in range(count)]
        groups = [each[packed * half : packed * half + packed] for half in range(2) for each in rows]
        terms = self.share.way.left if count == 2 else self.share.way.right
        if packed == 2:
            return self.share.in_bfloat16(groups, terms)
        flat = [value for (value,) in groups]
        if terms == 2:  # what tf32 leaves is cut off by the tensor cores themselves
            near = [code.function_call("tf32", F32, [x]) for x in flat]
            return [near, [code.fsub(x, y) for x, y in zip(flat, near, strict=True)]]
        return self.share.in_tf32(flat, terms)
