"""The machine code that fills the tables of a block: for each row, its sequence and step.

    lane 0   a a a a b b        steps 0, 3 and 4 are written with all checks, 1 and 2 in a tight loop:
    lane 1   c c c c c c        no lane begins or ends a sequence in these

If sequences may end early, lanes begin and end sequences only between blocks (`early.py`).
"""

from llvmlite import ir

from stepnet.compiler.native.call_words import BEGINS, ENDS
from stepnet.compiler.targets.cpu.emit.early import output_row, read_ending, set_ending
from stepnet.compiler.targets.cpu.emit.thread_code import ThreadCode
from stepnet.compiler.targets.cpu.writing.code import I64, Code


def write_timetable(code: Code) -> None:
    """Writes `driver_timetable(frame, start)`, which fills the tables of a block of steps (those computed
    together): for each of its rows (a sequence at one step) the sequence and the step, and for each step the
    first row, the number of rows, and whether sequences begin or end (`step_changes`; those that begin in the
    first step are not noted, as they begin before the block).

    frame: the pointer to the thread's state. start: the first step of the block.
    """
    call, start = ThreadCode.of_frame(code), code.function.args[1]
    cells = (code.alloca(I64) for _ in range(6))
    count_cell, row_cell, changes_cell, place_cell, step_cell, quiet_cell = cells
    code.store(call.argument["lanes"], count_cell)
    with code.when(call.flag["until"]):
        code.store(read_ending(call, "at_work"), count_cell)
    code.store(code.number(0), row_cell)
    code.store(code.number(0), step_cell)
    steps = call.framed("steps")
    with code.loop_while(lambda: code.icmp_signed("<", code.load(step_cell), steps)):
        step = code.load(step_cell)
        with code.when(code.not_(call.flag["until"])):
            drop_ended(call, count_cell, code.add(start, step))
        code.store(code.number(0), changes_cell)
        first = code.add(step, code.number(1))
        # The next steps in which no lane begins or ends a sequence; none if sequences may end early.
        most = code.select(call.flag["until"], code.number(0), code.sub(steps, first))
        code.store(most, quiet_cell)
        lanes, base = code.load(count_cell), code.load(row_cell)
        call.set("step_base", step, base)
        call.set("step_rows", step, lanes)
        with code.loop(code.number(0), lanes) as lane:
            left = advance(call, lane, code.add(base, lane), changes_cell, place_cell)
            quiet = code.sub(left, code.number(1))
            code.store(code.smaller(code.load(quiet_cell), quiet), quiet_cell)
        code.store(code.add(base, lanes), row_cell)
        is_first = code.icmp_signed("==", step, code.number(0))
        noted = code.select(is_first, code.number(ENDS), code.number(BEGINS | ENDS))
        call.set("step_changes", step, code.and_(code.load(changes_cell), noted))
        quiet = code.load(quiet_cell)
        quiet = code.select(code.icmp_signed("<", quiet, code.number(0)), code.number(0), quiet)
        fill_quiet_steps(call, first, quiet, code.load(row_cell), lanes)
        code.store(code.add(first, quiet), step_cell)
        code.store(code.add(code.load(row_cell), code.mul(quiet, lanes)), row_cell)
    with code.when(call.flag["until"]):
        set_ending(call, "written", code.add(read_ending(call, "written"), code.load(row_cell)))
    code.ret_void()


def fill_quiet_steps(
    call: ThreadCode, first: ir.Value, count: ir.Value, base: ir.Value, lanes: ir.Value
) -> None:
    """Writes code that fills the tables of quiet steps, in which no sequence begins or ends: for each row (a
    sequence at one step) its sequence and the rows of the caller's arrays that it reads and writes, and for
    each step its first row and its number of rows.

    first, count: the first of the steps, and their number. base: the first row of the block of steps (those
    computed together) that is one of theirs. lanes: the number of lanes (slots that run sequences), and so of
    rows of each step.
    """
    code, zero, one, minus = call.code, call.code.number(0), call.code.number(1), call.code.number(-1)
    counts = code.icmp_signed(">=", call.framed("index"), zero)
    with code.loop(zero, lanes) as lane:
        sequence, left = call.read("current", lane), call.read("left", lane)
        start, length = call.read("starts", sequence), call.read("lengths", sequence)
        number = call.read("count", lane)
        begin = code.select(call.flag["reverse"], code.sub(left, one), code.sub(length, left))
        way = code.select(call.flag["reverse"], minus, one)
        with code.loop(zero, count) as ahead:
            row = code.add(code.add(base, lane), code.mul(ahead, lanes))
            step = code.add(begin, code.mul(way, ahead))
            where = code.add(start, call.read("step_offsets", step))
            for table, value in (("where", where), ("owner", sequence), ("fresh", minus), ("done", minus)):
                call.set(table, row, value)
            call.set("put", row, code.select(call.flag["last_only"], minus, where))
            with code.when(counts):
                write_index(call, row, code.add(number, ahead))
        with code.when(counts):
            call.set("count", lane, code.add(number, count))
        call.set("left", lane, code.sub(left, count))
    with code.loop(zero, count) as ahead:
        step = code.add(first, ahead)
        for table, value in (
            ("step_base", code.add(base, code.mul(ahead, lanes))),
            ("step_rows", lanes),
            ("step_changes", zero),
        ):
            call.set(table, step, value)


def write_index(call: ThreadCode, row: ir.Value, index: ir.Value) -> None:
    """Writes a store of the index of a step in its sequence to the memory of its row in the block of steps
    (those computed together), for recurrences whose steps read their index.
    """
    code = call.code
    record = code.at(call.pointer["block"], code.mul(row, call.framed("block_bytes")))
    code.write(index, code.at(record, call.framed("index")), 8)


def drop_ended(call: ThreadCode, count_cell: ir.Value, step: ir.Value) -> None:
    """Writes code that lowers the number of active lanes (slots for sequences), in stack slot `count_cell`,
    to those that have more than `step` steps in all their sequences together. Lanes are sorted by their
    steps, most first.
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
) -> ir.Value:
    """Writes code that gives a row of the block of steps (those computed together) the next step of its lane
    (a slot that runs sequences one after another), and fills the row's table entries, by which later code
    finds its arrays. Returns how many steps of the sequence are left after this one.

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
        write_index(call, row, count)
        call.set("count", lane, code.add(count, one))
    call.set("left", lane, left)
    return left


def array_row(call: ThreadCode, sequence: ir.Value, left: ir.Value) -> ir.Value:
    """Computes the row in the user's arrays of a sequence's step with `left` steps after it. If steps run
    last first, the row is counted from the end.
    """
    code = call.code
    forward = code.sub(code.sub(call.read("lengths", sequence), left), code.number(1))
    step = code.select(call.flag["reverse"], left, forward)
    return code.add(call.read("starts", sequence), call.read("step_offsets", step))
