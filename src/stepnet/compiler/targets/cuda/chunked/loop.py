"""The kernel of a loop in chunks of steps, as products of matrices on tensor cores (`chunked/form.py`).

    load        vectors, early values and decays of all steps of the chunk; zeros behind the last one
    decays      their products
    multiply    read = decay * vectors @ matrix        inner = decay * vectors @ vectors.T, for earlier steps
    solve       what is written, step by step: a thread has a value, and its reads of all steps in registers
    multiply    read += inner @ written                matrix = decay * matrix + (decay * vectors).T @ written
    outputs

Only the solution is a chain over steps, of a few instructions each. Between these all threads of a block
meet.
"""

from llvmlite import ir

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise
from stepnet.compiler.targets.cuda.chunked.form import THREADS, ChunkForm
from stepnet.compiler.targets.cuda.chunked.load import ChunkSteps
from stepnet.compiler.targets.cuda.chunked.products import ChunkProductWriter
from stepnet.compiler.targets.cuda.chunked.tiles import DTYPE, ONE, ZERO
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.entries.elements import literal, uniform
from stepnet.compiler.targets.cuda.functions import F32, FOUR
from stepnet.compiler.targets.cuda.loops.lane_code import turns_of

Value = ir.Value
AT_ONCE = 4
"""The numbers that a thread reads from shared memory by one instruction."""
MOST_WRITTEN = 2.0**127
"""The largest number that 0 times it is 0 on tensor cores, which round it."""
SOLVED = 8
"""The steps whose reads a thread has in registers."""


def chunk_code(plan: Plan, form: ChunkForm) -> LoopCode:
    """Writes the kernel of a plan's loop in chunks of steps."""
    return ChunkWriter(plan, form).written()


class ChunkWriter(ChunkProductWriter):
    """Writer of the kernel of a loop in chunks of steps."""

    def written(self) -> LoopCode:
        """Writes the kernel."""
        code, form = self.code, self.chunk
        self.in_group, rest = code.divided(code.block_index, form.blocks)
        self.head, part = code.divided(rest, form.parts)
        self.column = code.multiplied(part, form.columns)
        first, count = turns_of(code, self.in_group)
        with code.loop(first, code.add(first, count)) as turn:
            self.turn(turn)
        made = code.finished(THREADS, form.shared, form.blocks)
        schedule = f"{form.blocks} blocks of {THREADS} threads, {form.steps} steps at a time"
        return LoopCode(made, schedule, 1, together=form.steps)

    def turn(self, turn: Value) -> None:
        """Writes all steps of a turn."""
        code = self.code
        lane = self.lane_at(turn, integer(0))
        self.begin_matrix(lane)
        self.meet()
        with code.loop(integer(0), lane.count, self.chunk.steps) as first:
            count = code.smaller(code.sub(lane.count, first), integer(self.chunk.steps))
            self.steps_of_chunk(ChunkSteps(lane, first, count))
        self.end_matrix(lane)
        self.meet()

    def steps_of_chunk(self, steps: ChunkSteps) -> None:
        """Writes a chunk."""
        form = self.chunk
        self.load(steps)
        self.meet()
        if self.rule.decay:
            self.multiply_decays()
            self.meet()
        self.multiply_vectors()
        self.meet()
        if form.solved:
            self.solve(steps)
        else:
            self.write_without_reads(steps)
        self.meet()
        self.add_later_reads()
        self.change_matrix()
        self.meet()
        self.write_chunk_outputs(steps)
        self.meet()

    # ---- what is written, and outputs

    def late_element(self, number: int, known: dict[int, Value], step: Value, value: Value) -> Value:
        """Writes a value of the thread's head and column at a step. known: values that were written."""
        form, node = self.chunk, self.rule.body.nodes[number]
        if number in known:
            return known[number]
        if (number_of_all := uniform(node)) is not None:
            made = literal(DTYPE, number_of_all)
        elif number in form.wide:
            row = self.row_of(form.wide.index(number), step)
            made = self.arrays.read("values", (row, form.value_row), (value, 1))
        elif number in form.narrow:
            made = self.arrays.read("numbers", (self.row_of(form.narrow.index(number), step), 1))
        elif node.is_view:
            made = self.late_element(node.inputs[0], known, step, value)
        else:
            operands = [self.late_element(n, known, step, value) for n in node.inputs]
            dtypes = [self.rule.body.type_of(n).dtype for n in node.inputs]
            made = pointwise(self.code, node, operands, dtypes)
        known[number] = made
        return made

    def write(self, known: dict[int, Value], step: Value, value: Value, count: Value) -> list[Value]:
        """Writes what a step writes at a value, into shared memory; 0 for a step behind the last one."""
        code, form, made = self.code, self.chunk, list[Value]()
        for place, each in enumerate(self.rule.writes):
            total: Value = ONE
            for number in each.values:
                factor = self.late_element(number, known, step, value)
                total = factor if total is ONE else code.fmul(total, factor)
            total = code.select(code.icmp_signed("<", step, count), total, ZERO)
            self.arrays.write(total, "written", (self.row_of(place, step), form.value_row), (value, 1))
            above = code.fcmp_unordered(">", total, ir.Constant(F32, MOST_WRITTEN))
            below = code.fcmp_unordered("<", total, ir.Constant(F32, -MOST_WRITTEN))
            with code.when(code.or_(above, below)):
                self.arrays.write(ONE, "beyond")
            made.append(total)
        return made

    def write_without_reads(self, steps: ChunkSteps) -> None:
        """Writes what all steps write, if that does not depend on the matrix."""
        code, form = self.code, self.chunk
        with code.over_threads(form.steps * form.columns) as index:
            step, value = code.divided(index, form.columns)
            self.write({}, step, value, steps.count)

    def solve(self, steps: ChunkSteps) -> None:
        """Writes what each step writes, one after the other: a thread has a value. It takes `SOLVED` steps at
        a time, whose reads are in registers: first it adds what all earlier steps of the chunk wrote, and
        then what each of them writes to those of the later ones.
        """
        code, form = self.code, self.chunk
        value, places = code.thread, range(form.solved)
        with (
            code.when(code.icmp_signed("<", value, integer(form.columns))),
            code.loop(integer(0), integer(form.steps), SOLVED) as begin,
        ):
            own = [code.add(begin, integer(step)) for step in range(SOLVED)]
            rows = [[self.row_of(place, step) for step in own] for place in places]
            first = [
                self.arrays.read("read", (row, form.value_row), (value, 1)) for each in rows for row in each
            ]

            def add(earlier: Value, flat: list[Value]) -> list[Value]:
                """Writes the addition of what an earlier step wrote to the reads."""
                reads = by_read(flat)
                for n in range(form.writes):
                    written = self.arrays.read(
                        "written", (self.row_of(n, earlier), form.value_row), (value, 1)
                    )
                    self.add_to(reads, n, earlier, begin, written, 0)
                return [read for each in reads for read in each]

            reads = by_read(code.carry(0, begin, first, add))
            for step, at in enumerate(own):
                known = {form.reads[place].number: reads[place][step] for place in places}
                made = self.write(known, at, value, steps.count)
                for place in places:
                    self.arrays.write(
                        reads[place][step], "read", (rows[place][step], form.value_row), (value, 1)
                    )
                for n, each in enumerate(made):
                    self.add_to(reads, n, at, begin, each, step + 1)

    def add_to(
        self, reads: list[list[Value]], place: int, step: Value, begin: Value, written: Value, first: int
    ) -> None:
        """Writes the addition of the outer product number `place` of a step to the reads of `SOLVED` steps.

        begin: the first of these steps. written: what was written. first: the first of them that is later.
        """
        code, form = self.code, self.chunk
        for number, own in enumerate(reads):
            row = code.add(step, integer((number * form.writes + place) * form.steps))
            for group in range(first // AT_ONCE * AT_ONCE, SOLVED, AT_ONCE):
                later = code.add(begin, integer(group))
                four = code.read(FOUR, self.arrays.at("inner", (row, form.step_row), (later, 1)), 16)
                for n in range(group, group + AT_ONCE):
                    if n >= first:
                        inner = code.extract_element(four, integer(n - group))
                        own[n] = code.fused(inner, written, own[n])

    def write_chunk_outputs(self, steps: ChunkSteps) -> None:
        """Writes the outputs of the steps of a chunk to their arrays."""
        code, form, outputs = self.code, self.chunk, self.form.kinds["y"]
        size = self.rule.sizes[0] * self.rule.sizes[2]
        if not outputs:
            return
        with code.over_threads(form.steps * form.columns) as index:
            step, value = code.divided(index, form.columns)
            row = self.row_at_step(steps, step)
            known = {
                read.number: self.arrays.read("read", (self.row_of(place, step), form.value_row), (value, 1))
                for place, read in enumerate(form.reads)
            }
            for place, each in enumerate(self.rule.writes):
                if len(each.values) == 1:
                    there = self.row_of(place, step), form.value_row
                    for number in self.shown_by(each.values[0]):
                        known.setdefault(number, self.arrays.read("written", there, (value, 1)))
            column = code.add(code.multiplied(self.head, self.rule.sizes[2]), code.add(self.column, value))
            with code.when(row.is_real):
                for place, number in enumerate(outputs):
                    made = self.late_element(number, known, step, value)
                    wanted = code.icmp_signed("!=", code.word(f"y{place}"), integer(0))
                    with code.when(wanted):
                        at = code.add(code.multiplied(row.entry, size), column)
                        code.write_element(DTYPE, made, code.pointer(f"y{place}"), at)

    def shown_by(self, number: int) -> list[int]:
        """Returns a value that is written, and those that it shows, in the same order of elements."""
        found, nodes = [number], self.rule.body.nodes
        while nodes[found[-1]].is_view and found[-1] not in self.rule.early:
            found.append(nodes[found[-1]].inputs[0])
        return found


def by_read(flat: list[Value]) -> list[list[Value]]:
    """Returns values as lists of those of `SOLVED` steps."""
    return [flat[first : first + SOLVED] for first in range(0, len(flat), SOLVED)]
