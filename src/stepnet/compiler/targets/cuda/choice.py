"""The choice of the kernel that runs a loop: on tensor cores where that is possible, else any step's.

rows  1   gru of 256   ->  cluster of 16 blocks, sums over k in 4 parts
rows 64   gru of 256   ->  tagged groups of 8 blocks, sums over k in 4 parts: the same bits

From some hundreds of sequences on, another order of sums may be faster, and is taken unless bits must not
depend on the batch.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.codes import LoopCode
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.grid import MEETING, STEP, grid_code, grid_form
from stepnet.compiler.targets.cuda.grid_share import products_of
from stepnet.compiler.targets.cuda.lanes import LanePace
from stepnet.compiler.targets.cuda.loop import LoopForm, loop_code
from stepnet.compiler.targets.cuda.options import DEFAULT, CudaOptions
from stepnet.compiler.targets.cuda.tensor.choice import TensorChoice, chosen, refuse
from stepnet.compiler.targets.cuda.tensor.costs import BLOCK_ROWS, PRODUCTS, block_time
from stepnet.compiler.targets.cuda.tensor.registers import registers
from stepnet.compiler.targets.cuda.tensor.shape import TensorShape
from stepnet.compiler.targets.cuda.tensor.writing import loop_code as tensor_code
from stepnet.compiler.targets.cuda.units import units_code
from stepnet.compiler.values.once import entry_of
from stepnet.compiler.values.records import dataclass

FEW_WEIGHTS = 64 * 1024
"""The bytes of weights from which groups of blocks may share a step."""
GROUP_ROWS = 16, 8, 4, 2, 1
"""The numbers of sequences that a group of blocks may run at a time."""
BLOCK_BYTES = 47e3
"""The bytes of weights that a block reads in a microsecond, as measured on an H100."""
ELEMENTS, MANY_ELEMENTS = 18e3, 4096
"""The elements of values that a block computes in a microsecond, as an estimate; and those of a sequence
from which the threads of a block have enough to do with one.
"""
ROWS = 16
"""The number of sequences for which the order of sums is chosen, so that it is the same for most batches."""

FASTER = 1.1
"""The factor by which a loop with another order of sums must be faster to be chosen, if it may be."""


@dataclass(frozen=True)
class ChosenLoop:
    """The kernel of a loop.

    groups: the most groups of sequences that are launched at once; 0 for any number.
    reason: why this kernel was chosen, with an estimate of its time, for people.
    microseconds: the estimate of a step's time; 0.0 if there is none.
    registers: the estimate of the registers of a thread; 0 if there is none.
    pace: how many groups of blocks run at once, and how fast; None if there is no estimate.
    """

    loop: LoopCode
    groups: int
    reason: str
    microseconds: float = 0.0
    registers: int = 0
    pace: LanePace | None = None


def loop_of(
    plan: Plan,
    rows: int,
    facts: DeviceFacts,
    options: CudaOptions = DEFAULT,
    share: int = 1,
    flag: int | None = None,
) -> ChosenLoop:
    """Returns the kernel for the loop of a plan, for some sequences on a device.

    options: the precision of products, and whether sums over units have one order for all numbers of
    sequences, so that a sequence has the same bits in every batch. Without that they have another order where
    it is faster by a factor of `FASTER`.
    share: how many loops run on the device at the same time; with any number a loop has the same bits.
    flag: the position of the bool memory that ends a sequence early; None if sequences run all their steps.
        All blocks of a group of sequences leave the loop when these have ended.
    """
    chosen_by = plan, rows, facts, options, share, flag
    key = plan.key, *chosen_by[1:]
    found: ChosenLoop = entry_of(LOOPS, key, lambda: new_loop(*chosen_by), MOST_LOOPS)
    return found


LOOPS = OrderedDict[Hashable, ChosenLoop]()
"""The loops that were chosen last, by what they were chosen for; both directions have the same ones."""
CHOICES = OrderedDict[Hashable, TensorChoice | str]()
"""The choices on tensor cores that were made last, for plans and numbers of sequences."""
MOST_LOOPS = 256
"""The largest number of choices that are kept."""


def new_loop(
    plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions, share: int, flag: int | None
) -> ChosenLoop:
    """Chooses a loop; see `loop_of`, which keeps it."""
    part, key = (
        replace(facts, multiprocessors=facts.multiprocessors // share),
        (plan.key, rows, facts, options, flag),
    )
    best: TensorChoice | str = entry_of(
        CHOICES, key, lambda: tensor_loop(plan, rows, facts, options, flag), MOST_LOOPS
    )
    if isinstance(best, str):
        return other_loop(plan, rows, part, best, flag)
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


def other_loop(plan: Plan, rows: int, facts: DeviceFacts, reason: str, flag: int | None = None) -> ChosenLoop:
    """Returns the kernel of a loop without tensor cores: with a thread for each unit if units are alone, of
    groups of blocks, which keep the weights, or of single blocks, which read them at each step: for several
    sequences, or for one of many elements, as a memory that is a matrix. All give the same bits.

    reason: why it is not on tensor cores. flag: as for `loop_of`; then threads are not alone.
    """
    if flag is None and (units := units_code(plan)) is not None:
        return ChosenLoop(units, 0, f"not on tensor cores: {reason}; units are alone")
    net, statements = plan.body, LoopForm(plan, 1, LANES, facts.shared).statements
    matrices = [
        (node, prod(net.type_of(right).shape)) for node in products_of(statements) for right in node.sides[1]
    ]
    weights = 4 * sum(size for _, size in matrices)
    multiplied = sum(size * prod(node.types[0].shape[:-1]) for node, size in matrices)
    elements = sum(statement.size for statement in statements.all_statements())
    others = elements / ELEMENTS if elements >= MANY_ELEMENTS else 0.0
    times = {
        each: ceil(ceil(rows / each) / facts.multiprocessors)
        * (1.0 + max(weights / BLOCK_BYTES, each * multiplied / PRODUCTS) + each * others)
        for each in (BLOCK_ROWS, 1)
    }
    in_block = min(times, key=lambda each: times[each])
    if weights >= FEW_WEIGHTS:
        alone = times[in_block]
        for group_rows in GROUP_ROWS:
            form = grid_form(plan, group_rows, facts, flag=flag) if group_rows < 2 * rows else None
            if form is None:
                continue
            groups = max(1, facts.multiprocessors // form.share.blocks)
            together = ceil(ceil(rows / group_rows) / groups) * form.microseconds
            if together < alone:
                said = (
                    f"not on tensor cores: {reason}; {together:.2f} us for a step, one block {alone:.2f} us"
                )
                pace = LanePace(groups, form.microseconds, STEP + 2 * MEETING)
                return ChosenLoop(grid_code(form), groups, said, together, pace=pace)
            break
    return ChosenLoop(loop_code(plan, in_block, flag=flag), 0, f"not on tensor cores: {reason}")


@lru_cache(maxsize=256)
def code_of(shape: TensorShape) -> LoopCode:
    """Writes the kernel of a loop on tensor cores, once for all numbers of sequences."""
    return tensor_code(shape)


def order_of_sums(choice: TensorChoice) -> tuple[int, int, str]:
    """Returns the facts about a loop that decide the bits of its results."""
    schedule = choice.shape.schedule
    return schedule.parts, schedule.chains, schedule.functions
