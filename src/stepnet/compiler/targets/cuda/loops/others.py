"""The choice of a loop whose steps are not on tensor cores as a whole: the kernels for any step.

gated delta rule        ->  chunks of steps, whose products are on tensor cores
Mamba                   ->  a thread for each unit, or some lanes of a warp
gru of 2048             ->  groups of blocks, which keep the weights; products alone on tensor cores
a step of few products  ->  a block for each sequence
"""

from dataclasses import replace
from math import ceil, prod

import numpy as np

from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.chunked.costs import (
    REGISTERS,
    ChunkChoice,
    chunk_choices,
    fastest,
)
from stepnet.compiler.targets.cuda.chunked.loop import chunk_code
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
from stepnet.compiler.targets.cuda.entries.statements import Statements
from stepnet.compiler.targets.cuda.grid.loop import grid_code
from stepnet.compiler.targets.cuda.grid.share import Ownership, products_of
from stepnet.compiler.targets.cuda.grid.sizes import (
    MEETING,
    STEP,
    GridForm,
    found_together,
    grid_form,
    ownership,
    reduced_time,
)
from stepnet.compiler.targets.cuda.loops.kept import ChosenLoop
from stepnet.compiler.targets.cuda.loops.lanes import LanePace
from stepnet.compiler.targets.cuda.loops.loop import LoopForm, loop_code
from stepnet.compiler.targets.cuda.loops.parts import most_parts, part_code, parts_of
from stepnet.compiler.targets.cuda.loops.unit_costs import unit_choice, unit_choices
from stepnet.compiler.targets.cuda.loops.unit_form import UnitForm
from stepnet.compiler.targets.cuda.loops.units import fibers_of, units_code
from stepnet.compiler.targets.cuda.options import DEFAULT, ROUNDED, CudaOptions
from stepnet.compiler.targets.cuda.tensor.costs import BLOCK_ROWS, PRODUCTS, moved_bytes
from stepnet.compiler.targets.cuda.tensor.facts import facts_of
from stepnet.compiler.targets.cuda.tensor.numbers import Precision
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
LOOP = 1.0
"""Microseconds of a step of a block that has little to do, of its barriers and addresses."""
THREADS, SHARED = 256, 96 * 1024
"""The threads of a block with a part of a step, and the most bytes of its shared memory."""
ROWS = 16
"""The number of sequences for which the order of sums is chosen, so that it is the same for most batches."""

LEAST_UNITS = 4
"""The fewest units of a block of a group."""
FASTER = 1.1
"""The factor by which a loop with another order of sums must be faster to be chosen, if it may be."""


@dataclass(frozen=True)
class OtherLoop:
    """A way to run a loop that is not on tensor cores as a whole.

    microseconds: the estimate of a step's time, of all sequences.
    group_rows: the sequences of a group of blocks, or of a block.
    form: of the loop of groups of blocks; None for single blocks, which read the weights at each step.
    groups: the number of groups that run at once; 0 for any number.
    bound: the name of the resource that takes most of the time.
    """

    microseconds: float
    group_rows: int
    bound: str
    form: GridForm | None = None
    groups: int = 0

    @property
    def text(self) -> str:
        """The estimate for people."""
        return f"{self.microseconds:.2f} us for a step, most of it {self.bound}"


def other_loop(
    plan: Plan,
    rows: int,
    facts: DeviceFacts,
    reason: str,
    flag: int | None = None,
    options: CudaOptions = DEFAULT,
    whole: DeviceFacts | None = None,
) -> ChosenLoop:
    """Returns the kernel of a loop whose steps are not on tensor cores as a whole: in chunks of steps, if its
    memory is a matrix and that is estimated to be faster; with a thread for each unit if units are alone; of
    groups of blocks, which keep the weights or have some heads each; or of single blocks, which read weights
    at each step: for several sequences, or for one of many elements, as a memory that is a matrix. All loops
    of blocks have the same bits, and so have loops of units with one element.

    Products of groups may be on tensor cores, in another order of sums than all others. The order is chosen
    for `ROWS` sequences; options: as for `loop_of`.

    reason: why it is not on tensor cores as a whole. flag: as for `loop_of`; then there are no chunks, and
        threads are not alone.
    facts, whole: of the part of the device for the loop, and of all of it, for which the order is chosen.
    """
    if flag is None and isinstance(chunks := in_chunks(plan, rows, facts, options), ChunkChoice):
        return ChosenLoop(
            chunk_code(plan, chunks.form), 0, chunks.reason, chunks.microseconds, REGISTERS, chunks.pace
        )
    if flag is None and (units := of_units(plan, rows, facts, reason, options)) is not None:
        return units
    statements = LoopForm(plan, 1, LANES, facts.shared).statements
    owners = ownership(statements)
    without, tiled = ways(plan, rows, facts, options, flag, statements, owners)
    best = without
    if tiled is not None:
        usual = ways(plan, ROWS, whole or facts, options, flag, statements, owners)
        prefers_tiles = usual[1] is not None and usual[1].microseconds < usual[0].microseconds
        best, other = (tiled, without) if prefers_tiles else (without, tiled)
        if not options.batch_invariant and best.microseconds > FASTER * other.microseconds:
            best = other
    if best.form is None:
        return part_loop(plan, rows, facts, reason, flag) or ChosenLoop(
            loop_code(plan, best.group_rows, flag=flag),
            0,
            f"not on tensor cores: {reason}; {best.text}",
            best.microseconds,
        )
    form, alone = best.form, by_blocks(statements, rows, facts)
    if form.numbers is None:
        said = f"not on tensor cores: {reason}; {best.text}; one block {alone.microseconds:.2f} us"
    else:
        said = f"products alone on tensor cores, {form.numbers}: {reason}; {best.text}; "
        said += f"without them {without.microseconds:.2f} us"
    slowness = facts_of(facts).slowness
    pace = LanePace(best.groups, form.microseconds * slowness, (STEP + 2 * MEETING) * slowness)
    return ChosenLoop(grid_code(form), best.groups, said, best.microseconds, pace=pace)


def part_loop(plan: Plan, rows: int, facts: DeviceFacts, reason: str, flag: int | None) -> ChosenLoop | None:
    """Returns the kernel with a block for each part of a step, which have the bits of one for all; None if
    its heads depend on each other, or if a block for all of them is not slower.

    reason: why it is not on tensor cores. flag: as for `loop_of`.
    """
    form = LoopForm(plan, 1, THREADS, SHARED, flag=flag)
    parts = parts_of(form, most_parts(form))
    if parts is None:
        return None
    elements = sum(statement.size for statement in form.statements.all_statements())

    def computed(count: int) -> float:
        """Estimates the microseconds of the elements of a block, with some blocks for each sequence."""
        return elements / count / ELEMENTS if elements >= MANY_ELEMENTS else 0.0

    def time(count: int) -> float:
        """Estimates the microseconds of a step of sequences that run at once, with some blocks for each."""
        return (LOOP + computed(count)) * facts_of(facts).slowness

    def of_all(count: int) -> float:
        """Estimates the microseconds of a step of all sequences."""
        return ceil(rows * count / facts.multiprocessors) * time(count)

    count = min((n for n in range(1, parts.count + 1) if parts.count % n == 0), key=of_all)
    if count == 1 or of_all(count) >= time_of_blocks(plan, rows, facts):
        return None
    bound = "elementwise" if computed(count) > LOOP else "the loop"
    said = f"not on tensor cores: {reason}; {of_all(count):.2f} us for a step, most of it {bound}; "
    said += f"one block {of_all(1):.2f} us"
    pace = LanePace(max(1, facts.multiprocessors // count), time(count), STEP)
    code = part_code(form, replace(parts, count=count))
    return ChosenLoop(code, 0, said, of_all(count), pace=pace)


def in_chunks(plan: Plan, rows: int, facts: DeviceFacts, options: CudaOptions) -> ChunkChoice | str:
    """Returns the way to run a loop in chunks of steps, or why it is better run step by step. The number of
    steps, on which bits depend, is the same for all numbers of sequences.
    """
    usual = chunk_choices(plan, ROWS, facts, options.precision)
    if isinstance(usual, str):
        return usual
    alone = time_of_blocks(plan, ROWS, facts)
    if alone < usual[0].microseconds:
        return f"in chunks {usual[0].microseconds:.2f} us for a step, step by step {alone:.2f}"
    found = chunk_choices(plan, rows, facts, options.precision)
    assert not isinstance(found, str)
    return fastest(found, usual[0].form.steps)


def of_units(
    plan: Plan, rows: int, facts: DeviceFacts, reason: str, options: CudaOptions
) -> ChosenLoop | None:
    """Returns the kernel with threads for each unit, with an estimate; None if units depend on each other.

    reason: why it is not on tensor cores.
    """
    fibers, alone = fibers_of(LoopForm(plan, 1, LANES, 0)), f"not on tensor cores: {reason}; units are alone"
    if fibers is None:
        return None
    recur = plan.recurrence.recur
    of_memory = rows * moved_bytes(plan) * facts_of(facts).main, "main memory"
    if not fibers.are_long:
        code, form = units_code(plan), UnitForm(fibers)
        ahead = form.steps_ahead(len(recur.sequences))
        choice = unit_choice(replace(form, ahead=ahead), recur.sequences, rows, facts)
        time, bound = max((choice.microseconds, choice.bound), of_memory)
        said = f"{alone}; {time:.2f} us for a step, most of it {bound}"
        return None if code is None else ChosenLoop(code, 0, said, time, choice.registers)
    refused = set[int]()
    is_rounded = options.precision in ROUNDED
    for choice in unit_choices(fibers, recur.sequences, rows, facts, is_rounded):
        if choice.form.lanes not in refused:
            code = units_code(plan, choice.form)
            if code is not None:
                said = f"{alone}, each with {max(fibers.lengths)} elements; "
                time, bound = max((choice.microseconds, choice.bound), of_memory)
                said += f"{time:.2f} us for a step, most of it {bound}"
                return ChosenLoop(code, 0, said, time, choice.registers, choice.pace)
            refused.add(choice.form.lanes)
    return None


def time_of_blocks(plan: Plan, rows: int, facts: DeviceFacts) -> float:
    """Estimates the microseconds of a step of single blocks, which compute whole steps of their sequences."""
    return by_blocks(LoopForm(plan, 1, LANES, facts.shared).statements, rows, facts).microseconds


def ways(
    plan: Plan,
    rows: int,
    facts: DeviceFacts,
    options: CudaOptions,
    flag: int | None,
    statements: Statements,
    owners: Ownership | None,
) -> tuple[OtherLoop, OtherLoop | None]:
    """Returns the fastest loops, by estimates, without tensor cores and with products on them; None for the
    latter if there is none. statements, owners: of the step, and its division; None if it has none.
    """
    alone = by_blocks(statements, rows, facts)
    if owners is None or 4 * weights_of(statements) < FEW_WEIGHTS:
        return alone, None
    without = by_groups(plan, rows, facts, flag, owners, None)
    tiled = by_groups(plan, rows, facts, flag, owners, options.precision)
    is_faster = without is not None and without.microseconds < alone.microseconds
    return without if without is not None and is_faster else alone, tiled


def weights_of(statements: Statements) -> int:
    """Returns the number of weights of the products of a step."""
    rights = (right for node in products_of(statements) for right in node.sides[1])
    return sum(prod(statements.net.type_of(right).shape) for right in rights)


def by_blocks(statements: Statements, rows: int, facts: DeviceFacts) -> OtherLoop:
    """Returns the loop of single blocks, of the number of sequences that is estimated to be the fastest."""
    net = statements.net
    rights = {right for node in products_of(statements) for right in node.sides[1]}
    weights = sum(prod(net.type_of(n).shape) * np.dtype(net.type_of(n).dtype).itemsize for n in rights)
    multiplied = sum(
        prod(net.type_of(right).shape) * prod(node.types[0].shape[:-1])
        for node in products_of(statements)
        for right in node.sides[1]
    )
    elements = sum(statement.size for statement in statements.all_statements())
    others = elements / ELEMENTS if elements >= MANY_ELEMENTS else 0.0
    reductions = found_together(net, statements.all_statements())

    def reduced(rows_of_block: int) -> float:
        """Estimates the microseconds of the reductions of a step of a block."""
        return sum(reduced_time(statements, each, THREADS // rows_of_block) for each in reductions)

    def loop(rows_of_block: int) -> OtherLoop:
        """Estimates the loop of blocks of so many sequences."""
        reading, computing = weights / BLOCK_BYTES, rows_of_block * multiplied / PRODUCTS
        products = "reads of weights" if reading > computing else "products"
        times = {
            "the loop": LOOP,
            "reductions": reduced(rows_of_block),
            products: max(reading, computing),
            "elementwise": rows_of_block * others,
        }
        turns = ceil(ceil(rows / rows_of_block) / facts.multiprocessors) * facts_of(facts).slowness
        bound = max(times, key=lambda name: times[name])
        return OtherLoop(turns * sum(times.values()), rows_of_block, bound)

    return min(map(loop, (BLOCK_ROWS, 1)), key=lambda one: one.microseconds)


def by_groups(
    plan: Plan, rows: int, facts: DeviceFacts, flag: int | None, owners: Ownership, numbers: Precision | None
) -> OtherLoop | None:
    """Returns the loop of groups of blocks that is estimated to be the fastest; None if none fits.

    owners: the division of the step. numbers: the format in which tensor cores multiply float32; None for
    products without them.
    """
    best = None
    for group_rows in GROUP_ROWS:
        if group_rows >= 2 * rows:
            continue
        wanted = min(ceil(rows / group_rows), facts.multiprocessors)
        for blocks in dict.fromkeys((facts.multiprocessors, facts.multiprocessors // wanted)):
            own = max(LEAST_UNITS, ceil(owners.units / blocks))
            together = min(wanted, max(1, facts.multiprocessors // ceil(owners.units / own)))
            form = grid_form(
                plan, group_rows, facts, own=own, flag=flag, numbers=numbers, owners=owners, groups=together
            )
            if form is None:
                continue
            groups = max(1, facts.multiprocessors // form.share.blocks)
            slowness = facts_of(facts).slowness
            time = ceil(ceil(rows / group_rows) / groups) * form.microseconds * slowness
            if best is None or time < best.microseconds:
                best = OtherLoop(time, group_rows, form.bound, form, groups)
    return best
