"""Writes the products of matrices of a chunk of steps on tensor cores (`chunked/loop.py`)."""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.arrays.numbers_code import KernelNumbers
from stepnet.compiler.targets.cuda.arrays.product_shares import DEPTH, Operand, ProductTile, TensorShare
from stepnet.compiler.targets.cuda.chunked.form import (
    TILE_COLUMNS,
    TILE_ROWS,
    WARPS,
    ChunkForm,
    tiles_together,
)
from stepnet.compiler.targets.cuda.chunked.load import DTYPE, ZERO, ChunkLoadWriter
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.functions import F32
from stepnet.compiler.values.records import dataclass

Value = ir.Value


@dataclass(frozen=True)
class ChunkSide:
    """A side of a product in shared memory. row: the bytes between its rows (columns, of a right side); k:
    those between its k. scale: writes a factor for a k; None for 1.
    """

    first: Value
    row: int
    k: int
    scale: Callable[[Value], Value] | None = None


class ChunkProductWriter(ChunkLoadWriter):
    """Writer of the products of a chunk."""

    def __init__(self, plan: Plan, form: ChunkForm) -> None:
        """Begins the kernel."""
        super().__init__(plan, form)
        tile = ProductTile(TILE_ROWS, TILE_COLUMNS, 1, 1)
        self.share = TensorShare(KernelNumbers(self.code, DTYPE), tile, form.way)

    def tile_products(
        self,
        rows: int,
        columns: int,
        depth: int,
        sides: Callable[[Value, Value], tuple[ChunkSide, ChunkSide]],
        store: Callable[[Value, Value, Value], None],
    ) -> None:
        """Writes products of [rows, depth] and [depth, columns], whose tiles the warps share.

        sides: takes the first row and column of a tile; writes where both sides begin there.
        store: takes the row, the column and the number of each result of the lane.
        """
        code = self.code
        below, beside = tiles_together(rows, columns)
        across = columns // (TILE_COLUMNS * beside)
        warp, lane = code.divided(code.thread, LANES)
        quad, place = code.divided(lane, 4)
        with code.loop(warp, integer(rows // (TILE_ROWS * below) * across), WARPS) as task:
            down, right_of = code.divided(task, across)
            row = code.multiplied(down, TILE_ROWS * below)
            column = code.multiplied(right_of, TILE_COLUMNS * beside)
            tiles = [code.add(row, integer(TILE_ROWS * n)) for n in range(below)]
            lefts = [sides(each, column)[0] for each in tiles]
            right = sides(row, column)[1]

            def turn(k: Value, totals: list[Value]) -> list[Value]:
                """Writes the products of `DEPTH` k."""
                steps = range(0, DEPTH, self.share.way.depth)
                b = [
                    [self.operand(right, k, n, TILE_COLUMNS * tile, 1, quad, place) for n in steps]
                    for tile in range(beside)
                ]
                made = list[Value]()
                for left in lefts:
                    a = [self.operand(left, k, n, 0, 2, quad, place) for n in steps]
                    made += self.share.products(a, b)
                return [code.fadd(x, y) for x, y in zip(totals, made, strict=True)]

            found = code.carry(0, depth, [ZERO] * (4 * below * beside), turn, step=DEPTH)
            for index, value in enumerate(found):
                tile, quarter = divmod(index, 4)
                down_by, right_by = divmod(tile, beside)
                lower, further = divmod(quarter, 2)
                at = code.add(code.add(tiles[down_by], quad), integer(8 * lower))
                beyond = code.add(code.multiplied(place, 2), integer(TILE_COLUMNS * right_by + further))
                store(at, code.add(column, beyond), value)

    def operand(
        self, side: ChunkSide, k: Value, further: int, row: int, count: int, quad: Value, place: Value
    ) -> Operand:
        """Writes loads of a lane's registers of an operand, as `TensorShare.operand` has them.

        k, further: the first k of the product, which is the sum. row: the first row of the side, or column.
        count: 2 for the left side, of 16 rows; 1 for the right one.
        """
        code, packed = self.code, self.share.way.depth // 8
        first_k = code.add(k, code.add(code.multiplied(place, packed), integer(further)))

        def number(k_there: int, more: int) -> Value:
            """Writes a load of a number, `more` rows on."""
            at = code.add(first_k, integer(k_there))
            offset = code.add(code.multiplied(code.add(quad, integer(row + more)), side.row),
                              code.multiplied(at, side.k))  # fmt: skip
            value = code.read(F32, code.at(side.first, offset), 4)
            return value if side.scale is None else code.fmul(value, side.scale(at))

        places = [(k_there, 8 * n) for k_there in (0, 4 * packed) for n in range(count)]
        terms = self.share.way.left if count == 2 else self.share.way.right
        if packed == 1 and terms == 2:
            # What tf32 leaves is cut off by the tensor cores themselves.
            numbers = [number(*each) for each in places]
            near = [code.function_call("tf32", F32, [x]) for x in numbers]
            return [near, [code.fsub(x, y) for x, y in zip(numbers, near, strict=True)]]
        if packed == 1:
            return self.share.in_tf32([number(*each) for each in places], terms)
        return self.share.in_bfloat16([[number(k, more), number(k + 1, more)] for k, more in places], terms)

    def multiply_vectors(self) -> None:
        """Writes what the steps read of the matrix before the chunk, and the products of their vectors."""
        code, form = self.code, self.chunk
        reads, writes, steps = len(form.reads), form.writes, form.steps
        vectors = (integer(form.first_write * steps), form.key_row)

        def left(row: Value) -> ChunkSide:
            """Writes the vectors of reads from a row on."""
            return ChunkSide(self.number_at("vectors", (row, form.key_row)), 4 * form.key_row, 4)

        def of_matrix(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the sides of a product with the matrix."""
            return left(row), ChunkSide(self.number_at("matrix", (column, 1)), 4, 4 * form.value_row)

        def of_vectors(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the sides of a product with the vectors of writes."""
            there = self.number_at("vectors", vectors, (column, form.key_row))
            return left(row), ChunkSide(there, 4 * form.key_row, 4)

        def read(row: Value, column: Value, value: Value) -> None:
            """Writes the store of what a step reads."""
            _, step = code.divided(row, steps)
            value = code.fmul(value, self.decay_between(integer(0), step))
            self.put(value, "read", (row, form.value_row), (column, 1))

        def inner(row: Value, column: Value, value: Value) -> None:
            """Writes the store of an inner product; of 0 for steps that are not earlier."""
            (place, step), (_, earlier) = code.divided(row, steps), code.divided(column, steps)
            value = code.fmul(value, self.decay_between(code.add(earlier, integer(1)), step))
            value = code.select(code.icmp_signed("<", earlier, step), value, ZERO)
            at = code.add(code.multiplied(place, writes * steps), column)
            self.put(value, "inner", (at, form.step_row), (step, 1))

        self.tile_products(reads * steps, form.columns, form.keys, of_matrix, read)
        self.tile_products(reads * steps, writes * steps, form.keys, of_vectors, inner)

    def add_later_reads(self) -> None:
        """Writes what the steps read of what earlier ones wrote, where that was not solved.

        Products of matrices take later steps times 0, so NaN would reach the steps before it: where one was
        written, each step adds up those before it.
        """
        code, form = self.code, self.chunk
        later, steps, depth = len(form.reads) - form.solved, form.steps, form.writes * form.steps

        def row_of(row: Value) -> Value:
            """Writes the row of a read that was not solved."""
            return code.add(row, integer(form.solved * steps))

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the inner products and what was written."""
            place, step = code.divided(row_of(row), steps)
            left = self.number_at("inner", (place, depth * form.step_row), (step, 1))
            right = self.number_at("written", (column, 1))
            return ChunkSide(left, 4, 4 * form.step_row), ChunkSide(right, 4, 4 * form.value_row)

        def store(row: Value, column: Value, value: Value) -> None:
            """Writes the addition to what is read."""
            at = (row_of(row), form.value_row), (column, 1)
            self.put(code.fadd(self.get("read", *at), value), "read", *at)

        def one_by_one(row: Value, column: Value) -> None:
            """Writes the addition of what the earlier steps wrote to one number that is read."""
            place, step = code.divided(row_of(row), steps)

            def add(earlier: Value, totals: list[Value]) -> list[Value]:
                """Writes the addition of what a step wrote."""
                (total,) = totals
                for write in range(form.writes):
                    number = self.row_of(write, earlier)
                    at = code.add(code.multiplied(place, depth), number)
                    factor = self.get("inner", (at, form.step_row), (step, 1))
                    written = self.get("written", (number, form.value_row), (column, 1))
                    total = code.fused(factor, written, total)
                return [total]

            (total,) = code.carry(0, step, [ZERO], add)
            store(row, column, total)

        if not later:
            return
        is_beyond = code.fcmp_unordered("!=", self.get("beyond"), ZERO)
        with code.when(is_beyond), code.over_threads(later * steps * form.columns) as index:
            one_by_one(*code.divided(index, form.columns))
        with code.when(code.not_(is_beyond)):
            self.tile_products(later * steps, form.columns, depth, sides, store)

    def change_matrix(self) -> None:
        """Writes the matrix after the chunk."""
        code, form = self.code, self.chunk
        steps, depth = form.steps, form.writes * form.steps
        first = integer(form.first_write * steps)

        def decay(k: Value) -> Value:
            """Writes the decay of what a step wrote, until the end of the chunk."""
            return self.decay_between(code.add(code.divided(k, steps)[1], integer(1)), integer(steps))

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the vectors and what was written."""
            left = self.number_at("vectors", (first, form.key_row), (row, 1))
            right = self.number_at("written", (column, 1))
            scale = decay if self.rule.decay else None
            return ChunkSide(left, 4, 4 * form.key_row, scale), ChunkSide(right, 4, 4 * form.value_row)

        def store(row: Value, column: Value, value: Value) -> None:
            """Writes an element of the matrix."""
            at = (row, form.value_row), (column, 1)
            before = code.fmul(self.get("matrix", *at), self.decay_between(integer(0), integer(steps)))
            self.put(code.fadd(before, value), "matrix", *at)

        self.tile_products(form.keys, form.columns, depth, sides, store)
