"""The machine code of work lane by lane: on one row of the step, and on the words of its inner sequences.

    for each lane:                          lanes are divided among threads
        words    offsets[row] to offsets[row + 1] of each axis
        loops    over the row, or over its words: the same code as over the rows of a stage

The records of the row are the same for all its words, so they have stride 0 there. Values of words have
separate records: each thread has as many as the longest inner sequence needs.
"""

from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.call_code import CallCode
from stepnet.compiler.targets.cpu.emit.emit import emit
from stepnet.compiler.targets.cpu.emit.stage import InOrder, OneRow, StageCode, StageRows
from stepnet.compiler.targets.cpu.lower.loops import LaneLoop


def emit_lanes(call: CallCode, stage: StageCode, base: ir.Value, loop: LaneLoop) -> None:
    """Writes loops that run lane by lane: a lane (slot for sequences) completes all of them before the next
    lane begins, so that what they share stays in the cache. A loop goes over the lane's row, or over the
    words (steps) of an inner sequence of the row.

    base: the index of the step's first row in the block of steps (those computed together).
    loop: the loops, each with the axis of its inner sequence, or "" if it goes over the row.
    """
    with stage.own_rows() as lane:
        lane_stage = replace(
            stage,
            rows=stage.rows.single(call.code, lane),
            thread=call.code.number(0),
            threads=call.code.number(1),
        )
        axes = {axis for axis, _ in loop.work if axis}
        inner_rows_of = {
            axis.name: replace(
                lane_stage, rows=inner_rows(call, lane_stage.rows, base, lane, axis.name), reaches_beyond=True
            )
            for axis in call.program.axes
            if axis.name in axes
        }
        for axis, work in loop.work:
            emit(inner_rows_of[axis] if axis else lane_stage, work)


def inner_rows(call: CallCode, row: StageRows, base: ir.Value, lane: ir.Value, name: str) -> StageRows:
    """Makes the addresses of the words (steps) of the inner sequence of the row of a lane (a slot that runs a
    sequence), as if they were rows: the code of loops over rows then runs over these words.

    row: the addresses of the lane's row. name: the axis of the inner sequence.
    base: the index of the step's first row in the block of steps (those computed together).
    """
    code, program = call.code, call.program
    first, count = range_of(call, base, lane, name)
    nowhere = call.pointer["nowhere"]
    outside = {record: OneRow(row.at(code, record, code.number(0))) for record in row.rows_in_place} | {
        array.field.record: InOrder(
            code.at(call.arrays[array.argument], code.mul(first, code.number(array.field.bytes))),
            array.field.bytes,
            nowhere,
        )
        for array in program.inner_arrays
        if array.axis == name
    }
    pointers, strides = dict(row.pointers), dict.fromkeys(row.pointers, 0)
    for kind, owner in (("words", call.argument["thread"]), ("kept", lane)):
        record = f"{kind} {name}"
        if record in program.strides:
            pointers[record] = record_of(call, kind, name, owner)
            strides[record] = program.strides[record]
    return StageRows(pointers, strides, count, outside)


def range_of(call: CallCode, base: ir.Value, lane: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
    """Writes loads of the index of the first word (step of an inner sequence) of a lane's row, and of the
    number of words; returns both. A lane is a slot of the loop that runs one sequence after another.

    base: the step's first row in the block of steps (those computed together). The row of the lane is `lane`
    rows behind it.
    name: the axis of the inner sequences.
    """
    code = call.code
    axis = next(axis for axis in call.program.axes if axis.name == name)
    index = call.read(axis.table, code.add(base, lane))
    first = code.read_number(call.arrays[axis.argument], index)
    return first, code.sub(
        code.read_number(call.arrays[axis.argument], code.add(index, code.number(1))), first
    )


def record_of(call: CallCode, kind: str, name: str, owner: ir.Value) -> ir.Value:
    """Computes the pointer to the record (values) of the first word (step of an inner sequence) of an axis.

    kind: "words" for records that a thread uses again for each row, "kept" for those that each lane (slot for
        sequences) has until the step ends.
    owner: the number of the thread or lane.
    """
    code, strides = call.code, call.program.strides
    records = [record for record in strides if record.startswith(f"{kind} ")]
    ahead = sum(strides[other] for other in records[: records.index(f"{kind} {name}")])
    bytes_per_lane = sum(strides[record] for record in records)
    start = code.mul(owner, code.mul(call.argument["room"], code.number(bytes_per_lane)))
    offset = code.add(start, code.mul(call.argument["room"], code.number(ahead)))
    return code.at(call.pointer["words" if kind == "words" else "kept_words"], offset)
