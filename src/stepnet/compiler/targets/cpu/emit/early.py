"""The machine code of sequences that end early: a lane whose sequence has ended takes the next one waiting.

    waiting  e f g      lanes  a b c d      b and d have ended   ->   waiting  g      lanes  a c e f

A sequence ends when one of its memories, a bool flag, becomes True, or after its last step. Its number of
steps is not known ahead of the call, and so neither is the lane that runs it. All sets of lanes take
sequences from one queue: a table, and an index that is incremented atomically.

Lanes change only between blocks of steps, and a block is no longer than the rest of any lane's sequence. With
many lanes a block has one step. With few lanes it has several, because the work ahead of the loop would take
as long for one step as for several. Then a lane also computes steps past the end of its sequence, up to the
end of the block.

Output rows are appended in the order in which they are computed, and two tables record the sequence and the
step of each row. Python reorders them, and allocates more buffers (`running/ending.py`).
"""

from llvmlite import ir

from stepnet.compiler.native.call_words import ENDING
from stepnet.compiler.targets.cpu.emit.thread_code import ThreadCode
from stepnet.compiler.targets.cpu.writing.code import I1, I8, I64, POINTER, Code


def write_refill(code: Code) -> None:
    """Writes `driver_refill(frame)`, for calls whose sequences may end early. frame: the pointer to the
    thread's state. It stores the results of finished sequences, begins waiting ones in their lanes (slots for
    sequences), and sizes the next block of steps (those computed together). It also records whether the
    block's outputs have room.
    """
    call, count_cell = ThreadCode.of_frame(code), code.alloca(I64)
    now = call.framed("now", POINTER)
    code.store(read_ending(call, "at_work"), count_cell)
    end_all(call, count_cell, now)
    take_all(call, count_cell, now)
    lanes = code.load(count_cell)
    set_ending(call, "at_work", lanes)
    steps = steps_of_block(call, lanes)
    set_ending(call, "steps", steps)
    rows = code.add(read_ending(call, "written"), code.mul(lanes, steps))
    full = code.icmp_signed(">", rows, read_ending(call, "room"))
    set_ending(call, "is_full", code.zext(code.and_(appends_rows(call), full), I64))
    code.ret_void()


def end_all(call: ThreadCode, count_cell: ir.Value, now: ir.Value) -> None:
    """Writes code that stores the results (final memories, which are recurrent states, and the number of
    steps taken) of finished sequences and frees their lanes (slots for sequences).

    The last active lane moves to the lane that became free. count_cell: the stack slot of the number of
    active lanes. now: the pointer to the memories of all lanes.
    """
    code, zero, one = call.code, call.code.number(0), call.code.number(1)
    lanes = code.load(count_cell)
    with code.loop(zero, lanes) as number:
        lane = code.sub(code.sub(lanes, number), one)
        is_finished = code.icmp_signed("==", call.read("left", lane), zero)
        with code.when(code.or_(is_finished, has_ended(call, lane, now))):
            sequence = call.read("current", lane)
            call.call_plan("end", lane, sequence, now)
            step_counts = code.inttoptr(read_ending(call, "taken"), POINTER)
            code.write_number(call.read("ran", lane), step_counts, sequence)
            last = code.sub(code.load(count_cell), one)
            code.store(last, count_cell)
            with code.when(code.icmp_signed("!=", last, lane)):
                move(call, last, lane, now)


def take_all(call: ThreadCode, count_cell: ir.Value, now: ir.Value) -> None:
    """Writes code that begins waiting sequences in free lanes (slots for sequences), until either runs out.

    Other sets of lanes take from the same queue, so its index is increased atomically. count_cell: the stack
    slot of the number of active lanes. now: the pointer to the memories (recurrent states) of all lanes.
    Where steps read their own index (the word "index" is not below 0), the count of steps of a sequence
    begins at its number of steps from earlier calls, "begun".
    """
    code = call.code
    waiting = code.word_pointer(code.inttoptr(read_ending(call, "waiting"), POINTER))
    sequences, taken_cell = read_ending(call, "sequences"), code.alloca(I64)

    def takes_one() -> ir.Value:
        """Writes code that takes the next waiting sequence if a lane is free; returns whether it did.

        The position of this sequence in the queue is then in the stack slot `taken_cell`.
        """
        code.store(sequences, taken_cell)
        with code.when(code.icmp_signed("<", code.load(count_cell), call.argument["lanes"])):
            index = code.atomic_rmw("add", waiting, code.number(1), "monotonic")
            code.store(index, taken_cell)
        return code.icmp_signed("<", code.load(taken_cell), sequences)

    counts = code.icmp_signed(">=", call.framed("index"), code.number(0))
    with code.loop_while(takes_one):
        lane, sequence = code.load(count_cell), call.read("order", code.load(taken_cell))
        call.set("current", lane, sequence)
        call.set("left", lane, call.read("lengths", sequence))
        call.set("ran", lane, code.number(0))
        with code.when(counts):
            call.set("count", lane, call.read("begun", sequence))
        call.call_plan("begin", lane, sequence, now)
        code.store(code.add(lane, code.number(1)), count_cell)


def move(call: ThreadCode, source: ir.Value, lane: ir.Value, now: ir.Value) -> None:
    """Writes code that moves a running sequence, as only the first lanes are active, from lane (slot for
    sequences) `source` to `lane`: its counters, its memories (recurrent states) and its statics (values that
    all its steps read).

    now: the pointer to the memories of all lanes.
    """
    code = call.code
    for name in ("current", "left", "ran", "count"):
        call.set(name, lane, call.read(name, source))
    for records, stride in (
        (now, call.framed("now_bytes")),
        (call.pointer["lane"], call.framed("lane_bytes")),
    ):
        pointers = (code.at(records, code.mul(lane_index, stride)) for lane_index in (lane, source))
        code.function_call("llvm.memcpy.p0.p0.i64", ir.VoidType(), [*pointers, stride, ir.Constant(I1, 0)])


def steps_of_block(call: ThreadCode, lanes: ir.Value) -> ir.Value:
    """Writes code that computes how many steps the next block has, after which lanes (slots that run
    sequences) may take other sequences; returns it. It is the fewest steps left in any lane, within the
    limits of steps and rows, and at least 1. lanes: the number of active lanes.
    """
    code, one, steps_cell = call.code, call.code.number(1), call.code.alloca(I64)
    some = code.icmp_signed(">", lanes, one)
    fitting = code.sdiv(read_ending(call, "most_rows"), code.select(some, lanes, one))
    steps = code.smaller(fitting, read_ending(call, "most_steps"))
    code.store(code.select(code.icmp_signed(">", steps, one), steps, one), steps_cell)
    with code.loop(code.number(0), lanes) as lane:
        code.store(code.smaller(code.load(steps_cell), call.read("left", lane)), steps_cell)
    return code.load(steps_cell)


def count_steps(call: ThreadCode, lanes: ir.Value, now: ir.Value) -> None:
    """Writes code that counts a step for each lane (slot) whose sequence has not ended early, as a flag among
    its memories (recurrent states) says.

    lanes: the number of active lanes. now: the pointer to their memories before the step.
    """
    code = call.code
    with code.loop(code.number(0), lanes) as lane:
        goes_on = code.zext(code.not_(has_ended(call, lane, now)), I64)
        call.set("ran", lane, code.add(call.read("ran", lane), goes_on))


def output_row(
    call: ThreadCode, row: ir.Value, sequence: ir.Value, left: ir.Value, place_cell: ir.Value
) -> ir.Value:
    """Writes code that chooses the row of the output buffer for a row (a sequence's step) of the block of
    steps, if sequences may end early; returns it.

    If the outputs of all steps are wanted, it is output row `row` after those of earlier blocks, and the
    tables of output rows get its sequence and step. If only last steps are wanted, it is the index of the
    sequence.

    row: the row's number in the block.
    left: the number of steps of the sequence after this one.
    place_cell: a stack slot, in which the result is formed.
    """
    code = call.code
    index = code.add(read_ending(call, "written"), row)
    code.store(sequence, place_cell)
    with code.when(appends_rows(call)):
        step = code.sub(code.sub(call.read("lengths", sequence), left), code.number(1))
        for name, value in (("row_sequence", sequence), ("row_step", step)):
            code.write_number(value, code.inttoptr(read_ending(call, name), POINTER), index)
        code.store(index, place_cell)
    return code.load(place_cell)


# ---- the words `ENDING` of a set of lanes


def read_ending(call: ThreadCode, name: str) -> ir.Value:
    """Writes a load of a 64-bit word of the state that a set of lanes (slots that run sequences) has if its
    sequences may end early. name: one of `ENDING`, such as "steps".
    """
    return call.code.read(I64, call.code.at(call.pointer["until"], 8 * ENDING.index(name)), 8)


def set_ending(call: ThreadCode, name: str, value: ir.Value) -> None:
    """Writes a store of `value` to a 64-bit word of the state that a set of lanes (slots that run sequences)
    has if its sequences may end early. name: one of `ENDING`, such as "steps".
    """
    call.code.write(value, call.code.at(call.pointer["until"], 8 * ENDING.index(name)), 8)


def appends_rows(call: ThreadCode) -> ir.Value:
    """Writes a test whether every step of a sequence appends a row to the outputs. If not, a sequence has a
    single output row, which each of its steps overwrites, since only the last one is wanted.
    """
    return call.code.icmp_signed("!=", read_ending(call, "room"), call.code.number(0))


def has_ended(call: ThreadCode, lane: ir.Value, now: ir.Value) -> ir.Value:
    """Writes a test whether the sequence of a lane (slot) has ended early. A flag among its memories
    (recurrent states) says so. now: the pointer to the memories of all lanes.
    """
    code = call.code
    memory = code.at(now, code.mul(lane, call.framed("now_bytes")))
    flag = code.read(I8, code.at(memory, read_ending(call, "flag")), 1)
    return code.icmp_unsigned("!=", flag, ir.Constant(I8, 0))
