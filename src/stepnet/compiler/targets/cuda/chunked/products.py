"""Writes the products of matrices of a chunk of steps on tensor cores (`chunked/loop.py`)."""

from contextlib import nullcontext
from functools import partial

from llvmlite import ir

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.chunked.form import MOST_TILES, TILE_COLUMNS, ChunkForm
from stepnet.compiler.targets.cuda.chunked.key_decays import ChunkDecayWriter
from stepnet.compiler.targets.cuda.chunked.tiles import ZERO, ChunkSide, Scale, TileWriter
from stepnet.compiler.targets.cuda.device import LANES

Value = ir.Value


class ChunkProductWriter(ChunkDecayWriter):
    """Writer of the products of a chunk."""

    def __init__(self, plan: Plan, form: ChunkForm) -> None:
        """Begins the kernel."""
        super().__init__(plan, form)
        self.tiles = TileWriter(self.code, form.way, form.threads // LANES)

    def multiply_vectors(self) -> None:
        """Writes the reads that the steps make of the matrix before the chunk, and the products of their
        vectors.
        """
        code, form = self.code, self.chunk
        reads, writes, steps = len(form.reads), form.writes, form.steps
        count, first_write = form.later, integer(form.first_write * steps)
        most = form.span // TILE_COLUMNS if self.rule.by_key else MOST_TILES

        def row_of(row: Value) -> tuple[Value, Value]:
            """Writes the row of a read's vector, and its step."""
            place, step = code.divided(row, count)
            step = code.summed(step, integer(steps - count))
            return code.summed(code.multiplied(place, steps), step), step

        def column_of(column: Value) -> tuple[Value, Value]:
            """Writes the row of a write's vector, and the first span behind its step."""
            place, step = code.divided(column, count)
            return code.summed(code.multiplied(place, steps), step), self.span_behind(step)

        def left(row: Value, scale: Scale | None) -> ChunkSide:
            """Writes the vectors of reads from a row on."""
            return ChunkSide(self.arrays.at("vectors", (row, form.key_row)), 4 * form.key_row, 4, scale)

        def of_matrix(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the sides of a product with the matrix."""
            scale = self.decay_of_keys(integer(0), self.span_of(code.divided(row, steps)[1]))
            return left(row, scale), ChunkSide(self.arrays.at("matrix", (column, 1)), 4, 4 * form.matrix_row)

        def of_vectors(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the sides of a product with the vectors of writes."""
            (row, step), (column, first) = row_of(row), column_of(column)
            there = self.arrays.at("vectors", (first_write, form.key_row), (column, form.key_row))
            scale = self.decay_of_keys(first, self.span_of(step))
            return left(row, scale), ChunkSide(there, 4 * form.key_row, 4)

        def read(row: Value, column: Value, value: Value) -> None:
            """Writes the store of a step's reads."""
            value = self.decayed(value, integer(0), self.span_of(code.divided(row, steps)[1]))
            self.arrays.write(value, "read", (row, form.value_row), (column, 1))

        def inner(row: Value, column: Value, value: Value) -> None:
            """Writes the store of an inner product with a vector of an earlier span, or 0."""
            (row, step), (column, first) = row_of(row), column_of(column)
            last = self.span_of(step)
            is_earlier = code.icmp_signed("<=", first, last)
            at = code.add(code.multiplied(code.divided(row, steps)[0], writes * steps), column)
            value = code.select(is_earlier, self.decayed(value, first, last), ZERO)
            # Those of the same span are there.
            with code.when(is_earlier) if self.rule.by_key else nullcontext():
                self.arrays.write(value, "inner", (at, form.step_row), (step, 1))

        self.tiles.write(reads * steps, form.columns, form.keys, of_matrix, read, pairs=True)
        self.tiles.write(reads * count, writes * count, form.keys, of_vectors, inner, most, True)

    def add_later_reads(self) -> None:
        """Writes the steps' reads of the values that earlier steps wrote, where these were not solved.

        Products of matrices take later steps times 0, so NaN would reach the steps before it: where one was
        written, each step adds up those before it.
        """
        code, form = self.code, self.chunk
        later, steps, depth = len(form.reads) - form.solved, form.steps, form.writes * form.steps

        def row_of(row: Value) -> Value:
            """Writes the row of a read that was not solved."""
            return code.add(row, integer(form.solved * steps))

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the inner products and the written values."""
            place, step = code.divided(row_of(row), steps)
            left = self.arrays.at("inner", (place, depth * form.step_row), (step, 1))
            right = self.arrays.at("written", (column, 1))
            return ChunkSide(left, 4, 4 * form.step_row), ChunkSide(right, 4, 4 * form.value_row)

        def store(row: Value, column: Value, value: Value) -> None:
            """Writes the addition to a read."""
            at = (row_of(row), form.value_row), (column, 1)
            self.arrays.write(code.fadd(self.arrays.read("read", *at), value), "read", *at)

        def one_by_one(row: Value, column: Value) -> None:
            """Writes the addition of the earlier steps' writes to one number that is read."""
            place, step = code.divided(row_of(row), steps)

            def add(earlier: Value, totals: list[Value]) -> list[Value]:
                """Writes the addition of a step's write."""
                (total,) = totals
                for write in range(form.writes):
                    number = self.row_of(write, earlier)
                    at = code.add(code.multiplied(place, depth), number)
                    factor = self.arrays.read("inner", (at, form.step_row), (step, 1))
                    written = self.arrays.read("written", (number, form.value_row), (column, 1))
                    total = code.fused(factor, written, total)
                return [total]

            (total,) = code.carry(0, step, [ZERO], add)
            store(row, column, total)

        if not later:
            return
        is_beyond = code.fcmp_unordered("!=", self.arrays.read("beyond"), ZERO)
        with code.when(is_beyond), code.over_threads(later * steps * form.columns) as index:
            one_by_one(*code.divided(index, form.columns))
        with code.when(code.not_(is_beyond)):
            self.tiles.write(later * steps, form.columns, depth, sides, store)

    def change_matrix(self) -> None:
        """Writes the matrix after the chunk."""
        code, form = self.code, self.chunk
        steps, depth = form.steps, form.writes * form.steps
        first, end = integer(form.first_write * steps), self.span_of(integer(steps))

        def decay(row: Value, k: Value, key: Value) -> Value:
            """Writes the decay of a step's write until the end of the chunk. key: of the first row."""
            return self.decay_between(self.span_behind(code.divided(k, steps)[1]), end, code.add(key, row))

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the vectors and the written values."""
            left = self.arrays.at("vectors", (first, form.key_row), (row, 1))
            right = self.arrays.at("written", (column, 1))
            scale = partial(decay, key=row) if form.has_products else None
            return ChunkSide(left, 4, 4 * form.key_row, scale), ChunkSide(right, 4, 4 * form.value_row)

        def store(row: Value, column: Value, value: Value) -> None:
            """Writes an element of the matrix."""
            at = (row, form.matrix_row), (column, 1)
            decayed = self.decay_between(integer(0), end, row)
            if self.rule.by_value:
                decayed = self.arrays.read("ahead", (column, 1))
            before = code.fmul(self.arrays.read("matrix", *at), decayed)
            self.arrays.write(code.fadd(before, value), "matrix", *at)

        self.tiles.write(form.keys, form.columns, depth, sides, store)
