"""The load of a plan's loops, in flops and bytes per step: the input of the time estimate
(`compiler/plan/load.py`).
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from math import prod

from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.load import InnerStepWork, Load, Products, StageLoad
from stepnet.compiler.targets.cpu.lower.driven import CallLoops
from stepnet.compiler.targets.cpu.lower.loops import (
    FiberLoop,
    FoldLoop,
    GatherLoop,
    InnerLoop,
    InnerReduceLoop,
    LaneLoop,
    Loop,
    Phase,
    ReduceLoop,
    ScanLoop,
    UnitLoop,
    exchanged_fields,
)
from stepnet.compiler.targets.cpu.lower.tiling import Tiling
from stepnet.compiler.targets.cpu.machine.processor import Processor


def estimate_load(program: CallLoops, processor: Processor) -> Load:
    """Counts the work of a compiled recurrence (its loops are `program`) per step, to estimate its time."""

    def stage(
        work: Iterable[tuple[Net, Loop]], waits: int, written: Collection[str] = (), is_step: bool = True
    ) -> StageLoad:
        """Counts the work of a stage (before, in or after the loop over steps), to estimate its time. work:
        its loops, each with its net. waits: its barriers per step. written: the arrays of the call that its
        loops write. is_step: whether it is a step, and not the work on many steps at once.

        Unit blocks (vectors of features) are listed only for loops whose units threads divide without
        barriers. What threads exchange counts only in a step: rows of many steps lie side by side, so the
        processor fetches them while it computes others.
        """
        work = list(work)
        by_unit = program.units_are_alone and not waits
        blocks = tuple(
            blocks_of(loop, program.width) for _, loop in work if by_unit or isinstance(loop, FiberLoop)
        )
        units = [(net, loop) for net, loop in work if isinstance(loop, UnitLoop) and loop.products]
        products = tuple(products_of(net, loop, program.width, processor) for net, loop in units)
        fields = [field for _, loop in work for field in exchanged_fields(loop, written)]
        exchanged = sum(field.bytes for field in fields) if waits and is_step else 0
        return StageLoad(products, sum(flops(net, loop) for net, loop in work), waits, blocks, exchanged)

    def word_work(axis: str) -> InnerStepWork:
        """Counts the work per word (step of an inner sequence) along an axis, for the estimate of time."""
        by_row = (
            (program.body, loop)
            for phase in program.loop
            if isinstance(phase, LaneLoop)
            for along, loop in phase.work
            if along == axis
        )
        inner = [phase for phase in program.loop if isinstance(phase, InnerLoop) and phase.axis == axis]
        steps = ((recurrence.body, loop) for recurrence in inner for loop in chain(*recurrence.phases))
        read = sum(array.field.bytes for array in program.inner_arrays if array.axis == axis)
        waits = sum(len(recurrence.phases) for recurrence in inner)
        return InnerStepWork(stage(by_row, 0), read, stage(steps, waits))

    waits = 0 if program.units_are_alone else len(program.loop)
    loops = [*loops_of_rows(program.loop)]
    written = {field.record for loop in loops if isinstance(loop, UnitLoop) for _, field in loop.stores}
    of_rows = stage(((program.body, loop) for loop in loops), waits, written)
    outside = [*program.before, *program.after]
    others = stage(((program.outer, loop) for loop in loops_of_rows(outside)), len(outside), is_step=False)
    return Load(of_rows, others, tuple(word_work(axis.name) for axis in program.axes))


def loops_of_rows(phases: Iterable[Phase]) -> Iterator[Loop]:
    """Yields, of the phases of a stage, the loops over rows, without those over the words of a row."""
    for phase in phases:
        if isinstance(phase, LaneLoop):
            yield from (loop for along, loop in phase.work if not along)
        elif isinstance(phase, InnerLoop):
            yield from (*phase.begin, *phase.end)
        else:
            yield from phase


def flops(net: Net, loop: Loop) -> int:
    """Counts the elementwise operations of a loop per row (sequence and step), for the estimate of its time.

    Moving or combining an element without a node counts as one. net: the graph of the loop's nodes.
    """
    if isinstance(loop, FiberLoop):
        return fiber_flops(net, loop)
    computed = 0
    if isinstance(loop, UnitLoop | InnerReduceLoop | FoldLoop):
        computed = loop.size * sum(net.nodes[number].row.flops for number, _ in loop.nodes)
    return computed + moved_elements(loop)


def fiber_flops(net: Net, loop: FiberLoop) -> int:
    """Counts the elementwise operations per row of a loop over fibers, to estimate its time."""
    units = [
        number
        for work in (*(fiber_pass.units for fiber_pass in loop.passes), loop.units)
        for number, _ in work
    ]
    flops = loop.size * sum(net.nodes[number].row.flops for number in units)
    for fiber_pass in loop.passes:
        per_element = sum(net.nodes[number].row.flops for number, _ in fiber_pass.nodes)
        flops += (
            loop.size
            * fiber_pass.depth
            * (per_element + sum(len(fiber_sum.terms) for fiber_sum in fiber_pass.sums))
        )
    return flops


def moved_elements(loop: Loop) -> int:
    """Counts the elements that a loop copies, encodes or combines for each row (a sequence at one step), to
    estimate its time; 0 for loops of products and elementwise work (`UnitLoop`).
    """
    if isinstance(loop, UnitLoop):
        return 0
    if isinstance(loop, ReduceLoop | ScanLoop):
        return prod(loop.shape)
    return loop.indices * loop.row_size if isinstance(loop, GatherLoop) else loop.size


def blocks_of(loop: Loop, width: int) -> int:
    """Returns the number of unit blocks (vectors of units) of a loop, which its threads divide among them."""
    assert isinstance(loop, FiberLoop | UnitLoop)
    return -(-loop.size // width)


def products_of(net: Net, loop: UnitLoop, width: int, processor: Processor) -> Products:
    """Describes the matrix products of a loop, to estimate its time: the bytes of parameters, and for each
    number of rows the cost of their tiles. width: the number of elements of a vector.
    """
    blocks, tiling = -(-loop.size // width), Tiling.of(net, loop, width, processor)
    costs = tuple(tiling.cost(rows) for rows in range(2 * tiling.shapes[0].rows + 1))
    weights = tiling.unit_bytes * blocks * width
    return Products(weights, blocks, tiling.grain, costs, tiling.claimed_rows)
