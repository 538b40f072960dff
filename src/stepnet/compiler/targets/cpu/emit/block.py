"""The machine code of a plan's steps: the functions that the driver of a call (`driver_code.py`) calls.

    run      a call of the driver, with the addresses of the following functions and the strides of records

    begin    load the initial memories and the statics of a sequence that begins in a lane
    block    the steps of a block:
                 gather     copy the rows of inputs that are not read in place, and of statics that every
                            step reads
                 before     work that needs no memory, on all rows of the block
                 loop       step by step: begin sequences, run the phases, end sequences
                 after      work that feeds no memory, on all rows of the block
                 scatter    copy the rows of outputs that are not written in place
    end      store the final memories of a sequence that ends in a lane

Several threads either run separate lanes (each with a single-threaded call of `run`), or divide every step:
then each computes some of the unit blocks, with a barrier between phases. Without work in the loop each may
have a part of the rows of every block instead, and a single-threaded call of `run` for it.
"""

from collections.abc import Sequence
from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.native.call_words import BEGINS, ENDS
from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.emit.call_code import CallCode
from stepnet.compiler.targets.cpu.emit.emit import emit
from stepnet.compiler.targets.cpu.emit.inner_recurrence import emit_inner
from stepnet.compiler.targets.cpu.emit.lane_loops import emit_lanes
from stepnet.compiler.targets.cpu.emit.stage import StageRows
from stepnet.compiler.targets.cpu.emit.stretches import write_stretches
from stepnet.compiler.targets.cpu.emit.thread_code import function_code
from stepnet.compiler.targets.cpu.emit.transfers import (
    begin,
    begin_sequences,
    end,
    end_sequences,
    gather,
    scatter,
)
from stepnet.compiler.targets.cpu.lower.driven import CallLoops
from stepnet.compiler.targets.cpu.lower.loops import InnerLoop, LaneLoop, Phase
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code


def write_run(module: ir.Module, prefix: str, program: CallLoops, processor: Processor) -> None:
    """Writes the function `run(words)` of a plan (the operations of a part in their order), which runs the
    sequences of a set of lanes (slots for sequences), and the functions that it needs: "block", "begin" and
    "end".

    It returns 0 when a thread is done, and 1 if it is to be called again, to resume. `words` points to the
    thread's arguments. prefix: the prefix of the functions' names in the module.
    """
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), f"{prefix}run")
    code = Code(function.append_basic_block("entry"), processor)
    names = [f"{prefix}{name}" for name in ("block", "begin", "end")]
    write_block(function_code(module, processor, names[0], ir.VoidType(), [POINTER] * 2), program)
    for name, write in zip(names[1:], (begin, end), strict=True):
        own = function_code(module, processor, name, ir.VoidType(), [POINTER, POINTER, I64, I64, POINTER])
        write(CallCode(own, program), *own.function.args[2:])
        own.ret_void()
    strides = [program.strides[record] for record in ("now", "lane", "block")]
    index = -1 if program.index is None else program.index.offset
    plan = [*map(code.address, names), *map(code.number, (*strides, index))]
    code.ret(code.function_call("driver_run", I64, [*function.args, *plan]))


def write_block(code: Code, program: CallLoops) -> None:
    """Writes the function `block(words, frame)`, which runs a block of steps (those computed together): the
    work before the loop for all of them, the loop, the work after it (each a number of phases, loops between
    two barriers), and copies of inputs and outputs. frame: the pointer to the thread's state.
    """
    call = CallCode(code, program)
    steps, zero = call.framed("steps"), code.number(0)
    last = code.sub(steps, code.number(1))
    rows = code.add(call.read("step_base", last), call.read("step_rows", last))
    gather(call, rows)
    call.wait()
    first, count = zero, rows
    if program.rows_are_alone:
        first, end, _ = call.own_rows(rows)
        count = code.sub(end, first)
    block = call.rows(first, count)
    write_phases(call, program.outer, program.before, block)
    write_steps(call, steps)
    write_phases(call, program.outer, program.after, block)
    scatter(call, rows)
    code.ret_void()


def write_phases(
    call: CallCode, net: Net, phases: Sequence[Phase], rows: StageRows, base: ir.Value | None = None
) -> None:
    """Writes the phases of a stage (the work before, in or after the loop over steps). A phase is loops that
    do not depend on each other; each is followed by a barrier, at which the threads wait for each other. Some
    phases run lane by lane (one sequence's row completely before the next), or over inner sequences.

    net, rows: the graph whose nodes the loops compute, and the addresses of the rows that they run over.
    base: for a step, the first of its rows in the block of steps (those computed together); None outside the
    loop.
    """
    stage = call.stage(net, rows)
    for phase in phases:
        if isinstance(phase, LaneLoop):
            assert base is not None
            emit_lanes(call, stage, base, phase)
        elif isinstance(phase, InnerLoop):
            assert base is not None
            emit_inner(call, stage, base, phase)
        else:
            for loop in phase:
                emit(replace(stage, claims=call.claims), loop)
        call.wait()


def write_steps(call: CallCode, steps: ir.Value) -> None:
    """Writes a loop over the steps of a block of steps (those computed together), unrolled by
    `program.unroll`, and one over the remainder.

    If units (features of the memory) depend on no other units, stretches (steps with the same rows) are
    written instead. Where the steps have no work, only those in which sequences begin or end are run.
    """
    code, unroll = call.code, call.program.unroll
    if call.program.rows_are_alone:
        with (
            code.loop(code.number(0), steps) as step,
            code.when(code.or_(call.changes(step, BEGINS | ENDS), call.flag["until"])),
        ):
            write_step(call, step)
        return
    if call.program.units_are_alone:
        write_stretches(call, steps)
        return
    unrolled_end = code.number(0)
    if unroll > 1:
        unrolled_end = code.mul(code.sdiv(steps, code.number(unroll)), code.number(unroll))
        with code.loop(code.number(0), unrolled_end, unroll) as first:
            for ahead in range(unroll):
                write_step(call, code.add(first, code.number(ahead)))
    with code.loop(unrolled_end, steps) as step:
        write_step(call, step)


def write_step(call: CallCode, step: ir.Value) -> None:
    """Writes a step of the loop, for all running sequences: begins and ends sequences, runs the loops over
    their values, and exchanges the buffers of the memories (recurrent states) before and after the step.
    step: its number in the block of steps (those computed together).
    """
    code = call.code
    now, following = call.framed("now", POINTER), call.framed("next", POINTER)
    base, rows = call.read("step_base", step), call.read("step_rows", step)
    begin_sequences(call, step, now)
    here = call.rows(base, rows, now=now, next=following, lane=call.pointer["lane"])
    write_phases(call, call.program.body, call.program.loop, here, base)
    end_sequences(call, step, following)
    code.write(following, call.cell("now"), 8)
    code.write(now, call.cell("next"), 8)
