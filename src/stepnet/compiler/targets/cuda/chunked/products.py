"""Writes the products of matrices of a chunk of steps on tensor cores (`chunked/loop.py`)."""

from llvmlite import ir

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.chunked.form import ChunkForm
from stepnet.compiler.targets.cuda.chunked.load import ChunkLoadWriter
from stepnet.compiler.targets.cuda.chunked.tiles import ZERO, ChunkSide, TileWriter

Value = ir.Value


class ChunkProductWriter(ChunkLoadWriter):
    """Writer of the products of a chunk."""

    def __init__(self, plan: Plan, form: ChunkForm) -> None:
        """Begins the kernel."""
        super().__init__(plan, form)
        self.tiles = TileWriter(self.code, form.way)

    def multiply_vectors(self) -> None:
        """Writes what the steps read of the matrix before the chunk, and the products of their vectors."""
        code, form = self.code, self.chunk
        reads, writes, steps = len(form.reads), form.writes, form.steps
        vectors = (integer(form.first_write * steps), form.key_row)

        def left(row: Value) -> ChunkSide:
            """Writes the vectors of reads from a row on."""
            return ChunkSide(self.arrays.at("vectors", (row, form.key_row)), 4 * form.key_row, 4)

        def of_matrix(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the sides of a product with the matrix."""
            return left(row), ChunkSide(self.arrays.at("matrix", (column, 1)), 4, 4 * form.value_row)

        def of_vectors(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the sides of a product with the vectors of writes."""
            there = self.arrays.at("vectors", vectors, (column, form.key_row))
            return left(row), ChunkSide(there, 4 * form.key_row, 4)

        def read(row: Value, column: Value, value: Value) -> None:
            """Writes the store of what a step reads."""
            _, step = code.divided(row, steps)
            value = code.fmul(value, self.decay_between(integer(0), step))
            self.arrays.write(value, "read", (row, form.value_row), (column, 1))

        def inner(row: Value, column: Value, value: Value) -> None:
            """Writes the store of an inner product; of 0 for steps that are not earlier."""
            (place, step), (_, earlier) = code.divided(row, steps), code.divided(column, steps)
            value = code.fmul(value, self.decay_between(code.add(earlier, integer(1)), step))
            value = code.select(code.icmp_signed("<", earlier, step), value, ZERO)
            at = code.add(code.multiplied(place, writes * steps), column)
            self.arrays.write(value, "inner", (at, form.step_row), (step, 1))

        self.tiles.write(reads * steps, form.columns, form.keys, of_matrix, read)
        self.tiles.write(reads * steps, writes * steps, form.keys, of_vectors, inner)

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
            left = self.arrays.at("inner", (place, depth * form.step_row), (step, 1))
            right = self.arrays.at("written", (column, 1))
            return ChunkSide(left, 4, 4 * form.step_row), ChunkSide(right, 4, 4 * form.value_row)

        def store(row: Value, column: Value, value: Value) -> None:
            """Writes the addition to what is read."""
            at = (row_of(row), form.value_row), (column, 1)
            self.arrays.write(code.fadd(self.arrays.read("read", *at), value), "read", *at)

        def one_by_one(row: Value, column: Value) -> None:
            """Writes the addition of what the earlier steps wrote to one number that is read."""
            place, step = code.divided(row_of(row), steps)

            def add(earlier: Value, totals: list[Value]) -> list[Value]:
                """Writes the addition of what a step wrote."""
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
        first = integer(form.first_write * steps)

        def decay(k: Value) -> Value:
            """Writes the decay of what a step wrote, until the end of the chunk."""
            return self.decay_between(code.add(code.divided(k, steps)[1], integer(1)), integer(steps))

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the vectors and what was written."""
            left = self.arrays.at("vectors", (first, form.key_row), (row, 1))
            right = self.arrays.at("written", (column, 1))
            scale = decay if self.rule.decay else None
            return ChunkSide(left, 4, 4 * form.key_row, scale), ChunkSide(right, 4, 4 * form.value_row)

        def store(row: Value, column: Value, value: Value) -> None:
            """Writes an element of the matrix."""
            at = (row, form.value_row), (column, 1)
            before = code.fmul(
                self.arrays.read("matrix", *at), self.decay_between(integer(0), integer(steps))
            )
            self.arrays.write(code.fadd(before, value), "matrix", *at)

        self.tiles.write(form.keys, form.columns, depth, sides, store)
