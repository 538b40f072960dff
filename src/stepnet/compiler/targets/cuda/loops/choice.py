"""The choice of the kernel that runs a loop: on tensor cores where that is possible, else any step's.

rows  1    gru of 256   ->  groups of 16 blocks, by tagged numbers, sums over k in 4 parts
rows 128   gru of 256   ->  groups of 8 blocks, likewise: the same bits
rows 256   gru of 2048  ->  steps that the host gives one by one, as products of all sequences

From some hundreds of sequences on, another order of sums may be faster, and is taken unless bits must not
depend on the batch.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.loops.kept import MOST_LOOPS, ChosenLoop
from stepnet.compiler.targets.cuda.loops.others import FASTER, ROWS, other_loop
from stepnet.compiler.targets.cuda.loops.stepped import step_time
from stepnet.compiler.targets.cuda.options import CudaOptions
from stepnet.compiler.targets.cuda.tensor.choice import TensorChoice, chosen, refuse
from stepnet.compiler.targets.cuda.tensor.costs import block_time
from stepnet.compiler.targets.cuda.tensor.registers import registers
from stepnet.compiler.targets.cuda.tensor.shape import TensorShape
from stepnet.compiler.targets.cuda.tensor.writing import loop_code as tensor_code
from stepnet.compiler.values.once import entry_of

CHOICES = OrderedDict[Hashable, TensorChoice | str]()
"""The choices on tensor cores that were made last, for plans and numbers of sequences."""


def new_loop(
    plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions, share: int, flag: int | None
) -> ChosenLoop:
    """Chooses a loop and writes it; see `loop_of` of `loops.py`, which keeps it."""
    made = one_launch(plan, rows, facts, options, share, flag)
    time = step_time(plan, rows, facts, options) if flag is None else None
    if time is None or not is_by_steps(plan, rows, facts, options):
        return made
    said = (
        f"{time.total:.2f} us for a step, most of it {time.bound}; in one launch {made.microseconds:.2f} us"
    )
    said = f"step by step, by products of all sequences that still run: {said}"
    return replace(made, microseconds=time.total, pace=None, by_steps=True, reason=said)


def is_by_steps(plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions) -> bool:
    """Tells whether the host gives the steps of a loop one by one, as that is estimated to be faster: for the
    number of sequences by which the order of sums is chosen, or by a factor of `FASTER` for others.
    """

    def faster(count: int) -> float:
        """Returns by which factor it is faster for some sequences; 0.0 if it is not possible."""
        time = step_time(plan, count, facts, options)
        return 0.0 if time is None else time_of_launch(plan, count, facts, options) / time.total

    usual = faster(ROWS)
    if options.batch_invariant or rows == ROWS or not usual:
        return usual > 1
    return faster(rows) > (1 / FASTER if usual > 1 else FASTER)


def time_of_launch(plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions) -> float:
    """Estimates the microseconds of a step of a loop that runs all steps in one launch."""
    best = best_on_tensor_cores(plan, rows, facts, options, None)
    if isinstance(best, TensorChoice):
        return best.microseconds
    return other_loop(plan, rows, facts, best, None, options, facts).microseconds


def best_on_tensor_cores(
    plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions, flag: int | None
) -> TensorChoice | str:
    """Returns the result of `tensor_loop`, which is kept."""
    key = plan.key, rows, facts, options, flag
    best: TensorChoice | str = entry_of(
        CHOICES, key, lambda: tensor_loop(plan, rows, facts, options, flag), MOST_LOOPS
    )
    return best


def one_launch(
    plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions, share: int, flag: int | None
) -> ChosenLoop:
    """Chooses and writes a loop that runs all steps in one launch."""
    part = replace(facts, multiprocessors=max(1, facts.multiprocessors // share))
    best = best_on_tensor_cores(plan, rows, facts, options, flag)
    if isinstance(best, str):
        return other_loop(plan, rows, part, best, flag, options, facts)
    if share > 1:
        order, fitting = order_of_sums(best), chosen(plan, rows, part, options.precision, flag)
        best = next((choice for choice in fitting if order_of_sums(choice) == order), best)
    needed = registers(best.shape, facts)
    return ChosenLoop(code_of(best.shape), best.groups, best.reason, best.microseconds, needed, best.pace)


def tensor_loop(
    plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions, flag: int | None
) -> TensorChoice | str:
    """Returns the loop on tensor cores for a plan that runs alone; if others are better, why, as text."""
    choices = chosen(plan, ROWS, facts, options.precision, flag)
    if not choices:
        return refuse(plan) or "it does not fit"
    without = block_time(choices[0].shape.step, ROWS, facts)
    if without < choices[0].microseconds:
        return f"{without:.2f} us for a step"
    order = order_of_sums(choices[0])
    found = choices if rows == ROWS else chosen(plan, rows, facts, options.precision, flag)
    best = next(choice for choice in found if order_of_sums(choice) == order)
    if not options.batch_invariant and best.microseconds > FASTER * found[0].microseconds:
        return found[0]
    return best


@lru_cache(maxsize=256)
def code_of(shape: TensorShape) -> LoopCode:
    """Writes the kernel of a loop on tensor cores, once for all numbers of sequences."""
    return tensor_code(shape)


def order_of_sums(choice: TensorChoice) -> tuple[bool, int, int, str]:
    """Returns the facts about a loop that decide the bits of its results."""
    schedule = choice.shape.schedule
    return choice.shape.is_plain, schedule.parts, schedule.chains, schedule.functions
