"""The choice among loops on tensor cores: all schedules that fit a device, by their estimated times."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.loops.lanes import LanePace
from stepnet.compiler.targets.cuda.tensor.costs import (
    groups_at_once,
    moved_bytes,
    pace,
    paced_time,
    step_time,
)
from stepnet.compiler.targets.cuda.tensor.facts import facts_of
from stepnet.compiler.targets.cuda.tensor.numbers import Precision
from stepnet.compiler.targets.cuda.tensor.registers import fitted, limit, registers, without_operands
from stepnet.compiler.targets.cuda.tensor.shape import (
    LAUNCHED,
    PLAIN_PARTS,
    WIDE_ROWS,
    TensorExchange,
    TensorSchedule,
    TensorShape,
)
from stepnet.compiler.targets.cuda.tensor.step import TensorStep
from stepnet.compiler.targets.cuda.tensor.writing import loop_code
from stepnet.compiler.values.records import dataclass

BLOCKS = (2, 4, 8, 16, 32, 64, 128)
"""The blocks of a group that are tried, besides one."""
PARTS = (1, 2, 4)
"""The warps that divide a sum, as they are tried."""
MANY_PARTS, MANY = 8, 8_000_000
"""More warps that are tried, so that their registers hold more: from so many bytes of weights on."""
PLAIN_ROWS, PLAIN_AHEAD = (1, 2, 4), (4, 2)
"""The sequences of a block, and the steps ahead, that are tried where plain units multiply."""
SEVERAL: tuple[TensorExchange, ...] = ("cluster", "tagged")
"""The exchanges of several blocks that are tried: one by a counter is never faster than one by tags."""
ALONE_AHEAD = (16, 8, 4)
"""The numbers of steps ahead that the values of units that are alone are read."""
LONGEST = 2500
"""The most products of the tensor cores that the code of a step may have: more take long to compile."""


@dataclass(frozen=True)
class TensorChoice:
    """A loop that a device can run, and the estimate of its time.

    microseconds: the time of a step of all sequences. bound: the name of the resource that takes the longest:
        a field of `StepTime`, or the bytes of main memory.
    groups: the most groups of blocks that run at once if all of them must; 0 for any number.
    is_measured: whether the estimate is by facts that were measured on such a device.
    pace: how many groups of blocks run at once, and how fast.
    """

    shape: TensorShape
    microseconds: float
    bound: str
    groups: int
    is_measured: bool
    pace: LanePace

    @property
    def reason(self) -> str:
        """The estimate as text."""
        measured = "" if self.is_measured else ", by facts of another GPU"
        name, halves = self.shape.schedule.name, self.shape.step.stored_weights
        weights = f", weights of {' and '.join(halves)}" if halves else ""
        return f"{name}{weights}: {self.microseconds:.2f} us for a step, most of it {self.bound}{measured}"

    @property
    def code(self) -> LoopCode:
        """The kernel of the loop."""
        return loop_code(self.shape)


def refuse(
    plan: Plan, schedule: TensorSchedule | None = None, device: DeviceFacts | None = None
) -> str | None:
    """Tells why the loop of a plan does not run on tensor cores; None if it does. schedule, device: if given,
    the reason may be theirs.
    """
    step = TensorStep.of(plan)
    if step.refusal is not None or schedule is None or device is None:
        return step.refusal
    return TensorShape(step, schedule).misfit(device)


def chosen(
    plan: Plan, rows: int, device: DeviceFacts, numbers: Precision = "float32", flag: int | None = None
) -> list[TensorChoice]:
    """Lists the loops on tensor cores that a device can run for a plan, the fastest first, by estimates of
    their times; empty if there is none.

    rows: the number of sequences. numbers: the format in which float32 is multiplied.
    flag: the position of the bool memory that ends a sequence early, if one does.
    """
    step = TensorStep.of(plan, flag)
    if step.refusal is not None:
        return []
    facts = facts_of(device)
    found = list[tuple[float, TensorChoice]]()
    of_memory = rows * moved_bytes(plan) * facts.main, "main memory"
    for shape in shapes(step, device, numbers):
        needed = registers(shape, device)
        time = step_time(shape, facts)
        at_once = 0
        if LAUNCHED[shape.schedule.exchange] == "grid":
            at_once = groups_at_once(shape, device, facts, needed)[0]
        speed = pace(shape, rows, device, facts, needed)
        own = paced_time(speed, rows, shape.schedule.rows), time.bound
        found.append((own[0], TensorChoice(shape, *max(own, of_memory), at_once, facts.is_measured, speed)))
    return [choice for _, choice in sorted(found, key=lambda one: one[0])]


def shapes(step: TensorStep, device: DeviceFacts, numbers: Precision) -> Iterator[TensorShape]:
    """Yields the loops of a step that fit a device, with operands in registers as far as these allow."""
    for schedule in schedules(step, device, numbers):
        whole = TensorShape(step, schedule)
        if step.lefts and whole.is_rounded:
            schedule = replace(schedule, states="bfloat16")
            whole = TensorShape(step, schedule)
        if whole.threads > 1024 or whole.instructions > LONGEST:
            continue
        shape = fitted(step, schedule, device)
        if shape.misfit(device) is None and without_operands(shape, device) <= limit(shape, device):
            yield shape


def schedules(step: TensorStep, device: DeviceFacts, numbers: Precision) -> Iterator[TensorSchedule]:
    """Yields the schedules that are tried for a step."""
    chains = 3 if numbers == "float32" else 1
    functions = "exact" if numbers == "float32" else "fast"
    if not step.lefts:
        for blocks, parts, ahead in product((1, *BLOCKS), PARTS, ALONE_AHEAD):
            yield TensorSchedule(blocks, "alone", numbers, 1, parts, 0, ahead)
        return
    if numbers == "float32":
        least = min(each.results for each in step.sums.values())
        several = 4 if least == 1 else 2  # a sum that waits for the one before takes 4 cycles
        for parts, rows, ahead in product(PLAIN_PARTS, PLAIN_ROWS, PLAIN_AHEAD):
            if rows <= parts:
                yield TensorSchedule(1, "plain", numbers, several, parts, 0, ahead, "short", rows=rows)
    groups: list[tuple[int, TensorExchange]] = [(1, "block")]
    groups += product(BLOCKS, SEVERAL)
    alone = TensorShape(step, TensorSchedule(numbers=numbers))
    several = (*PARTS, MANY_PARTS) if alone.operands * alone.operand_bytes >= MANY else PARTS
    for (blocks, exchange), parts in product(groups, several):
        if exchange == "cluster" and blocks > min(device.cluster, device.multiprocessors):
            continue
        yield TensorSchedule(blocks, exchange, numbers, chains, parts, 0, 2, functions)
        if exchange == "tagged" and parts == MANY_PARTS:
            its = TensorSchedule(blocks, exchange, numbers, 1, parts, 0, 2, functions)
            if chains > 1:  # one takes fewer registers, and is no slower where other instructions take longer
                yield its
            for rows in WIDE_ROWS:
                yield replace(its, exchange="grid", places=0, rows=rows)
