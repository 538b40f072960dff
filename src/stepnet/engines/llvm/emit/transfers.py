"""The machine code between the user's arrays and the records: inputs, outputs, first and last memories."""

from llvmlite import ir

from stepnet.engines.llvm.emit.call_code import CallCode
from stepnet.engines.llvm.machine.records import Field, Source


def gather(call: CallCode, rows: ir.Value) -> None:
    """The rows of inputs that are copied, and statics seen at every step, put into the block."""
    code = call.code
    if not call.program.inputs and not call.program.expanded:
        return
    with code.loop(call.word["thread"], rows, call.threads) as row:
        where, owner = call.read("where", row), call.read("owner", row)
        for word, field in call.program.inputs:
            source = code.at(call.arrays[word], code.mul(where, code.number(field.bytes)))
            code.copy_bytes(call.block_field(row, field), source, field.bytes)
        for source, field in call.program.expanded:
            code.copy_bytes(call.block_field(row, field), call.of_sequence(source, owner), source.bytes)


def scatter(call: CallCode, rows: ir.Value) -> None:
    """The rows of outputs that are copied put into the user's arrays: every step's, or the last of each
    sequence.
    """
    code = call.code
    if not call.program.outputs and not call.program.kept:
        return
    block = call.rows(code.number(0), rows)

    def put(outputs: tuple[tuple[int, Field], ...], place: ir.Value, row: ir.Value) -> None:
        for word, field in outputs:
            target = code.at(call.arrays[word], code.mul(place, code.number(field.bytes)))
            source = code.at(block.at(code, field.record, row), field.offset)
            code.copy_bytes(target, source, field.bytes)

    with code.loop(call.word["thread"], rows, call.threads) as row:
        if call.program.outputs:
            place = call.read("put", row)
            with code.when(code.icmp_signed(">=", place, code.number(0))):
                put(call.program.outputs, place, row)
        if call.program.kept:
            put(call.program.kept, call.read("where", row), row)


def begin_all(call: CallCode, step: ir.Value, now: ir.Value) -> None:
    """Initial memories and statics of the lanes that begin a sequence in this step."""
    base = call.read("step_base", step)
    with call.code.loop(call.code.number(0), call.read("step_rows", step)) as lane:
        begin(call, lane, call.read("fresh", call.code.add(base, lane)), now)


def begin(call: CallCode, lane: ir.Value, sequence: ir.Value, now: ir.Value) -> None:
    """Initial memories and statics of a lane that begins a sequence."""
    code, strides = call.code, call.program.strides
    with code.when(code.icmp_signed(">=", sequence, code.number(0))):
        memory = code.at(now, code.mul(lane, code.number(strides["now"])))
        for source, _, field in call.program.memories:
            begin_memory(call, source, sequence, code.at(memory, field.offset))
        own = code.at(call.pointer["lane"], code.mul(lane, code.number(strides["lane"])))
        for source, field in call.program.statics:
            code.copy_bytes(code.at(own, field.offset), call.of_sequence(source, sequence), source.bytes)


def begin_memory(call: CallCode, source: Source, sequence: ir.Value, target: ir.Value) -> None:
    """The initial memory of a sequence: zeros where none is given."""
    code = call.code
    if source.field is not None:
        code.copy_bytes(target, call.of_sequence(source, sequence), source.bytes)
        return
    if source.is_zeros:
        code.zero_bytes(target, source.bytes)
        return
    present = code.icmp_signed("!=", call.word_at(source.word), code.number(0))
    with code.when(present):
        code.copy_bytes(target, call.of_sequence(source, sequence), source.bytes)
    with code.when(code.not_(present)):
        code.zero_bytes(target, source.bytes)


def end(call: CallCode, lane: ir.Value, sequence: ir.Value, following: ir.Value) -> None:
    """The last memories of a lane whose sequence ends."""
    code, strides = call.code, call.program.strides
    with code.when(code.icmp_signed(">=", sequence, code.number(0))):
        memory = code.at(following, code.mul(lane, code.number(strides["now"])))
        for _, final, field in call.program.memories:
            if final >= 0:
                target = code.at(call.arrays[final], code.mul(sequence, code.number(field.bytes)))
                code.copy_bytes(target, code.at(memory, field.offset), field.bytes)
