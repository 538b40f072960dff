"""The machine code that fills the tables of a block: for each row, its sequence and step.

If sequences may end early, lanes begin and end sequences only between blocks (`early.py`).
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.call_code import CallCode
from stepnet.compiler.targets.cpu.emit.early import ending, put_behind, set_ending


def write_timetable(call: CallCode, start: ir.Value, steps: ir.Value) -> None:
    """Writes code that fills the tables of a block: for each of its rows the sequence and the step, and for
    each step the first row, the number of rows, and whether a sequence begins (`step_fresh`).

    start, steps: the first step of the block, and its number of steps.
    """
    code = call.code
    count_cell, row_cell, fresh_cell = call.count_cell, call.row_cell, call.fresh_cell
    code.store(call.word["lanes"], count_cell)
    with code.when(call.ends_early):
        code.store(ending(call, "at_work"), count_cell)
    code.store(code.number(0), row_cell)
    with code.loop(code.number(0), steps) as step:
        with code.when(code.not_(call.ends_early)):
            drop_ended(call, count_cell, code.add(start, step))
        code.store(code.number(0), fresh_cell)
        lanes, base = code.load(count_cell), code.load(row_cell)
        code.write_number(base, call.table["step_base"], step)
        code.write_number(lanes, call.table["step_rows"], step)
        with code.loop(code.number(0), lanes) as lane:
            advance(call, lane, code.add(base, lane), fresh_cell)
        code.store(code.add(base, lanes), row_cell)
        code.write_number(code.load(fresh_cell), call.table["step_fresh"], step)
    with code.when(call.ends_early):
        set_ending(call, "written", code.add(ending(call, "written"), code.load(row_cell)))


def drop_ended(call: CallCode, count_cell: ir.Value, step: ir.Value) -> None:
    """Writes code that lowers the number of active lanes, in the stack slot `count_cell`, to those that have
    more than `step` steps in all their sequences together.
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


def advance(call: CallCode, lane: ir.Value, row: ir.Value, fresh_cell: ir.Value) -> None:
    """Writes code that gives a row of the block the next step of its lane, and fills the row's table entries.

    The step is that of the lane's sequence, or the first of its next one; the stack slot `fresh_cell` is then
    set to 1.

    Entries of the row: `owner`, its sequence; `fresh` and `done`, the sequence that begins or ends there,
    else -1; `where` and `put`, the rows of arrays that it reads and writes.
    Entries of the lane: `cursor`, the next position in `order` (all sequences, lane by lane); `current`, its
    sequence; `left`, the steps after this one; `count`, the index of the next step, if steps read it.
    """
    code, table = call.code, call.table
    minus = code.number(-1)
    code.write_number(minus, table["fresh"], row)
    with code.when(code.icmp_signed("==", call.read("left", lane), code.number(0))):
        cursor = call.read("cursor", lane)
        sequence = call.read("order", cursor)
        code.write_number(code.add(cursor, code.number(1)), table["cursor"], lane)
        code.write_number(call.read("lengths", sequence), table["left"], lane)
        code.write_number(sequence, table["current"], lane)
        if call.program.index is not None:
            code.write_number(call.read("begun", sequence), table["count"], lane)
        code.write_number(sequence, table["fresh"], row)
        code.store(code.number(1), fresh_cell)
    sequence = call.read("current", lane)
    left = code.sub(call.read("left", lane), code.number(1))
    where = array_row(call, sequence, left)
    code.write_number(where, table["where"], row)
    code.write_number(sequence, table["owner"], row)
    ended = code.select(code.icmp_signed("==", left, code.number(0)), sequence, minus)
    code.write_number(code.select(call.ends_early, minus, ended), table["done"], row)
    code.write_number(code.select(call.last_only, ended, where), table["put"], row)
    with code.when(call.ends_early):
        code.write_number(put_behind(call, row, sequence, left), table["put"], row)
    if call.program.index is not None:
        count = call.read("count", lane)
        code.write(count, call.block_field(row, call.program.index), 8)
        code.write_number(code.add(count, code.number(1)), table["count"], lane)
    code.write_number(left, table["left"], lane)


def array_row(call: CallCode, sequence: ir.Value, left: ir.Value) -> ir.Value:
    """Computes the row of a sequence's step in the user's arrays. left: how many steps are left after it."""
    code = call.code
    forward = code.sub(code.sub(call.read("lengths", sequence), left), code.number(1))
    step = code.select(call.is_reverse, left, forward)
    return code.add(call.read("starts", sequence), call.read("step_offsets", step))
