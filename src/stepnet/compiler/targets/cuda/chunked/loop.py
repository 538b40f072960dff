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

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from llvmlite import ir

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cpu.writing.code import I32, integer, store_vector
from stepnet.compiler.targets.cpu.writing.pointwise import pointwise
from stepnet.compiler.targets.cuda.chunked.decay_form import ALIGNED
from stepnet.compiler.targets.cuda.chunked.form import SOLVED, THREADS, ChunkForm
from stepnet.compiler.targets.cuda.chunked.load import ChunkSteps
from stepnet.compiler.targets.cuda.chunked.moves import TOGETHER, ChunkMoves
from stepnet.compiler.targets.cuda.chunked.products import ChunkProductWriter
from stepnet.compiler.targets.cuda.chunked.tiles import DTYPE, ONE, ZERO, are_within
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.entries.elements import RowOfThread, literal, uniform
from stepnet.compiler.targets.cuda.functions import F32, FOUR
from stepnet.compiler.targets.cuda.loops.lane_code import LaneTurn, turns_of

Value = ir.Value
AT_ONCE = 4
"""The numbers that a thread reads from shared memory by one instruction."""


def chunk_code(plan: Plan, form: ChunkForm) -> LoopCode:
    """Writes the kernel of a plan's loop in chunks of steps."""
    return ChunkWriter(plan, form).written()


class ChunkWriter(ChunkProductWriter):
    """Writer of the kernel of a loop in chunks of steps."""

    early_writes: list[Value]

    def written(self) -> LoopCode:
        """Writes the kernel."""
        code, form = self.code, self.chunk
        self.in_group, rest = code.divided(code.block_index, form.blocks)
        head, part = code.divided(rest, form.parts)
        self.head = code.limited(head, form.heads)
        self.column = code.multiplied(code.limited(part, form.parts), form.columns)
        first, count = turns_of(code, self.in_group)
        if self.rule.by_key:
            self.begin_inner()
        with code.loop(first, code.add(first, count)) as turn:
            self.turn(turn)
        made = code.finished(form.threads, form.shared, form.blocks, resident=THREADS // form.threads)
        schedule = f"{form.blocks} blocks of {form.threads} threads, {form.steps} steps at a time"
        return LoopCode(made, schedule, 1, together=form.steps, aligned=ALIGNED)

    def turn(self, turn: Value) -> None:
        """Writes all steps of a turn."""
        code = self.code
        lane = self.lane_at(turn, integer(0))
        self.begin_matrix(lane)
        begin = self.chunk_at(lane, integer(0))
        self.turn_arrays(begin)
        self.arrays.write(ZERO, "beyond")
        if self.chunk.ahead:
            with code.when(code.icmp_signed(">", lane.count, integer(0))):
                self.load_ahead(begin)
        self.meet()
        with code.loop(integer(0), lane.count, self.chunk.steps) as first:
            self.steps_of_chunk(self.chunk_at(lane, first))
        self.end_matrix(lane)
        self.meet()

    def chunk_at(self, lane: LaneTurn, first: Value) -> ChunkSteps:
        """Writes the number of the steps of a chunk of a lane."""
        left = self.code.sub(lane.count, first)
        return ChunkSteps(lane, first, self.code.smaller(left, integer(self.chunk.steps)))

    def steps_of_chunk(self, steps: ChunkSteps) -> None:
        """Writes a chunk."""
        code, form = self.code, self.chunk
        self.turn_arrays(steps)
        next_half = code.sub(integer(1), self.arrays.half)
        replace(self.arrays, half=next_half).write(ZERO, "beyond")
        if not form.ahead:
            self.load(steps)
            if not form.solved:
                self.note_beyond(self.early_writes)
            self.meet()
        if form.has_products and not form.multiplies_ahead:
            self.multiply_decays()
        if self.rule.by_key:
            self.multiply_within()
            self.meet()
            self.scale_vectors()
        if form.has_products and not form.multiplies_ahead:
            self.meet()
        self.multiply_vectors()
        self.meet()
        if form.solved:
            self.solve(steps)
            if form.ahead:
                self.load_next(steps)
            self.meet()
        self.add_later_reads()
        self.change_matrix()
        self.meet()
        self.write_chunk_outputs(steps)

    def load_next(self, steps: ChunkSteps) -> None:
        """Writes loads of the next chunk, if there is one, into the places that this one does not have."""
        code = self.code
        begin = code.add(steps.first, integer(self.chunk.steps))
        with code.when(code.icmp_signed("<", begin, steps.lane.count)):
            later = self.chunk_at(steps.lane, begin)
            self.turn_arrays(later)
            self.load_ahead(later)
        self.turn_arrays(steps)

    # ---- what is written, and outputs

    def moves(self, steps: ChunkSteps) -> ChunkMoves[RowOfThread]:
        """Writes loads of a chunk; and what its steps write, if that does not depend on the matrix."""
        form, moves = self.chunk, super().moves(steps)
        self.early_writes = list[Value]()
        for place in range(0 if form.solved else form.writes):

            def write(value: Value, row: RowOfThread, place: int = place) -> Value:
                """Writes the number that a step writes at a value."""
                self.elements.begin()
                at_head = integer(0)
                known = {
                    n: self.early_element(n, value if form.is_wide(n) else at_head, row) for n in form.early
                }
                self.early_writes.append(self.written_numbers(known, at_head, value, row.is_real)[place])
                return self.early_writes[-1]

            moves.read(form.steps, form.columns, "written", place * form.steps, form.value_row, write)
        return moves

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

    def written_numbers(
        self, known: dict[int, Value], step: Value, value: Value, is_real: Value
    ) -> list[Value]:
        """Writes the number that a step writes at a value; 0 for a step behind the last one."""
        made = list[Value]()
        for each in self.rule.writes:
            total: Value = ONE
            for number in each.values:
                factor = self.late_element(number, known, step, value)
                total = factor if total is ONE else self.code.fmul(total, factor)
            made.append(self.code.select(is_real, total, ZERO))
        return made

    def note_beyond(self, written: list[Value]) -> None:
        """Writes a note if one of the numbers that were written is NaN, infinite or close to it, for reads
        that are products with them.
        """
        code = self.code
        if len(self.chunk.reads) > self.chunk.solved:
            with code.when(code.not_(are_within(code, written))):
                self.arrays.write(ONE, "beyond")

    def solve(self, steps: ChunkSteps) -> None:
        """Writes the numbers that each step writes, one step after the other: a thread, or two lanes, have a
        value. They take `SOLVED` steps at a time, whose reads are in registers: first they add what all
        earlier steps of the chunk wrote, each of two lanes every second one, and then both what each of them
        writes to those of the later ones. A lane reads only what it wrote itself. Where values have decays of
        their own, what was written is decayed on the way, until the end of the chunk.
        """
        code, form = self.code, self.chunk
        with code.when(code.icmp_signed("<", code.thread, integer(form.columns * form.solving))):
            ahead: Value = ONE
            value, lane = code.divided(code.thread, form.solving)
            for begin in range(0, form.steps, SOLVED):
                ahead = self.solve_from(begin, steps, ahead, value, lane)
            if self.rule.by_value:
                self.arrays.write(ahead, "ahead", (value, 1))

    def solve_from(self, begin: int, steps: ChunkSteps, ahead: Value, value: Value, lane: Value) -> Value:
        """Writes the values that `SOLVED` steps write, from step `begin` of the chunk on. Returns `ahead`
        times the decays of these steps.

        ahead: the product of the decays of the steps before them, if each value has its own. lane: of the
        value.
        """
        code, form = self.code, self.chunk
        places, own, noted = range(form.solved), [integer(begin + n) for n in range(SOLVED)], list[Value]()
        rows = [[self.row_of(place, step) for step in own] for place in places]
        first = [self.arrays.read("read", (row, form.value_row), (value, 1)) for each in rows for row in each]
        count, decays = code.trunc(steps.count, I32), list[Value]()
        if self.rule.by_value:
            decays = [self.arrays.read("decay", (step, form.decay_step), (value, 1)) for step in own]
            *before, ahead = self.decayed_by(ahead, 0, decays)
            first = [code.fmul(x, before[n % SOLVED]) for n, x in enumerate(first)]

        def add(earlier: Value, flat: list[Value]) -> list[Value]:
            """Writes the addition to the reads of the number that an earlier step wrote."""
            reads = by_read(flat)
            for n in range(form.writes):
                at = (self.row_of(n, earlier), form.value_row), (value, 1)
                written = self.decayed_by(self.arrays.read("written", *at), 0, decays)
                self.add_to(reads, n, earlier, integer(begin), written, 0)
                if self.rule.by_value:
                    self.arrays.write(written[-1], "written", *at)
            return [read for each in reads for read in each]

        reads = by_read(self.added_by_lanes(begin, first, add, lane))
        for step, at in enumerate(own):
            known = {form.reads[place].number: reads[place][step] for place in places}
            is_real = code.icmp_signed("<", ir.Constant(I32, begin + step), count)
            made = self.written_numbers(known, at, value, is_real)
            for place in places:
                if form.reads[place].number in form.shown:
                    there = (rows[place][step], form.value_row), (value, 1)
                    self.arrays.write(reads[place][step], "read", *there)
            for n, each in enumerate(made):
                written = self.decayed_by(each, step + 1, decays)
                is_own = code.icmp_signed("==", lane, integer(step % form.solving))
                with code.when(is_own):
                    row = self.row_of(n, at), form.value_row
                    self.arrays.write(written[-1], "written", row, (value, 1))
                self.add_to(reads, n, at, integer(begin), written, step + 1)
            noted += made
        self.note_beyond(noted)
        return ahead

    def added_by_lanes(
        self, begin: int, first: list[Value], add: Callable[[Value, list[Value]], list[Value]], lane: Value
    ) -> list[Value]:
        """Writes the addition to reads of the numbers that the steps before `begin` wrote: each lane of a
        value has some of these steps, and the sums of all lanes are added up. Where reads are written in
        their place again, the first lane alone takes them from there.
        """
        code, form, lanes = self.code, self.chunk, self.chunk.solving
        are_shown = any(read.number in form.shown for read in form.reads[: form.solved])
        if lanes == 1 or not (begin or are_shown):
            return code.carry(0, begin, first, add, turns=SOLVED)
        is_first = code.icmp_signed("==", lane, integer(0))
        own = [code.select(is_first, read, ZERO) for read in first]
        own = code.carry(
            0, begin, own, lambda n, reads: add(code.add(n, lane), reads), step=lanes, turns=SOLVED // lanes
        )
        other = [code.function_call("shuffle_xor_float32", F32, [read, ir.Constant(I32, 1)]) for read in own]
        return [code.fadd(*both) for both in zip(own, other, strict=True)]

    def decayed_by(self, value: Value, first: int, decays: list[Value]) -> list[Value]:
        """Writes a value at each of `SOLVED` steps and behind them: at step `first` as it is, and decayed at
        later ones.
        """
        made = [value] * (SOLVED + 1)
        for step in range(first, len(decays)):
            made[step + 1] = self.code.fmul(made[step], decays[step])
        return made

    def add_to(
        self,
        reads: list[list[Value]],
        place: int,
        step: Value,
        begin: Value,
        written: list[Value],
        first: int,
    ) -> None:
        """Writes the addition of the outer product number `place` of a step to the reads of `SOLVED` steps.

        begin: the first of these steps. written: the values written at each of them. first: the first of them
            that is later.
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
                        own[n] = code.fused(inner, written[n], own[n])

    def write_chunk_outputs(self, steps: ChunkSteps) -> None:
        """Writes the outputs of the steps of a chunk to their arrays."""
        code, form, outputs = self.code, self.chunk, self.form.kinds["y"]
        size = self.rule.sizes[0] * self.rule.sizes[2]
        if not outputs:
            return
        for share in ChunkMoves(
            code, self.arrays, form.threads, lambda step: self.row_at_step(steps, step)
        ).share(form.steps, form.columns):
            step, row, is_real = share.step, share.row, share.row.is_real
            first = code.add(
                code.multiplied(self.head, self.rule.sizes[2]), code.add(self.column, share.first)
            )
            first = code.add(code.multiplied(row.entry, size), first)
            with code.when(is_real if share.holds is None else code.and_(is_real, share.holds)):
                places = [code.summed(share.first, integer(n)) for n in range(TOGETHER)]
                known = [self.shown(step, value) for value in places]
                for place, number in enumerate(outputs):
                    pairs = zip(known, places, strict=True)
                    made = [self.late_element(number, own, step, value) for own, value in pairs]
                    wanted = code.icmp_signed("!=", code.word(f"y{place}"), integer(0))
                    with code.when(wanted):
                        dtype = self.rule.body.type_of(number).dtype
                        wide = np.dtype(dtype).itemsize
                        for n, value in enumerate(made):
                            at = code.element(dtype, code.pointer(f"y{place}"), code.add(first, integer(n)))
                            store_vector(code, dtype, value, at, wide if n else wide * TOGETHER)

    def shown(self, step: Value, value: Value) -> dict[int, Value]:
        """Writes loads of the numbers read and written at a step and a value, by node."""
        form = self.chunk
        known = {
            read.number: self.arrays.read("read", (self.row_of(place, step), form.value_row), (value, 1))
            for place, read in enumerate(form.reads)
        }
        for place, each in enumerate(self.rule.writes):
            for number in form.views_of(each):
                there = (self.row_of(place, step), form.value_row), (value, 1)
                known.setdefault(number, self.arrays.read("written", *there))
        return known


def by_read(flat: list[Value]) -> list[list[Value]]:
    """Returns values as lists of those of `SOLVED` steps."""
    return [flat[first : first + SOLVED] for first in range(0, len(flat), SOLVED)]
