"""The machine code of an inner recurrence: all rows of a step together, word after word.

    rank       sort the rows by their number of words, most first: the active rows are always the first ones
    begin      copy initial memories and statics to the records of the inner recurrence
    words      for each word: run the phases of the inner step on the active rows, then copy back the final
               memories of the rows that end

    rows 2 0 1 with 5, 3 and 0 words: two active rows at words 1 to 3, one at words 4 and 5

Nothing is padded, and no row is computed past its last word. Threads that share a step also share the steps
of inner recurrences, by units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.call_code import CallCode
from stepnet.compiler.targets.cpu.emit.emit import emit
from stepnet.compiler.targets.cpu.emit.lane_loops import range_of, record_of
from stepnet.compiler.targets.cpu.emit.stage import StageCode, StageRows
from stepnet.compiler.targets.cpu.lower.loops import CopyLoop, InnerLoop
from stepnet.compiler.targets.cpu.writing.code import I64, Code
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class InnerStepsInArray:
    """Current word (step of an inner sequence) of each row, in an array of the call.

    pointer: the array.
    bytes: the size of a word.
    first: the table of the index of each row's first word.
    ahead: the number of words by which each row has advanced; negative in reverse.
    nowhere: a buffer for rows beyond the last, which is never read.
    """

    pointer: ir.Value
    bytes: int
    first: ir.Value
    ahead: ir.Value
    nowhere: ir.Value

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """Computes the pointer to the current word (step of an inner sequence) of a row, in an array of the
        call. For row `count` and later ones, as far as vectors reach, it is that of a buffer that is never
        read.
        """
        index = code.add(code.read_number(self.first, row), self.ahead)
        there = code.at(self.pointer, code.mul(index, code.number(self.bytes)))
        return code.select(code.icmp_signed("<", row, count), there, self.nowhere)


@dataclass(frozen=True)
class InnerStepsInRecords:
    """Current word (step of an inner sequence) of each row, in the records (values) of its lane (slot).

    axis: the axis of the inner sequences.
    done: the number of words that each row has done.
    reverse: whether rows run from their last word to the first.
    """

    call: CallCode
    axis: str
    done: ir.Value
    reverse: bool

    def at(self, code: Code, row: ir.Value, count: ir.Value) -> ir.Value:
        """Computes the pointer to the current word (step of an inner sequence) of a row (a sequence that runs
        now), in the records that an earlier loop has written: the memory with the values of each word. For
        row `count` and later ones, it is that of a buffer that is never read.

        Rows are ordered by their number of words: the table `inner_rows` has the lane of each (its place in
        the arrays), whose records have the words.
        """
        call, inner_step = self.call, self.done
        if self.reverse:
            inner_step = code.sub(code.sub(call.read("inner_count", row), code.number(1)), inner_step)
        lane = call.read("inner_rows", row)
        stride = code.number(call.program.strides[f"kept {self.axis}"])
        there = code.at(record_of(call, "kept", self.axis, lane), code.mul(inner_step, stride))
        return code.select(code.icmp_signed("<", row, count), there, call.pointer["nowhere"])


def emit_inner(call: CallCode, stage: StageCode, base: ir.Value, loop: InnerLoop) -> None:
    """Writes an inner recurrence, which runs over the inner sequence of each row within one step. It takes
    one word (step of the inner sequences) at a time, for all rows that have so many. The final memories
    (recurrent states) of rows without words are the initial ones.

    base: the index of the step's first row in the block of steps. loop: the copies and loops to write.
    """
    code, zero = call.code, call.code.number(0)
    now, following = call.pointer["inner_now"], call.pointer["inner_next"]
    rank(call, stage, base, loop)
    call.wait()
    with stage.own_rows() as row:
        copy_row(call, stage, row, loop.begin, {"inner now": now})
        with code.when(code.icmp_signed("==", call.read("inner_count", row), zero)):
            copy_row(call, stage, row, loop.end, {"inner next": now})
    call.wait()
    with code.goto_entry_block():
        left = code.alloca(I64)
    code.store(stage.rows.count, left)
    has_rows = code.icmp_signed(">", stage.rows.count, zero)
    longest = code.select(has_rows, call.read("inner_count", zero), zero)
    with code.loop(zero, longest) as done:
        drop_ended(call, left, done)
        is_odd = code.icmp_signed("!=", code.and_(done, code.number(1)), zero)
        before, after = code.select(is_odd, following, now), code.select(is_odd, now, following)
        rows = rows_at(call, loop, code.load(left), done, {"inner now": before, "inner next": after})
        write_inner_step(call, replace(stage, net=loop.body, rows=rows), loop, done)
        with replace(stage, rows=rows).own_rows() as row:
            ends = code.icmp_signed("==", call.read("inner_count", row), code.add(done, code.number(1)))
            with code.when(ends):
                copy_row(call, stage, row, loop.end, {"inner next": after})


def rank(call: CallCode, stage: StageCode, base: ir.Value, loop: InnerLoop) -> None:
    """Writes code that sorts a step's rows by their number of words (steps of inner sequences), most first.

    A row is a sequence at this step. The code stores, in tables by position in this order, each row's lane
    (the slot that runs its sequence), first word to run and number of words. base: the step's first row in
    the block.
    """
    code, rows = call.code, stage.rows.count
    with code.goto_entry_block():
        cell = code.alloca(I64)
    with stage.own_rows() as lane:
        first, count = range_of(call, base, lane, loop.axis)
        code.store(code.number(0), cell)
        with code.loop(code.number(0), rows) as other:
            _, other_count = range_of(call, base, other, loop.axis)
            is_tie = code.and_(code.icmp_signed("==", other_count, count), code.icmp_signed("<", other, lane))
            is_before = code.or_(code.icmp_signed(">", other_count, count), is_tie)
            code.store(code.add(code.load(cell), code.zext(is_before, I64)), cell)
        index = code.load(cell)
        if loop.reverse:
            first = code.sub(code.add(first, count), code.number(1))
        for name, value in (("inner_rows", lane), ("inner_first", first), ("inner_count", count)):
            call.set(name, index, value)


def copy_row(
    call: CallCode,
    stage: StageCode,
    row: ir.Value,
    copies: Sequence[CopyLoop],
    memories: Mapping[str, ir.Value],
) -> None:
    """Writes copies of the values of one row (a sequence) between an inner recurrence and the step around it:
    of initial memories (recurrent states) and statics (values that all inner steps read) to the inner
    recurrence, or of final memories from it.

    row: the index of the row among the rows sorted by their number of inner steps.
    copies: the copies to write.
    memories: the pointers to the inner recurrence's memories, by the name of their record (the kind of memory
    that they lie in).
    """
    code, strides = call.code, call.program.strides
    lane_row = stage.rows.single(code, call.read("inner_rows", row))
    records = {**memories, "inner lane": call.pointer["inner_lane"]}
    inner = {
        record: code.at(pointer, code.mul(row, code.number(strides[record])))
        for record, pointer in records.items()
        if record in strides
    }
    rows = replace(lane_row, pointers={**lane_row.pointers, **inner})
    for copy in copies:
        emit(replace(stage, rows=rows, thread=code.number(0), threads=code.number(1)), copy)


def drop_ended(call: CallCode, left: ir.Value, done: ir.Value) -> None:
    """Writes code that lowers the number of active rows (sequences), in the stack slot `left`, to those with
    more than `done` words.

    Rows are sorted by their number of words (inner steps), most first, so those that end are the last.
    """
    code = call.code

    def last_ended() -> ir.Value:
        """Writes a test whether the last active row, with the fewest words (inner steps), has none left."""
        last = code.sub(code.load(left), code.number(1))
        return code.icmp_signed("<=", call.read("inner_count", last), done)

    with code.loop_while(last_ended):
        code.store(code.sub(code.load(left), code.number(1)), left)


def rows_at(
    call: CallCode, loop: InnerLoop, count: ir.Value, done: ir.Value, memories: Mapping[str, ir.Value]
) -> StageRows:
    """Makes the addresses of the values that the next step of an inner recurrence reads and writes, for the
    rows (sequences) that have such a step.

    count: the number of these rows. done: the number of steps before it.
    memories: the pointers to the memories (recurrent states) before and after the step, by the name of the
        record (kind of memory) that they lie in.
    """
    code, program = call.code, call.program
    ahead = code.sub(code.number(0), done) if loop.reverse else done
    outside: dict[str, InnerStepsInArray | InnerStepsInRecords] = {
        array.field.record: InnerStepsInArray(
            call.arrays[array.argument],
            array.field.bytes,
            call.pointer["inner_first"],
            ahead,
            call.pointer["nowhere"],
        )
        for array in program.inner_arrays
        if array.axis == loop.axis
    }
    if f"kept {loop.axis}" in program.strides:
        outside[f"at {loop.axis}"] = InnerStepsInRecords(call, loop.axis, done, loop.reverse)
    pointers = {**memories, "inner lane": call.pointer["inner_lane"]}
    return StageRows(pointers, program.strides, count, outside)


def write_inner_step(call: CallCode, stage: StageCode, loop: InnerLoop, done: ir.Value) -> None:
    """Writes a step of an inner recurrence (a recurrence over inner sequences within a step), for all rows
    with words (inner steps) left (`stage` has these rows).

    done: the number of steps before it, which is stored as the step index if the step reads that.
    """
    code = call.code
    if loop.index is not None:
        with stage.own_rows() as row:
            record = stage.rows.at(code, loop.index.record, row)
            code.write(done, code.at(record, loop.index.offset), 8)
        call.wait()
    for phase in loop.phases:
        for inner_loop in phase:
            emit(stage, inner_loop)
        call.wait()
