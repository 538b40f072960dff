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

from stepnet.compiler.targets.cpu.emit.call_code import CallCode
from stepnet.compiler.targets.cpu.emit.transfers import begin, end
from stepnet.compiler.targets.cpu.machine.call_words import ENDING
from stepnet.compiler.targets.cpu.writing.code import I8, I64, POINTER


def refill(call: CallCode, now: ir.Value) -> None:
    """Writes code that ends finished sequences, begins waiting ones in their lanes, and sizes the next block.

    It also records whether the block's outputs have room. now: the pointer to the memories of all lanes.
    """
    code = call.code
    code.store(ending(call, "at_work"), call.count_cell)
    end_all(call, now)
    take_all(call, now)
    lanes = code.load(call.count_cell)
    set_ending(call, "at_work", lanes)
    steps = steps_of_block(call, lanes)
    set_ending(call, "steps", steps)
    rows = code.add(ending(call, "written"), code.mul(lanes, steps))
    full = code.icmp_signed(">", rows, ending(call, "room"))
    set_ending(call, "is_full", code.zext(code.and_(is_appended(call), full), I64))


def end_all(call: CallCode, now: ir.Value) -> None:
    """Writes code that stores the results of finished sequences and frees their lanes.

    The last active lane moves to the lane that became free. now: the pointer to the memories of all lanes.
    """
    code, zero, one = call.code, call.code.number(0), call.code.number(1)
    lanes = code.load(call.count_cell)
    with code.loop(zero, lanes) as turn:
        lane = code.sub(code.sub(lanes, turn), one)
        is_finished = code.icmp_signed("==", call.read("left", lane), zero)
        with code.when(code.or_(is_finished, has_ended(call, lane, now))):
            sequence = call.read("current", lane)
            end(call, lane, sequence, now)
            step_counts = code.inttoptr(ending(call, "taken"), POINTER)
            code.write_number(call.read("ran", lane), step_counts, sequence)
            last = code.sub(code.load(call.count_cell), one)
            code.store(last, call.count_cell)
            with code.when(code.icmp_signed("!=", last, lane)):
                move(call, last, lane, now)


def take_all(call: CallCode, now: ir.Value) -> None:
    """Writes code that begins waiting sequences in free lanes, until either runs out.

    Other sets of lanes take from the same queue, so its index is increased atomically. now: the pointer to
    the memories of all lanes.
    """
    code = call.code
    waiting = code.word_pointer(code.inttoptr(ending(call, "waiting"), POINTER))
    sequences = ending(call, "sequences")

    def takes_one() -> ir.Value:
        """Writes code that takes the next waiting sequence if a lane is free; returns whether it did.

        The position of this sequence in the queue is then in the stack slot `fresh_cell`.
        """
        code.store(sequences, call.fresh_cell)
        with code.when(code.icmp_signed("<", code.load(call.count_cell), call.word["lanes"])):
            place = code.atomic_rmw("add", waiting, code.number(1), "monotonic")
            code.store(place, call.fresh_cell)
        return code.icmp_signed("<", code.load(call.fresh_cell), sequences)

    with code.loop_while(takes_one):
        lane, sequence = code.load(call.count_cell), call.read("order", code.load(call.fresh_cell))
        code.write_number(sequence, call.table["current"], lane)
        code.write_number(call.read("lengths", sequence), call.table["left"], lane)
        code.write_number(code.number(0), call.table["ran"], lane)
        if call.program.index is not None:
            code.write_number(call.read("begun", sequence), call.table["count"], lane)
        begin(call, lane, sequence, now)
        code.store(code.add(lane, code.number(1)), call.count_cell)


def move(call: CallCode, source: ir.Value, lane: ir.Value, now: ir.Value) -> None:
    """Writes the move of a sequence from lane `source` to `lane`: counters, memories (`now`) and statics."""
    code, strides = call.code, call.program.strides
    for name in ("current", "left", "ran", "count"):
        code.write_number(call.read(name, source), call.table[name], lane)

    def places(pointer: ir.Value, record: str) -> tuple[ir.Value, ir.Value]:
        """Computes the pointers to the records of `lane` and of `source`. pointer: the record of lane 0."""
        stride = code.number(strides[record])
        return code.at(pointer, code.mul(lane, stride)), code.at(pointer, code.mul(source, stride))

    code.copy_bytes(*places(now, "now"), strides["now"])
    target, origin = places(call.pointer["lane"], "lane")
    carried = [field for _, field, _ in call.program.statics]
    carried += [field for _, _, field in call.program.memories if field.record == "lane"]
    for field in carried:
        code.copy_bytes(code.at(target, field.offset), code.at(origin, field.offset), field.bytes)


def steps_of_block(call: CallCode, lanes: ir.Value) -> ir.Value:
    """Writes code that computes the steps of the next block: at most the fewest left in any active lane.

    Its limits of steps and rows apply as well, but it has at least 1 step. lanes: the number of active lanes.
    """
    code, one = call.code, call.code.number(1)
    some = code.icmp_signed(">", lanes, one)
    fitting = code.sdiv(ending(call, "most_rows"), code.select(some, lanes, one))
    steps = code.smaller(fitting, ending(call, "most_steps"))
    code.store(code.select(code.icmp_signed(">", steps, one), steps, one), call.row_cell)
    with code.loop(code.number(0), lanes) as lane:
        code.store(code.smaller(code.load(call.row_cell), call.read("left", lane)), call.row_cell)
    return code.load(call.row_cell)


def count_steps(call: CallCode, lanes: ir.Value, now: ir.Value) -> None:
    """Writes code that counts a step for each lane whose sequence has not ended, by a flag in its memory.

    lanes: the number of active lanes. now: the pointer to their memories before the step.
    """
    code = call.code
    with code.loop(code.number(0), lanes) as lane:
        goes_on = code.zext(code.not_(has_ended(call, lane, now)), I64)
        code.write_number(code.add(call.read("ran", lane), goes_on), call.table["ran"], lane)


def put_behind(call: CallCode, row: ir.Value, sequence: ir.Value, left: ir.Value) -> ir.Value:
    """Writes code that finds where the outputs of a row of the block are stored; returns the output row.

    It is that number `row` after those of earlier blocks, and its sequence and step are recorded; or, if only
    last steps are wanted, the index of the sequence. row: the row's number in the block.
    left: the number of steps of the sequence after this one.
    """
    code = call.code
    place = code.add(ending(call, "written"), row)
    code.store(sequence, call.place_cell)
    with code.when(is_appended(call)):
        step = code.sub(code.sub(call.read("lengths", sequence), left), code.number(1))
        for name, value in (("row_sequence", sequence), ("row_step", step)):
            code.write_number(value, code.inttoptr(ending(call, name), POINTER), place)
        code.store(place, call.place_cell)
    return code.load(call.place_cell)


# ---- the words `ENDING` of a set of lanes


def ending(call: CallCode, name: str) -> ir.Value:
    """Writes a load of a word of the state of early ends of sequences. name: one of `ENDING`, as "steps"."""
    return call.code.read(I64, call.code.at(call.pointer["until"], 8 * ENDING.index(name)), 8)


def set_ending(call: CallCode, name: str, value: ir.Value) -> None:
    """Writes a store of a word of the state of early ends of sequences. name: one of `ENDING`, as "steps"."""
    call.code.write(value, call.code.at(call.pointer["until"], 8 * ENDING.index(name)), 8)


def is_appended(call: CallCode) -> ir.Value:
    """Writes a test whether each step appends an output row. If not, only last outputs are wanted: there is a
    row for each sequence, which each step overwrites, and the word "room" is 0.
    """
    return call.code.icmp_signed("!=", ending(call, "room"), call.code.number(0))


def has_ended(call: CallCode, lane: ir.Value, now: ir.Value) -> ir.Value:
    """Writes a test whether a lane's sequence has ended, by the flag in its memories (`now` has all)."""
    code = call.code
    memory = code.at(now, code.mul(lane, code.number(call.program.strides["now"])))
    flag = code.read(I8, code.at(memory, ending(call, "flag")), 1)
    return code.icmp_unsigned("!=", flag, ir.Constant(I8, 0))
