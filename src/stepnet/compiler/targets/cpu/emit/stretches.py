"""The machine code for the steps of a block if no unit reads the memory of another unit.

    step by step                          stretch by stretch

    for each step:                        for each stretch: consecutive steps of the same rows
        for each group of units:              for each group of units:
            the work                              for each step:
                                                      the work

The matrix memories of all rows are often larger than the L1 cache; the fibers of one group fit it. So a group
runs through all steps of a stretch before the next group begins, and its fibers stay in the cache. Threads
share the groups and need no barrier inside a stretch. A stretch ends where a sequence begins or ends.

Loops whose memories are vectors run step by step inside a stretch.
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.emit.call_code import CallCode
from stepnet.compiler.targets.cpu.emit.emit import emit
from stepnet.compiler.targets.cpu.emit.fibers import emit_group_steps, groups_of
from stepnet.compiler.targets.cpu.emit.stage import ConsecutiveSteps, StageCode, StageRows
from stepnet.compiler.targets.cpu.emit.transfers import begin_sequences, end_sequences
from stepnet.compiler.targets.cpu.lower.loops import FiberLoop, Loop
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER


def write_stretches(call: CallCode, steps: ir.Value) -> None:
    """Writes the steps of a block if units (features of the memory) depend on no other units: stretches of
    steps with the same rows.

    In a stretch threads need no barrier; the memories (recurrent states) of sequences that begin are loaded
    before it, and those of sequences that end are stored after it. steps: the number of steps of the block.
    """
    code, one = call.code, call.code.number(1)
    with code.goto_entry_block():
        first_cell = code.alloca(I64)
    code.store(code.number(0), first_cell)
    with code.loop_while(lambda: code.icmp_signed("<", code.load(first_cell), steps)):
        first = code.load(first_cell)
        stop = code.function_call("driver_stretch", I64, [call.frame, first])
        now, following = call.framed("now", POINTER), call.framed("next", POINTER)
        begin_sequences(call, first, now)
        write_stretch(call, first, stop, now, following)
        call.wait()
        odd = code.icmp_signed("!=", code.and_(code.sub(stop, first), one), code.number(0))
        after = code.select(odd, following, now)
        code.write(after, call.cell("now"), 8)
        code.write(code.select(odd, now, following), call.cell("next"), 8)
        end_sequences(call, code.sub(stop, one), after)
        call.wait()
        code.store(stop, first_cell)


def write_stretch(
    call: CallCode, first: ir.Value, stop: ir.Value, now: ir.Value, following: ir.Value
) -> None:
    """Writes this thread's work in the steps `first` to `stop` - 1 of a block of steps (those computed
    together), in which the same sequences run.

    now, following: the memories (recurrent states) that the first step reads, and those that it writes; they
        are swapped after each step.
    """
    code, (loop,) = call.code, loops_of(call)

    def rows(step: ir.Value, memories: list[ir.Value]) -> StageRows:
        """Addresses the rows of a step. memories: the buffer that it reads, and the one that it writes."""
        base, count = call.read("step_base", step), call.read("step_rows", step)
        return call.rows(base, count, now=memories[0], next=memories[1], lane=call.pointer["lane"])

    def stage_at(ahead: ir.Value, memories: list[ir.Value]) -> StageCode:
        """Makes the context of the step `ahead` steps on. memories: the buffers that it reads and writes."""
        return call.stage(call.program.body, rows(code.add(first, ahead), memories), shares_units=True)

    steps = ConsecutiveSteps(code, stage_at, code.sub(stop, first), [now, following])
    if isinstance(loop, FiberLoop):
        with steps.first.own_groups(groups_of(loop)) as (row, group):
            emit_group_steps(steps, loop, row, group)
    else:
        steps.for_each_step(lambda stage: emit(stage, loop))


def loops_of(call: CallCode) -> list[Loop]:
    """Returns the loops of a step in which no unit (a feature of the memory) depends on another, so that it
    has a single phase (loops that run without a barrier of the threads between them).
    """
    (phase,) = call.program.loop
    assert isinstance(phase, list)
    return phase
