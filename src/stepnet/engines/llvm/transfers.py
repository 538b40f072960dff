"""The machine code between the user's arrays and the records: inputs, outputs, first and last memories."""

from llvmlite import ir

from stepnet.engines.llvm.call_code import CallCode


def gather(call: CallCode, rows: ir.Value) -> None:
    """The inputs' rows, and statics seen at every step, put into the block."""
    code = call.code
    with code.loop(call.word["thread"], rows, call.threads) as row:
        where, owner = call.read("where", row), call.read("owner", row)
        for word, field in call.program.inputs:
            source = code.at(call.arrays[word], code.mul(where, code.number(field.bytes)))
            code.copy_bytes(call.block_field(row, field), source, field.bytes)
        for source, field in call.program.expanded:
            code.copy_bytes(call.block_field(row, field), call.of_sequence(source, owner), source.bytes)


def scatter(call: CallCode, rows: ir.Value) -> None:
    """The outputs' rows put into the user's arrays: every step's, or each sequence's last."""
    code = call.code
    if not call.program.outputs:
        return
    last_only = code.icmp_signed("!=", call.word["last_only"], code.number(0))
    with code.loop(call.word["thread"], rows, call.threads) as row:
        place = code.select(last_only, call.read("done", row), call.read("where", row))
        with code.when(code.icmp_signed(">=", place, code.number(0))):
            for word, field in call.program.outputs:
                target = code.at(call.arrays[word], code.mul(place, code.number(field.bytes)))
                code.copy_bytes(target, call.block_field(row, field), field.bytes)


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
        for initial, _, field in call.program.memories:
            target = code.at(memory, field.offset)
            given = code.icmp_signed("!=", call.word_at(initial), code.number(0))
            with code.when(given):
                source = code.at(call.arrays[initial], code.mul(sequence, code.number(field.bytes)))
                code.copy_bytes(target, source, field.bytes)
            with code.when(code.not_(given)):
                code.zero_bytes(target, field.bytes)
        own = code.at(call.pointer["lane"], code.mul(lane, code.number(strides["lane"])))
        for source, field in call.program.statics:
            code.copy_bytes(code.at(own, field.offset), call.of_sequence(source, sequence), source.bytes)


def end(call: CallCode, lane: ir.Value, sequence: ir.Value, following: ir.Value) -> None:
    """The last memories of a lane whose sequence ends."""
    code, strides = call.code, call.program.strides
    with code.when(code.icmp_signed(">=", sequence, code.number(0))):
        memory = code.at(following, code.mul(lane, code.number(strides["now"])))
        for _, final, field in call.program.memories:
            target = code.at(call.arrays[final], code.mul(sequence, code.number(field.bytes)))
            code.copy_bytes(target, code.at(memory, field.offset), field.bytes)
