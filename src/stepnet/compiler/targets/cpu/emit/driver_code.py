"""The machine code of a whole call: sequences laid end to end in lanes, block of steps by block of steps.

    for each block of steps:
        schedule   find which step of which sequence each lane runs, and where sequences begin and end
        block      the plan's own code for the steps of the block (`block.py`)

It does not depend on the plan, and is compiled once for a processor: `run` of a plan calls `driver_run` with
the addresses of the plan's functions, and the code of a plan calls the others of `CALLED` between its loops.
The loader writes their addresses into the code of a plan. A library for C has functions of its own
(`write_called`).

A lane starts its next sequence in the step after one ends, so nearly every step is full, without padding.
Lanes are sorted by their number of steps, so the active lanes are always the first. Memory use does not grow
with length: the size of a block depends on the cache, not on the lengths of the sequences.

A thread that is preempted makes those that share its steps wait, so between blocks late threads are dropped.

`run` returns between two blocks after some time, and resumes there when it is called again, so that signals
are handled during a long call.

Layers of a stack may run as a wavefront, each on a thread: a block of a layer waits until the layer below has
published its outputs for these steps. A call publishes its progress after each block.

If sequences may end early (`emit/early.py`), the assignment of sequences to lanes is not known in advance.
Then lanes take sequences from a queue between blocks, and the call ends when none is left.
"""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.native.call_words import BEGINS, FRAME, PLAN_WORDS, PROGRESS
from stepnet.compiler.native.system import clock
from stepnet.compiler.targets.cpu.emit.early import count_steps, read_ending, write_refill
from stepnet.compiler.targets.cpu.emit.thread_code import ThreadCode, at_entry, function_code
from stepnet.compiler.targets.cpu.emit.timetable import write_timetable
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.threads.waiting import barrier, wait_for_steps, wait_while
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.system_code import write_ticks

VOID = ir.VoidType()
# A thread is late if the first thread waits for it for more than a quarter of the time of a block, and for
# more than a millisecond. Slow memory does not delay it by that much; another process on its processor does.
LATE, LATE_SECONDS = 4, 1e-3


def write_driver(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the driver, for a processor: functions that the machine code of every
    model calls, and that run a call, some steps of all its sequences (a block) at a time.
    """
    module = ir.Module("driver")
    module.triple = ""
    called = [declared(module, name) for name in CALLED]
    write_called(module, processor)
    for function in called:
        function.linkage = ""
    return module


def write_called(module: ir.Module, processor: Processor) -> None:
    """Writes into a module those driver functions that its code calls."""
    for name, (result, arguments, write) in FUNCTIONS.items():
        if name in module.globals:
            write(function_code(module, processor, name, result, arguments))


def declared(module: ir.Module, name: str) -> ir.Function:
    """Declares in a module a function of the driver (it runs calls block by block), for code to call it."""
    result, arguments, _ = FUNCTIONS[name]
    return ir.Function(module, ir.FunctionType(result, arguments), name)


# ---- a call


def write_run(code: Code) -> None:
    """Writes `driver_run(words, ...)`, which each thread of a call runs to compute the call's sequences, in a
    loop over blocks of steps. It returns 0 when the thread is done, and 1 if it is to be called again, to
    resume.

    words: the pointer to the thread's argument words. The other arguments are the `PLAN_WORDS`, facts of the
        model's own code, such as the addresses of its functions.
    """
    arguments, *plan = code.function.args
    frame = code.inttoptr(code.ptrtoint(code.alloca(I64, code.number(len(FRAME))), I64), POINTER)
    call, zero = ThreadCode(code, arguments, frame), code.number(0)
    # All other words are stored before the number of threads.
    progress = code.inttoptr(call.argument["progress"], POINTER)
    code.call(wait_while(code), [progress, zero, call.argument["rest"], call.argument["clock"]])
    swapped = code.icmp_signed("!=", call.progress("swapped"), zero)
    now, following = call.pointer["now"], call.pointer["next"]
    values = dict(zip(PLAN_WORDS, plan, strict=True)) | {
        "words": arguments,
        "now": code.select(swapped, following, now),
        "next": code.select(swapped, now, following),
        "threads": call.progress("threads"),
    }
    for name, value in values.items():
        code.write(value, call.cell(name), 8)
    begin, deadline = call.progress("begin"), code.add(ticks(call), call.argument["slice"])
    is_new = code.and_(code.icmp_signed("==", begin, zero), code.not_(call.flag["until"]))
    with code.when(is_new), call.by_first_thread(), code.loop(zero, call.argument["lanes"]) as lane:
        call.set("cursor", lane, call.read("first", lane))
        call.set("left", lane, zero)
    with code.loop(begin, call.argument["steps"], call.argument["block_steps"]) as start:
        result = code.function_call("driver_block", I64, [frame, start, deadline])
        code.return_when(code.icmp_signed("!=", result, zero), code.sub(result, code.number(1)))
    with call.by_first_thread(), code.when(call.flag["slice"]):
        call.set_progress("begin", call.argument["steps"])
    code.ret(zero)


def write_block(code: Code) -> None:
    """Writes `driver_block(frame, start, deadline)`, which computes one block of steps (those computed
    together), from step `start` on. frame: the pointer to the thread's state. It returns 0 to go on with the
    next block, 1 if this thread is done, and 2 if the call pauses.

    deadline: the time of the next pause, in clock ticks.
    """
    frame, start, deadline = code.function.args
    call, zero = ThreadCode.of_frame(code), code.number(0)
    stop = code.smaller(code.add(start, call.argument["block_steps"]), call.argument["steps"])
    await_inputs(call, start, stop)
    code.write(code.sub(stop, start), call.cell("steps"), 8)
    with code.when(call.flag["until"]):
        take_sequences(call, start)
        code.write(read_ending(call, "steps"), call.cell("steps"), 8)
    start_ticks = ticks(call)
    code.write(zero, call.cell("waited"), 8)
    with call.by_first_thread():
        code.function_call("driver_timetable", VOID, [frame, start])
    code.function_call("driver_begin", VOID, [frame, zero, call.framed("now", POINTER)])
    call.call_plan("block")
    with call.by_first_thread():
        pause_or_leave_out(call, start_ticks, deadline)
        reached = code.at(call.pointer["progress"], 8 * PROGRESS.index("reached"))
        # Another thread that reads it sees all earlier stores.
        code.store_atomic(stop, code.word_pointer(reached), "release", 8)
    code.return_when(code.icmp_signed(">=", stop, call.argument["steps"]), zero)
    call.wait()
    return_between_blocks(call, stop)
    code.ret(zero)


def await_inputs(call: ThreadCode, start: ir.Value, stop: ir.Value) -> None:
    """Writes a wait until the layer below has computed the steps before `stop`, if the layers of a stack run
    at the same time, each in a call of its own.

    If that layer pauses, the generated function returns, and resumes at step `start` when it is called again.
    """
    code, zero = call.code, call.code.number(0)
    with code.when(call.flag["ahead"]):
        waits = [call.pointer["ahead"], stop, call.argument["rest"], call.argument["clock"]]
        arrived = code.call(wait_for_steps(code), waits)
        with code.when(code.icmp_signed("==", arrived, zero)):
            record_resumption(call, start)
        code.return_when(code.icmp_signed("==", arrived, zero), code.number(2))


def take_sequences(call: ThreadCode, start: ir.Value) -> None:
    """Writes code that assigns waiting sequences to lanes (slots for sequences) ahead of a block of steps
    (those computed together), if sequences may end early.

    The function that the code is in, `driver_block`, then returns 1 if no sequence is left, which ends the
    call; or 2 if the output buffer has no room for the block, so that the call pauses and resumes at it.

    call: the code of a thread of the call. start: the first step of the block.
    """
    code, zero = call.code, call.code.number(0)
    with call.by_first_thread():
        code.function_call("driver_refill", VOID, [call.frame])
    call.wait()
    all_done = code.icmp_signed("==", read_ending(call, "at_work"), zero)
    with code.when(all_done), call.by_first_thread():
        call.set_progress("begin", call.argument["steps"])
    code.return_when(all_done, code.number(1))
    is_full = code.icmp_signed("!=", read_ending(call, "is_full"), zero)
    with code.when(is_full), call.by_first_thread():
        record_resumption(call, start)
    code.return_when(is_full, code.number(2))


def pause_or_leave_out(call: ThreadCode, start_ticks: ir.Value, deadline: ir.Value) -> None:
    """Writes the first thread's decisions after a block of steps (those computed together), which all threads
    then follow.

    They pause if the deadline has passed. Half of them are left out if one was late: the first thread then
    waited for more than 1 / LATE of the block's time, and for more than LATE_SECONDS.

    start_ticks, deadline: the time at which the block began, and the time of the next pause, in clock ticks.
    """
    code, now = call.code, ticks(call)
    is_due = code.and_(call.flag["slice"], code.icmp_signed(">", now, deadline))
    call.set_progress("pause", code.zext(is_due, I64))
    waited = call.framed("waited")
    is_large_part = code.icmp_signed(">", waited, code.sdiv(code.sub(now, start_ticks), code.number(LATE)))
    is_long = code.icmp_signed(">", waited, code.number(int(LATE_SECONDS * clock().per_second)))
    with code.when(code.and_(is_large_part, is_long)):
        half = code.sdiv(code.add(call.threads, code.number(1)), code.number(2))
        call.set_progress("threads", half)


def return_between_blocks(call: ThreadCode, stop: ir.Value) -> None:
    """Writes the returns from `driver_block` after a block of steps (those computed together): with 1, for a
    thread that is done, if the first thread has lowered the number of threads and this one is no longer
    needed; and with 2 if the call pauses. Otherwise the code goes on, with the present number of threads in
    the frame (the thread's state).

    stop: the step after the block, at which a call that pauses will resume.
    """
    code, threads = call.code, call.progress("threads")
    pause = code.icmp_signed("!=", call.progress("pause"), code.number(0))
    code.return_when(code.icmp_signed(">=", call.argument["thread"], threads), code.number(1))
    with call.by_first_thread(), code.when(pause):
        record_resumption(call, stop)
    code.return_when(pause, code.number(2))
    code.write(threads, call.cell("threads"), 8)


def record_resumption(call: ThreadCode, step: ir.Value) -> None:
    """Writes stores of the state by which a paused call resumes: the step at which it goes on, and which of
    the two buffers has the memories (recurrent states) before that step.
    """
    code = call.code
    swapped = code.icmp_unsigned("!=", call.framed("now", POINTER), call.pointer["now"])
    call.set_progress("begin", step)
    call.set_progress("swapped", code.zext(swapped, I64))


def ticks(call: ThreadCode) -> ir.Value:
    """Writes a read of the clock for a thread of a call; returns the time in ticks, or 0 if the call needs no
    time: it has no limit after which it pauses, and no other thread that may be late.
    """
    code = call.code
    with at_entry(code):
        scratch, cell = code.alloca(I64, code.number(2)), code.alloca(I64)
    code.store(code.number(0), cell)
    with code.when(code.or_(call.flag["slice"], call.shared)):
        code.store(write_ticks(code, call.argument["clock"], scratch), cell)
    return code.load(cell)


# ---- what the code of a plan calls between its loops


def write_wait(code: Code) -> None:
    """Writes `driver_wait(frame)`, a barrier of the threads that share the steps. It adds the ticks waited to
    the word "waited" of the frame (a thread's state), by which late threads are found.
    """
    call = ThreadCode.of_frame(code)
    waits = [call.pointer["barrier"], call.threads, call.argument["rest"], call.argument["clock"]]
    waited = code.call(barrier(code), waits)
    code.write(code.add(call.framed("waited"), waited), call.cell("waited"), 8)
    code.ret_void()


def write_begin(code: Code) -> None:
    """Writes `driver_begin(frame, step, now)`, which loads the initial memories (recurrent states) and the
    statics (values that every step reads) of sequences that begin in a step of the present block of steps
    (those computed together), and then waits for the other threads. now: the pointer to the memories before
    the step.
    """
    call = ThreadCode.of_frame(code)
    call_for_changes(call, "begin", "fresh")
    call.wait()
    code.ret_void()


def write_end(code: Code) -> None:
    """Writes `driver_end(frame, step, following)`, which stores the final memories (recurrent states) of the
    sequences that end with a step of the present block of steps (those computed together). following: the
    memories after the step.
    """
    call_for_changes(ThreadCode.of_frame(code), "end", "done")
    code.ret_void()


def call_for_changes(call: ThreadCode, name: str, table: str) -> None:
    """Writes calls of a function of the model's own code for each lane (slot for sequences) in which a
    sequence begins or ends with a step. The first thread makes them.

    name: the function, "begin" or "end".
    table: the name of the table that has, for each row of the block of steps (those computed together), the
        sequence that begins or ends there, or a number below 0.
    """
    code, (_, step, memories) = call.code, call.code.function.args
    base, rows = call.read("step_base", step), call.read("step_rows", step)
    with call.by_first_thread(), code.loop(code.number(0), rows) as lane:
        sequence = call.read(table, code.add(base, lane))
        with code.when(code.icmp_signed(">=", sequence, code.number(0))):
            call.call_plan(name, lane, sequence, memories)


def write_count(code: Code) -> None:
    """Writes `driver_count(frame, step, now)`, which adds 1 to the number of steps of each sequence that has
    not ended, for results of sequences that end early. frame: the thread's state. now: the pointer to the
    memories (recurrent states) before the step.
    """
    call, (_, step, now) = ThreadCode.of_frame(code), code.function.args
    with call.by_first_thread():
        count_steps(call, call.read("step_rows", step), now)
    code.ret_void()


def write_stretch(code: Code) -> None:
    """Writes `driver_stretch(frame, first)`, which returns the step that follows a stretch: steps of the
    block (some steps that are computed together), from step `first` on, that have the same rows, and of which
    only the first begins sequences. If sequences may end early, by a condition of the step, a stretch is one
    step: the first thread checks all rows between steps.
    """
    call, first, one = ThreadCode.of_frame(code), code.function.args[1], code.number(1)
    steps, early, stop_cell = call.framed("steps"), call.flag["until"], code.alloca(I64)
    rows = call.read("step_rows", first)

    def extends() -> ir.Value:
        """Writes the test whether the next step belongs to the stretch (steps with the same rows)."""
        step = code.load(stop_cell)
        has_same_rows = code.icmp_signed("==", call.read("step_rows", step), rows)
        begins_none = code.not_(call.changes(step, BEGINS))
        inside = code.and_(code.icmp_signed("<", step, steps), code.not_(early))
        return code.and_(inside, code.and_(has_same_rows, begins_none))

    code.store(code.add(first, one), stop_cell)
    with code.loop_while(extends):
        code.store(code.add(code.load(stop_cell), one), stop_cell)
    code.ret(code.load(stop_cell))


FUNCTIONS: dict[str, tuple[ir.Type, list[ir.Type], Callable[[Code], None]]] = {
    "driver_run": (I64, [POINTER, *[I64] * len(PLAN_WORDS)], write_run),
    "driver_block": (I64, [POINTER, I64, I64], write_block),
    "driver_refill": (VOID, [POINTER], write_refill),
    "driver_timetable": (VOID, [POINTER, I64], write_timetable),
    "driver_begin": (VOID, [POINTER, I64, POINTER], write_begin),
    "driver_count": (VOID, [POINTER, I64, POINTER], write_count),
    "driver_end": (VOID, [POINTER, I64, POINTER], write_end),
    "driver_stretch": (I64, [POINTER, I64], write_stretch),
    "driver_wait": (VOID, [POINTER], write_wait),
}
"""The functions of the driver, callers first: the types of their result and arguments, and what writes them.
"""
CALLED = ("driver_run", "driver_begin", "driver_count", "driver_end", "driver_stretch", "driver_wait")
"""The functions that the code of a plan calls."""
