"""The machine code of a whole call: sequences laid end to end in lanes, block of steps by block of steps.

    for each block of steps:
        schedule   find which step of which sequence each lane runs, and where sequences begin and end
        gather     copy the rows of inputs that are not read in place, and of statics that every step reads
        before     work that needs no memory, on all rows of the block
        loop       step by step: load initial memories of new sequences, run the phases, store final memories
        after      work that feeds no memory, on all rows of the block
        scatter    copy the rows of outputs that are not written in place

A lane starts its next sequence in the step after one ends, so nearly every step is full, without padding.
Lanes are sorted by their number of steps, so the active lanes are always the first. Memory use does not grow
with length: the size of a block depends on the cache, not on the lengths of the sequences.

Several threads either run separate lanes (each with a single-threaded call of `run`), or divide every step:
then each computes some of the unit blocks, with a barrier between phases. A thread that is preempted makes
the others wait, so between blocks late threads are dropped.

`run` returns between two blocks after some time, and resumes there when it is called again, so that signals
are handled during a long call.

Layers of a stack may run as a wavefront, each on a thread: a block of a layer waits until the layer below has
published its outputs for these steps. A call publishes its progress after each block.

If sequences may end early (`emit/early.py`), the assignment of sequences to lanes is not known in advance.
Then lanes take sequences from a queue between blocks, and the call ends when none is left.
"""

from collections.abc import Sequence

from llvmlite import ir

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.emit.call_code import CallCode
from stepnet.compiler.targets.cpu.emit.early import count_steps, ending, refill
from stepnet.compiler.targets.cpu.emit.emit import emit
from stepnet.compiler.targets.cpu.emit.inner_recurrence import emit_inner
from stepnet.compiler.targets.cpu.emit.lane_loops import emit_lanes
from stepnet.compiler.targets.cpu.emit.stage import StageRows
from stepnet.compiler.targets.cpu.emit.stretches import write_stretches
from stepnet.compiler.targets.cpu.emit.timetable import write_timetable
from stepnet.compiler.targets.cpu.emit.transfers import begin_all, begin_later, end_all, gather, scatter
from stepnet.compiler.targets.cpu.lower.loops import InnerLoop, LaneLoop, Phase
from stepnet.compiler.targets.cpu.machine.system import clock
from stepnet.compiler.targets.cpu.threads.waiting import wait_for_steps
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER

# A thread is late if the first thread waits for it for more than a quarter of the time of a block, and for
# more than a millisecond. Slow memory does not delay it by that much; another process on its processor does.
LATE, LATE_SECONDS = 4, 1e-3


def write_call(call: CallCode) -> None:
    """Writes the body of `run`, which computes a call's sequences: a loop over blocks of steps.

    `run` returns 0 when a thread is done, and 1 if it is to be called again, to resume.
    """
    code, zero = call.code, call.code.number(0)
    now_cell, next_cell = code.alloca(POINTER), code.alloca(POINTER)
    begin = call.progress("begin")
    swapped = code.icmp_signed("!=", call.progress("swapped"), zero)
    now, following = call.pointer["now"], call.pointer["next"]
    code.store(code.select(swapped, following, now), now_cell)
    code.store(code.select(swapped, now, following), next_cell)
    code.store(call.threads, call.threads_cell)
    deadline = code.add(call.ticks(), call.word["slice"])
    first = code.icmp_signed("==", begin, zero)
    first = code.and_(first, code.not_(call.ends_early))
    with code.when(first), call.by_first_thread(), code.loop(zero, call.word["lanes"]) as lane:
        code.write_number(code.read_number(call.table["first"], lane), call.table["cursor"], lane)
        code.write_number(zero, call.table["left"], lane)
    with code.loop(begin, call.word["steps"], call.word["block_steps"]) as start:
        call.threads = code.load(call.threads_cell)
        call.shared = code.icmp_signed(">", call.threads, code.number(1))
        stop = code.smaller(code.add(start, call.word["block_steps"]), call.word["steps"])
        await_inputs(call, start, stop, now_cell)
        code.store(code.sub(stop, start), call.steps_cell)
        with code.when(call.ends_early):
            take_sequences(call, start, now_cell)
            code.store(ending(call, "steps"), call.steps_cell)
        start_ticks = call.ticks()
        code.store(zero, call.waited_cell)
        write_block(call, start, code.load(call.steps_cell), now_cell, next_cell)
        with call.by_first_thread():
            pause_or_leave_out(call, start_ticks, deadline)
            call.publish_progress("reached", stop)
        with code.when(code.icmp_signed("<", stop, call.word["steps"])):
            call.wait()
            return_between_blocks(call, stop, now_cell)
    with call.by_first_thread(), code.when(call.sliced):
        call.set_progress("begin", call.word["steps"])
    code.ret(zero)


def take_sequences(call: CallCode, start: ir.Value, now_cell: ir.Value) -> None:
    """Writes code that assigns waiting sequences to lanes ahead of a block, if sequences may end early.

    It returns from `run` if no sequence is left (0), or if the output buffer has no room for the block (1).

    start: the first step of the block.
    now_cell: the stack slot of the pointer to the current memories.
    """
    code, zero = call.code, call.code.number(0)
    with call.by_first_thread():
        refill(call, code.load(now_cell))
    call.wait()
    all_done = code.icmp_signed("==", ending(call, "at_work"), zero)
    with code.when(all_done), call.by_first_thread():
        call.set_progress("begin", call.word["steps"])
    code.return_when(all_done, zero)
    is_full = code.icmp_signed("!=", ending(call, "is_full"), zero)
    with code.when(is_full), call.by_first_thread():
        record_resumption(call, start, now_cell)
    code.return_when(is_full, code.number(1))


def write_block(
    call: CallCode, start: ir.Value, steps: ir.Value, now_cell: ir.Value, next_cell: ir.Value
) -> None:
    """Writes the code for a block of `steps` steps from step `start` on: all stages, and the copies to and
    from it.

    now_cell, next_cell: the stack slots of the pointers to the memories before and after a step.
    """
    code = call.code
    with call.by_first_thread():
        write_timetable(call, start, steps)
        begin_all(call, code.number(0), code.load(now_cell))
    call.wait()
    last = code.sub(steps, code.number(1))
    rows = code.add(call.read("step_base", last), call.read("step_rows", last))
    gather(call, rows)
    call.wait()
    block = call.rows(code.number(0), rows)
    write_phases(call, call.program.outer, call.program.before, block)
    write_steps(call, steps, now_cell, next_cell)
    write_phases(call, call.program.outer, call.program.after, block)
    scatter(call, rows)


def pause_or_leave_out(call: CallCode, start_ticks: ir.Value, deadline: ir.Value) -> None:
    """Writes the first thread's decisions after a block of steps, which all threads then follow.

    They pause if the deadline has passed. Half of them are left out if one was late: the first thread then
    waited for more than 1 / LATE of the block's time, and for more than LATE_SECONDS.

    start_ticks, deadline: the time at which the block began, and the time of the next pause, in clock ticks.
    """
    code, now = call.code, call.ticks()
    is_due = code.and_(call.sliced, code.icmp_signed(">", now, deadline))
    call.set_progress("pause", code.zext(is_due, I64))
    waited = code.load(call.waited_cell)
    is_large_part = code.icmp_signed(">", waited, code.sdiv(code.sub(now, start_ticks), code.number(LATE)))
    is_long = code.icmp_signed(">", waited, code.number(int(LATE_SECONDS * clock().per_second)))
    with code.when(code.and_(is_large_part, is_long)):
        half = code.sdiv(code.add(call.threads, code.number(1)), code.number(2))
        call.set_progress("threads", half)


def return_between_blocks(call: CallCode, stop: ir.Value, now_cell: ir.Value) -> None:
    """Writes the returns between two blocks: a thread returns 0 if it is left out, and all return 1 if they
    pause.

    A call that pauses records where `run` resumes: at step `stop`, with the memories that `now_cell`, a stack
    slot, points to.
    """
    code, threads = call.code, call.progress("threads")
    pause = code.icmp_signed("!=", call.progress("pause"), code.number(0))
    code.return_when(code.icmp_signed(">=", call.word["thread"], threads), code.number(0))
    with call.by_first_thread(), code.when(pause):
        record_resumption(call, stop, now_cell)
    code.return_when(pause, code.number(1))
    code.store(threads, call.threads_cell)


def record_resumption(call: CallCode, step: ir.Value, now_cell: ir.Value) -> None:
    """Writes stores of where `run` resumes: the step, and which buffer, by `now_cell`, has the memories."""
    code = call.code
    swapped = code.icmp_unsigned("!=", code.load(now_cell), call.pointer["now"])
    call.set_progress("begin", step)
    call.set_progress("swapped", code.zext(swapped, I64))


def await_inputs(call: CallCode, start: ir.Value, stop: ir.Value, now_cell: ir.Value) -> None:
    """Writes a wait, if layers run at once, until the layer below has computed the steps before `stop`.

    If that layer pauses, `run` returns, to resume at step `start`. now_cell: the stack slot of the pointer to
    the current memories.
    """
    code, zero = call.code, call.code.number(0)
    with code.when(code.icmp_signed("!=", call.word["ahead"], zero)):
        ahead = code.inttoptr(call.word["ahead"], POINTER)
        arrived = code.call(wait_for_steps(code), [ahead, stop, call.word["rest"], call.word["clock"]])
        with code.when(code.icmp_signed("==", arrived, zero)):
            record_resumption(call, start, now_cell)
        code.return_when(code.icmp_signed("==", arrived, zero), code.number(1))


def write_phases(
    call: CallCode, net: Net, phases: Sequence[Phase], rows: StageRows, base: ir.Value | None = None
) -> None:
    """Writes the phases of a stage (loops that do not depend on each other), each followed by a barrier.

    net, rows: the graph whose nodes the loops compute, and the addresses of the rows that they run over.
    base: for a step, the first of its rows in the block of steps; None outside the loop.
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
                emit(stage, loop)
        call.wait()


def write_steps(call: CallCode, steps: ir.Value, now_cell: ir.Value, next_cell: ir.Value) -> None:
    """Writes a loop over the steps of a block, unrolled by `program.unroll`, and one over the remainder.

    If units depend on no other units, whole stretches of steps are written instead.

    now_cell, next_cell: the stack slots of the pointers to the memories before and after a step.
    """
    code, unroll = call.code, call.program.unroll
    if call.program.units_are_alone:
        write_stretches(call, steps, now_cell, next_cell)
        return
    whole = code.number(0)
    if unroll > 1:
        whole = code.mul(code.sdiv(steps, code.number(unroll)), code.number(unroll))
        with code.loop(code.number(0), whole, unroll) as first:
            for ahead in range(unroll):
                write_step(call, code.add(first, code.number(ahead)), now_cell, next_cell)
    with code.loop(whole, steps) as step:
        write_step(call, step, now_cell, next_cell)


def write_step(call: CallCode, step: ir.Value, now_cell: ir.Value, next_cell: ir.Value) -> None:
    """Writes one step of all lanes: begin sequences, run the phases, end sequences, swap the memories.

    now_cell, next_cell: the stack slots of the pointers to the memories before and after the step.
    """
    code = call.code
    now, following = code.load(now_cell), code.load(next_cell)
    base, rows = call.read("step_base", step), call.read("step_rows", step)
    begin_later(call, step, now)
    with code.when(call.ends_early), call.by_first_thread():
        count_steps(call, rows, now)
    here = call.rows(base, rows, now=now, next=following, lane=call.pointer["lane"])
    write_phases(call, call.program.body, call.program.loop, here, base)
    end_all(call, step, following)
    code.store(following, now_cell)
    code.store(now, next_cell)
