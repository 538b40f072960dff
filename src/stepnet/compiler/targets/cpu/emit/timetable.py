"""The machine code that fills the tables of a block: for each row, its sequence and step.

If sequences may end early, lanes begin and end sequences only between blocks (`early.py`).
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.early import output_row, read_ending, set_ending
from stepnet.compiler.targets.cpu.emit.thread_code import ThreadCode
from stepnet.compiler.targets.cpu.machine.call_words import BEGINS, ENDS
from stepnet.compiler.targets.cpu.writing.code import I64, Code


def write_timetable(code: Code) -> None:
    """Writes `driver_timetable(frame, start)`, which fills the tables of a block: for each of its rows the
    sequence and the step, and for each step the first row, the number of rows, and whether sequences begin or
    end (`step_changes`; those that begin in the first step are not noted, as they begin before the block).

    start: the first step of the block.
    """
    call, start = ThreadCode.of_frame(code), code.function.args[1]
    count_cell, row_cell, changes_cell, place_cell = (code.alloca(I64) for _ in range(4))
    code.store(call.argument["lanes"], count_cell)
    with code.when(call.flag["until"]):
        code.store(read_ending(call, "at_work"), count_cell)
    code.store(code.number(0), row_cell)
    with code.loop(code.number(0), call.framed("steps")) as step:
        with code.when(code.not_(call.flag["until"])):
            drop_ended(call, count_cell, code.add(start, step))
        code.store(code.number(0), changes_cell)
        lanes, base = code.load(count_cell), code.load(row_cell)
        call.set("step_base", step, base)
        call.set("step_rows", step, lanes)
        with code.loop(code.number(0), lanes) as lane:
            advance(call, lane, code.add(base, lane), changes_cell, place_cell)
        code.store(code.add(base, lanes), row_cell)
        is_first = code.icmp_signed("==", step, code.number(0))
        noted = code.select(is_first, code.number(ENDS), code.number(BEGINS | ENDS))
        call.set("step_changes", step, code.and_(code.load(changes_cell), noted))
    with code.when(call.flag["until"]):
        set_ending(call, "written", code.add(read_ending(call, "written"), code.load(row_cell)))
    code.ret_void()


def drop_ended(call: ThreadCode, count_cell: ir.Value, step: ir.Value) -> None:
    """Writes code that lowers the number of active lanes (slots for sequences), in stack slot `count_cell`,
    to those that have more than `step` steps in all their sequences together.
    """
    code = call.code

    def some_ended() -> ir.Value:
        """Writes a test whether the last active lane, which has the fewest steps, has none left."""
        count = code.load(count_cell)
        some = code.icmp_signed(">", count, code.number(0))
        last = code.select(some, code.sub(count, code.number(1)), code.number(0))
        return code.and_(some, code.icmp_signed("<=", call.read("lane_steps", last), step))

    with code.loop_while(some_ended):
        code.store(code.sub(code.load(count_cell), code.number(1)), count_cell)


def advance(
    call: ThreadCode, lane: ir.Value, row: ir.Value, changes_cell: ir.Value, place_cell: ir.Value
) -> None:
    """Writes code that gives a row of the block the next step of its lane (a slot that runs sequences one
    after another), and fills the row's table entries, by which later code finds its arrays.

    The step is that of the lane's sequence, or the first of its next one. The stack slot `changes_cell` gets
    the bits `BEGINS` and `ENDS` of sequences that begin or end. place_cell: a stack slot for a number.

    Entries of the row: `owner`, its sequence; `fresh` and `done`, the sequence that begins or ends there,
    else -1; `where` and `put`, the rows of arrays that it reads and writes.
    Entries of the lane: `cursor`, the next position in `order` (all sequences, lane by lane); `current`, its
    sequence; `left`, the steps after this one; `count`, the index of the next step, if steps read it.
    """
    code, ends_early = call.code, call.flag["until"]
    zero, one, minus = code.number(0), code.number(1), code.number(-1)
    counts = code.icmp_signed(">=", call.framed("index"), zero)

    def note(kind: int) -> None:
        """Writes code that sets the bit `kind` (a sequence begins or ends) in `changes_cell`."""
        code.store(code.or_(code.load(changes_cell), code.number(kind)), changes_cell)

    call.set("fresh", row, minus)
    with code.when(code.icmp_signed("==", call.read("left", lane), zero)):
        cursor = call.read("cursor", lane)
        sequence = call.read("order", cursor)
        call.set("cursor", lane, code.add(cursor, one))
        call.set("left", lane, call.read("lengths", sequence))
        call.set("current", lane, sequence)
        with code.when(counts):
            call.set("count", lane, call.read("begun", sequence))
        call.set("fresh", row, sequence)
        note(BEGINS)
    sequence = call.read("current", lane)
    left = code.sub(call.read("left", lane), one)
    where = array_row(call, sequence, left)
    call.set("where", row, where)
    call.set("owner", row, sequence)
    ends = code.and_(code.icmp_signed("==", left, zero), code.not_(ends_early))
    with code.when(ends):
        note(ENDS)
    done = code.select(ends, sequence, minus)
    call.set("done", row, done)
    call.set("put", row, code.select(call.flag["last_only"], done, where))
    with code.when(ends_early):
        call.set("put", row, output_row(call, row, sequence, left, place_cell))
    with code.when(counts):
        count = call.read("count", lane)
        record = code.at(call.pointer["block"], code.mul(row, call.framed("block_bytes")))
        code.write(count, code.at(record, call.framed("index")), 8)
        call.set("count", lane, code.add(count, one))
    call.set("left", lane, left)


def array_row(call: ThreadCode, sequence: ir.Value, left: ir.Value) -> ir.Value:
    """Computes the row of a sequence's step in the user's arrays. left: how many steps are left after it."""
    code = call.code
    forward = code.sub(code.sub(call.read("lengths", sequence), left), code.number(1))
    step = code.select(call.flag["reverse"], left, forward)
    return code.add(call.read("starts", sequence), call.read("step_offsets", step))
