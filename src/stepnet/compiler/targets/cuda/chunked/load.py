"""Writes the code of a chunk of steps ahead of its products (`chunked/loop.py`): places in shared memory, the
matrix, and all that the steps read that does not depend on the matrix.
"""

from collections.abc import Sequence
from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cpu.writing.pointwise import converted
from stepnet.compiler.targets.cuda.chunked.decay_form import ALIGNED
from stepnet.compiler.targets.cuda.chunked.form import ChunkForm
from stepnet.compiler.targets.cuda.chunked.moves import ChunkMoves, multiply_decays
from stepnet.compiler.targets.cuda.chunked.shared_arrays import SharedArrays
from stepnet.compiler.targets.cuda.chunked.tiles import DTYPE, ONE, ZERO
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.entries.elements import ElementWriter, RowOfThread
from stepnet.compiler.targets.cuda.entries.places import Place
from stepnet.compiler.targets.cuda.loops.lane_code import LaneTurn
from stepnet.compiler.targets.cuda.loops.loop import LoopForm, LoopWriter
from stepnet.compiler.targets.cuda.writer import VOID
from stepnet.compiler.values.records import dataclass

Value = ir.Value


@dataclass(frozen=True)
class ChunkSteps:
    """The steps of a chunk of a lane. first: the index of the first one in the turn. count: how many there
    are.
    """

    lane: LaneTurn
    first: Value
    count: Value


class ChunkLoadWriter(LoopWriter):
    """Writer of the places, the matrix and the early values of a chunk."""

    def __init__(self, plan: Plan, form: ChunkForm) -> None:
        """Begins the kernel."""
        super().__init__(LoopForm(plan, 1, form.threads, form.shared))
        self.chunk, self.rule = form, form.rule
        turned = {name: 4 * form.sizes[name] for name in form.turned}
        self.arrays = SharedArrays(self.code, form.places, turned)
        self.elements = ElementWriter(self.code, self.rule.body, self.sources(), {}, ALIGNED)
        self.head: Value = integer(0)
        self.column: Value = integer(0)

    # ---- places in shared memory

    def row_of(self, place: int, step: Value) -> Value:
        """Writes the row of a step in the array number `place` of those with a row for each step."""
        return self.code.summed(integer(place * self.chunk.steps), step)

    def turn_arrays(self, steps: ChunkSteps) -> None:
        """Writes which places a chunk has of the arrays that have two."""
        half = self.code.divided(self.code.divided(steps.first, self.chunk.steps)[0], 2)[1]
        self.arrays = replace(self.arrays, half=half)

    # ---- the matrix

    def matrix_index(self, key: Value, value: Value) -> Value:
        """Writes the index of an element of the head's matrix in arrays of memories."""
        return self.matrix_place(key, self.code.summed(self.column, value)).flat

    def matrix_place(self, key: Value, value: Value) -> Place:
        """Writes the place of an element of the head in a value of the matrix's shape."""
        code, rule = self.code, self.rule
        shape = rule.body.type_of(rule.memory).shape
        coordinates: list[Value] = [integer(0)] * len(shape)
        of_axes = (rule.head_axes, self.head), (rule.key_axes, key), (rule.value_axes, value)
        for axes, index in of_axes:
            sizes = tuple(shape[axis] for axis in axes)
            for axis, coordinate in zip(axes, Place(code, sizes, index).coordinates, strict=True):
                coordinates[axis] = coordinate
        return Place(code, shape, None, coordinates)

    def begin_matrix(self, lane: LaneTurn) -> None:
        """Writes the initial matrix of a sequence that begins."""
        code, form, given = self.code, self.chunk, self.form.dtypes.initial[0]
        is_given = code.icmp_signed("!=", code.word("m0"), integer(0))
        size = self.rule.body.type_of(self.rule.memory).size
        with code.when(lane.begins), code.over_threads(form.keys * form.columns) as index:
            key, value = code.divided(index, form.columns)

            def read() -> list[Value]:
                """Writes a load of the element that is given."""
                place = code.add(code.multiplied(lane.row, size), self.matrix_index(key, value))
                return [converted(code, code.read_element(given, code.pointer("m0"), place), given, DTYPE)]

            (element,) = code.either(is_given, read, [ZERO])
            self.arrays.write(element, "matrix", (key, form.matrix_row), (value, 1))

    def end_matrix(self, lane: LaneTurn) -> None:
        """Writes the final matrix of a sequence that ends to its array."""
        code, form, made = self.code, self.chunk, self.form.dtypes.final[0]
        wanted = code.icmp_signed("!=", code.word("f0"), integer(0))
        size = self.rule.body.type_of(self.rule.memory).size
        wanted = code.and_(lane.ends, wanted)
        with code.when(wanted), code.over_threads(form.keys * form.columns) as index:
            key, value = code.divided(index, form.columns)
            element = self.arrays.read("matrix", (key, form.matrix_row), (value, 1))
            place = code.add(code.multiplied(lane.row, size), self.matrix_index(key, value))
            code.write_element(made, converted(code, element, DTYPE, made), code.pointer("f0"), place)

    # ---- what is known before the chunk

    def row_at_step(self, steps: ChunkSteps, step: Value) -> RowOfThread:
        """Writes the entry of a step of the chunk; that of the last one for those behind it."""
        code, lane = self.code, steps.lane
        is_real = code.icmp_signed("<", step, steps.count)
        within = code.add(steps.first, code.smaller(step, code.sub(steps.count, integer(1))))
        time = self.time_at(lane, within)
        entry = code.add(lane.start, code.read_or(time, "steps", time))
        done = code.add(code.read_or(integer(0), "first_steps", lane.row), lane.before)
        return RowOfThread(integer(0), entry, lane.row, is_real, code.add(within, done))

    def load(self, steps: ChunkSteps) -> None:
        """Writes the loads of all that the steps read and that does not depend on the matrix."""
        moves = self.moves(steps)
        with self.code.over_threads(self.chunk.steps) as step:
            self.load_numbers(steps, step)
        moves.write()
        self.elements.begin()

    def load_numbers(self, steps: ChunkSteps, step: Value) -> None:
        """Writes loads of the numbers of a step of the chunk, and of its decay, if heads have one."""
        form, row = self.chunk, self.row_at_step(steps, step)
        self.elements.begin()
        for place, number in enumerate(form.narrow):
            made = self.early_element(number, integer(0), row)
            self.arrays.write(made, "numbers", (self.row_of(place, step), 1))
        if self.rule.decay and form.decay_step == 1:
            self.arrays.write(self.decay_element(integer(0), row), "decay", (step, 1))

    def load_ahead(self, steps: ChunkSteps) -> None:
        """Writes the same loads by the threads from `loaders` on, and those of numbers by the warp ahead of
        them, which then multiplies the decays; no other thread needs to wait for either.
        """
        code, form = self.code, self.chunk
        thread = code.sub(code.thread, integer(form.loaders - LANES))
        is_first = code.and_(
            code.icmp_signed(">=", thread, integer(0)), code.icmp_signed("<", thread, integer(LANES))
        )
        with code.when(is_first):
            with code.loop(thread, integer(form.steps), LANES) as step:
                self.load_numbers(steps, step)
            if form.multiplies_ahead:
                code.function_call("warp_barrier", VOID, [])
                multiply_decays(code, self.arrays, form.steps, form.decay_row, thread, LANES)
        with code.when(code.icmp_signed(">=", thread, integer(LANES))):
            self.moves(steps).write()
        self.elements.begin()

    def decay_element(self, place: Value, row: RowOfThread) -> Value:
        """Writes a decay of a step; 1 behind the last one. place: the key or the value."""
        key, value = place, integer(0)
        if self.rule.by_value:
            key, value = value, self.code.summed(self.column, place)
        self.elements.begin()
        return self.code.select(row.is_real, self.factor_product(self.rule.decay, key, value, row), ONE)

    def moves(self, steps: ChunkSteps) -> ChunkMoves[RowOfThread]:
        """Writes loads of the vectors, of the values and of decays of a chunk, into registers."""
        form = self.chunk
        moves = ChunkMoves(
            self.code,
            self.arrays,
            form.threads - form.loaders,
            lambda step: self.row_at_step(steps, step),
            form.loaders,
        )
        for place in range(form.vectors):

            def vector(key: Value, row: RowOfThread, place: int = place) -> Value:
                """Writes an element of a vector; 0 behind the last step."""
                return self.code.select(row.is_real, self.vector_element(place, key, row), ZERO)

            moves.read(form.steps, form.keys, "vectors", place * form.steps, form.key_row, vector)
        for place, number in enumerate(form.wide):

            def early(value: Value, row: RowOfThread, number: int = number) -> Value:
                """Writes an element of an early value."""
                self.elements.begin()
                return self.early_element(number, value, row)

            moves.read(form.steps, form.columns, "values", place * form.steps, form.value_row, early)
        if form.decay_step > 1:
            width = form.keys if self.rule.by_key else form.columns
            moves.read(form.steps, width, "decay", 0, form.decay_step, self.decay_element)
        return moves

    def vector_element(self, place: int, key: Value, row: RowOfThread) -> Value:
        """Writes an element of the vector of a read, or of a write, for the head."""
        self.elements.begin()
        reads = self.chunk.reads
        if place >= len(reads):
            return self.factor_product(self.rule.writes[place - len(reads)].keys, key, integer(0), row)
        read, body, values = reads[place], self.rule.body, self.rule.sizes[2]
        node = body.nodes[read.number]
        at = Place(self.code, node.type.shape, self.code.multiplied(self.head, values))
        at, number = self.elements.reduced_place(node, at, key), node.inputs[0]
        while number != read.product:
            view = body.nodes[number]
            number = view.inputs[0]
            at = at.behind(view, body.type_of(number).shape)
        return self.elements.element(read.factor, at.broadcast(body.type_of(read.factor).shape), row)

    def factor_product(self, factors: Sequence[int], key: Value, value: Value, row: RowOfThread) -> Value:
        """Writes the product of elements of some factors of the matrix's size, or broadcast to it."""
        made: Value = ONE
        place = self.matrix_place(key, value)
        for number in factors:
            shape = self.rule.body.type_of(number).shape
            element = self.elements.element(number, place.broadcast(shape), row)
            made = element if made is ONE else self.code.fmul(made, element)
        return made

    def early_element(self, number: int, value: Value, row: RowOfThread) -> Value:
        """Writes an element of an early value: that of the head and a value, or of the head."""
        type_, code = self.rule.body.type_of(number), self.code
        flat = self.head if type_.size > 1 else integer(0)
        if self.chunk.is_wide(number):
            flat = code.multiplied(self.head, self.rule.sizes[2])
            flat = code.summed(code.summed(flat, self.column), value)
        return self.elements.element(number, Place(code, type_.shape, flat), row)
