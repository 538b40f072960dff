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
from stepnet.compiler.targets.cpu.emit.early import count_steps
from stepnet.compiler.targets.cpu.emit.emit import emit
from stepnet.compiler.targets.cpu.emit.fibers import emit_group_steps, groups_of
from stepnet.compiler.targets.cpu.emit.stage import ConsecutiveSteps, StageCode, StageRows
from stepnet.compiler.targets.cpu.emit.transfers import begin_later, end_all
from stepnet.compiler.targets.cpu.lower.loops import FiberLoop, Loop


def write_stretches(call: CallCode, steps: ir.Value, now_cell: ir.Value, next_cell: ir.Value) -> None:
    """Writes the steps of a block if units depend on no other units: stretches of steps with the same rows.

    In a stretch threads need no barrier; memories are loaded before it and final ones stored after it.

    now_cell, next_cell: the stack slots of the pointers to the memories before and after a step.
    """
    code = call.code
    first_cell, stop_cell = call.first_cell, call.stop_cell
    code.store(code.number(0), first_cell)
    with code.loop_while(lambda: code.icmp_signed("<", code.load(first_cell), steps)):
        first = code.load(first_cell)
        code.store(code.add(first, code.number(1)), stop_cell)
        with code.loop_while(lambda: extends_stretch(call, code.load(stop_cell), steps)):
            code.store(code.add(code.load(stop_cell), code.number(1)), stop_cell)
        stop, now, following = code.load(stop_cell), code.load(now_cell), code.load(next_cell)
        begin_later(call, first, now)
        with code.when(call.ends_early), call.by_first_thread():
            count_steps(call, call.read("step_rows", first), now)
        write_stretch(call, first, stop, now, following)
        call.wait()
        odd = code.icmp_signed("!=", code.and_(code.sub(stop, first), code.number(1)), code.number(0))
        code.store(code.select(odd, following, now), now_cell)
        code.store(code.select(odd, now, following), next_cell)
        end_all(call, code.sub(stop, code.number(1)), code.load(now_cell))
        call.wait()
        code.store(stop, first_cell)


def extends_stretch(call: CallCode, step: ir.Value, steps: ir.Value) -> ir.Value:
    """Tests whether `step` has the rows of the step before it and begins no sequence: both can run together.

    steps: the number of steps of the block. If sequences may end early, the result is false: the first thread
        checks all rows between steps.
    """
    code = call.code
    before = call.read("step_rows", code.sub(step, code.number(1)))
    has_same_rows = code.icmp_signed("==", call.read("step_rows", step), before)
    begins_none = code.icmp_signed("==", call.read("step_fresh", step), code.number(0))
    inside = code.and_(code.icmp_signed("<", step, steps), code.not_(call.ends_early))
    return code.and_(inside, code.and_(has_same_rows, begins_none))


def write_stretch(
    call: CallCode, first: ir.Value, stop: ir.Value, now: ir.Value, following: ir.Value
) -> None:
    """Writes this thread's work in the steps `first` to `stop` - 1, which have the same rows.

    now, following: the memories that the first step reads, and those that it writes; they are swapped after
        each step.
    """
    code, (loop,) = call.code, loops_of(call)

    def rows(step: ir.Value, memories: list[ir.Value]) -> StageRows:
        """Addresses the rows of a step. memories: the buffer that it reads, and the one that it writes."""
        base, count = call.read("step_base", step), call.read("step_rows", step)
        return call.rows(base, count, now=memories[0], next=memories[1], lane=call.pointer["lane"])

    def stage_at(ahead: ir.Value, memories: list[ir.Value]) -> StageCode:
        """Makes the context for writing the step `ahead` steps after the first; threads divide its units.

        memories: the buffer that the step reads, and the one that it writes.
        """
        return call.stage(call.program.body, rows(code.add(first, ahead), memories), shares_units=True)

    steps = ConsecutiveSteps(code, stage_at, code.sub(stop, first), [now, following])
    if isinstance(loop, FiberLoop):
        with steps.first.own_groups(groups_of(loop)) as (row, group):
            emit_group_steps(steps, loop, row, group)
    else:
        steps.each(lambda stage: emit(stage, loop))


def loops_of(call: CallCode) -> list[Loop]:
    """Returns the loops of a step whose units depend on no others: the step then has a single phase."""
    (phase,) = call.program.loop
    assert isinstance(phase, list)
    return phase
