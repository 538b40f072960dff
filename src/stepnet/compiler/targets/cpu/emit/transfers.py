"""The machine code of copies between the user's arrays and records: inputs, outputs, initial and final
memories.
"""

from llvmlite import ir

from stepnet.compiler.native.call_words import BEGINS, ENDS
from stepnet.compiler.targets.cpu.emit.call_code import CallCode
from stepnet.compiler.targets.cpu.emit.copies import emit_copy
from stepnet.compiler.targets.cpu.emit.stage import StageCode, StageRows
from stepnet.compiler.targets.cpu.lower.loops import CopyLoop
from stepnet.compiler.targets.cpu.machine.records import Field, RowSource


def gather(call: CallCode, rows: ir.Value) -> None:
    """Writes copies of inputs, and of values per sequence that every step reads, from the arrays of the call
    to the buffer of a block of steps (those computed together), row by row.

    Inputs that loops read in place are not among them. rows: the number of rows of the block.
    """
    code = call.code
    if not call.program.inputs and not call.program.expanded:
        return
    with code.loop(*call.own_rows(rows)) as row:
        where, owner = call.read("where", row), call.read("owner", row)
        for word, field in call.program.inputs:
            source = code.at(call.arrays[word], code.mul(where, code.number(field.bytes)))
            code.copy_bytes(call.block_field(row, field), source, field.bytes)
        for source, field in call.program.expanded:
            code.copy_bytes(call.block_field(row, field), call.of_sequence(source, owner), source.bytes)


def scatter(call: CallCode, rows: ir.Value) -> None:
    """Writes copies of results from the buffer of a block of steps (those computed together) to the arrays of
    the call. Threads divide the rows.

    The outputs of a row are copied to the row of the user's array that the table `put` names, if that is not
    below 0: it is the row of the step, or of the sequence if only last steps are wanted. Values of every step
    that the work after the loop needs (`kept`) are copied as well.

    rows: the number of rows in the buffer.
    """
    code = call.code
    if not call.program.outputs and not call.program.kept:
        return
    block = call.rows(code.number(0), rows)

    def put(outputs: tuple[tuple[int, Field], ...], index: ir.Value, row: ir.Value) -> None:
        """Writes copies of outputs of row `row` of a block of steps (those computed together) to row `index`
        of the caller's arrays. outputs: pairs of the array's number and the field (position in a row).
        """
        for word, field in outputs:
            target = code.at(call.arrays[word], code.mul(index, code.number(field.bytes)))
            source = code.at(block.at(code, field.record, row), field.offset)
            code.copy_bytes(target, source, field.bytes)

    with code.loop(*call.own_rows(rows)) as row:
        if call.program.outputs:
            index = call.read("put", row)
            with code.when(code.icmp_signed(">=", index, code.number(0))):
                put(call.program.outputs, index, row)
        if call.program.kept:
            put(call.program.kept, call.read("where", row), row)


def begin_sequences(call: CallCode, step: ir.Value, now: ir.Value) -> None:
    """Writes the code ahead of a step of a block of steps (those computed together). For sequences that begin
    in it, the initial memories (recurrent states) and statics (values that all their steps read) are loaded.
    If sequences may end early, a step is counted for those that have not.

    Sequences that begin in the block's first step have been loaded before the block.

    now: the pointer to the memories before the step.
    """
    code = call.code
    with code.when(call.changes(step, BEGINS)):
        code.function_call("driver_begin", ir.VoidType(), [call.frame, step, now])
    with code.when(call.flag["until"]):
        code.function_call("driver_count", ir.VoidType(), [call.frame, step, now])


def end_sequences(call: CallCode, step: ir.Value, following: ir.Value) -> None:
    """Writes stores of the final memories (recurrent states) of those sequences that end with a step of a
    block of steps (those computed together). following: the pointer to the memories after the step.
    """
    code = call.code
    if any(final >= 0 for _, final, _ in call.program.memories):
        with code.when(call.changes(step, ENDS)):
            code.function_call("driver_end", ir.VoidType(), [call.frame, step, following])


def begin(call: CallCode, lane: ir.Value, sequence: ir.Value, now: ir.Value) -> None:
    """Writes code that begins a sequence in a lane (a slot for sequences): its initial memories (recurrent
    states) are copied to the buffer `now`, and its statics (values that all its steps read) beside them.
    """
    records = records_of(call, lane, now)
    for (source, _, field), relaid in zip(call.program.memories, call.program.relaid, strict=True):
        begin_memory(call, source, sequence, records[field.record], field, relaid[0] if relaid else None)
    for source, field, into in call.program.statics:
        put(call, call.of_sequence(source, sequence), source.bytes, records[field.record], field, into)


def records_of(call: CallCode, lane: ir.Value, memories: ir.Value) -> dict[str, ir.Value]:
    """Computes pointers to the recurrent state of a lane (slot for sequences), by the name of its buffer.
    "now" has the values that each step writes to a second buffer; "lane" has those updated in place.

    memories: the pointer to the first of these two buffers, which is swapped after each step.
    """
    pointers = {"now": memories, "lane": call.pointer["lane"]}
    return {
        record: call.code.at(pointer, call.code.mul(lane, call.code.number(call.program.strides[record])))
        for record, pointer in pointers.items()
    }


def begin_memory(
    call: CallCode,
    source: RowSource,
    sequence: ir.Value,
    record: ir.Value,
    field: Field,
    into: CopyLoop | None,
) -> None:
    """Writes a copy of the initial value of a memory (recurrent state) of a sequence to its field (place in
    memory). It is zeros if it has no source, or if the caller has given no array.

    record: the pointer to the values of the lane (slot) that runs the sequence, among which the field lies.
    into: the copy that stores it fiber by fiber (elements summed to one result, a unit); None if it keeps its
        order.
    """
    code = call.code
    target = code.at(record, field.offset)

    def copy() -> None:
        """Writes the copy of the initial memory from its source."""
        put(call, call.of_sequence(source, sequence), source.bytes, record, field, into)

    if source.is_zeros:
        code.zero_bytes(target, field.bytes)
    elif source.field is not None:
        copy()
    else:
        is_given = code.icmp_signed("!=", call.argument_at(source.argument), code.number(0))
        with code.if_else(is_given) as (present, absent):
            with present:
                copy()
            with absent:
                code.zero_bytes(target, field.bytes)


def put(
    call: CallCode, value: ir.Value, count: int, record: ir.Value, field: Field, into: CopyLoop | None
) -> None:
    """Writes a copy of a value of `count` bytes to a field of a record (the memory of a row's values).

    value, record: the pointers to the value and to the record.
    into: the copy that stores it fiber by fiber (elements summed to one result, a unit); None if it keeps its
        order.
    """
    if into is None:
        call.code.copy_bytes(call.code.at(record, field.offset), value, count)
    else:
        rearrange(call, into, {field.record: record, "caller": value})


def end(call: CallCode, lane: ir.Value, sequence: ir.Value, following: ir.Value) -> None:
    """Writes code that stores the final memories (recurrent states) of a sequence that ends to the caller's
    arrays.

    lane: the slot that runs the sequence. following: the pointer to the memories after the last step.
    """
    code, records = call.code, records_of(call, lane, following)
    for (source, final, field), relaid in zip(call.program.memories, call.program.relaid, strict=True):
        if final < 0:
            continue
        target = code.at(call.arrays[final], code.mul(sequence, code.number(source.bytes)))
        if relaid:
            rearrange(call, relaid[1], {field.record: records[field.record], "caller": target})
        else:
            code.copy_bytes(target, code.at(records[field.record], field.offset), field.bytes)


def rearrange(call: CallCode, loop: CopyLoop, records: dict[str, ir.Value]) -> None:
    """Writes a copy of a row's matrix from C order, in the caller's array, to the order of its fibers (the
    elements summed to one result, a unit), or back.

    loop: the copy, in either direction.
    records: the pointer to the caller's matrix, under "caller", and the pointer to the record (memory of the
        row's values) with the other matrix, under the record's name.
    """
    code, program = call.code, call.program
    rows = StageRows(records, dict.fromkeys(records, 0), code.number(1))
    constants, status = call.pointer["constants"], call.pointer["status"]
    only_thread = code.number(0), code.number(1)
    emit_copy(StageCode(code, program.body, rows, constants, status, *only_thread, program.width), loop)
