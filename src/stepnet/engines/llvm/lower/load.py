"""What the loops of a plan compute and read at each step, as the estimate of times wants it (`plan/load`)."""

from collections.abc import Iterable, Sequence
from math import prod

from stepnet.engines.llvm.lower.driven import Program
from stepnet.engines.llvm.lower.loops import (
    FoldLoop,
    GatherLoop,
    LaneLoop,
    Loop,
    Phase,
    ReduceLoop,
    ScanLoop,
    UnitLoop,
    WordsReduceLoop,
)
from stepnet.engines.llvm.lower.tiling import Tiling
from stepnet.engines.llvm.machine.target import Target
from stepnet.net.ir import Net
from stepnet.plan.load import Load, Products, Stage, WordWork


def load(program: Program, target: Target) -> Load:
    """The load of a program."""

    def stage(net: Net, loops: Iterable[Loop], phases: int) -> Stage:
        loops = list(loops)
        units = [loop for loop in loops if isinstance(loop, UnitLoop) and loop.products]
        products = tuple(products_of(loop, program.width, target) for loop in units)
        return Stage(products, sum(flops(net, loop) for loop in loops), phases)

    inside = [pair for phase in program.loop for pair in loops_by_axis(phase)]
    outside = [*program.before, *program.after]
    words = tuple(
        WordWork(
            stage(program.body, (loop for along, loop in inside if along == axis.name), 0),
            sum(array.field.bytes for array in program.words if array.axis == axis.name),
        )
        for axis in program.axes
    )
    of_rows = stage(program.body, (loop for along, loop in inside if not along), len(program.loop))
    others = stage(program.outer, (loop for phase in outside for loop in phase), len(outside))
    return Load(of_rows, others, words)


def loops_by_axis(phase: Phase) -> Sequence[tuple[str, Loop]]:
    """The loops of a phase, each with the axis of the words that it goes over, "" where it goes over rows."""
    return phase.work if isinstance(phase, LaneLoop) else [("", loop) for loop in phase]


def flops(net: Net, loop: Loop) -> int:
    """The elementwise operations of a loop on each of its rows. What moves or combines numbers without a node
    of its own counts as one operation on each.
    """
    computed = 0
    if isinstance(loop, UnitLoop | WordsReduceLoop | FoldLoop):
        computed = loop.size * sum(net.nodes[number].row.flops for number, _ in loop.nodes)
    return computed + moved(loop)


def moved(loop: Loop) -> int:
    """The numbers that a loop reads on each row to copy, encode or combine them."""
    if isinstance(loop, UnitLoop):
        return 0
    if isinstance(loop, ReduceLoop | ScanLoop):
        return prod(loop.shape)
    return loop.indices * loop.row_size if isinstance(loop, GatherLoop) else loop.size


def products_of(loop: UnitLoop, width: int, target: Target) -> Products:
    """The products of a loop."""
    blocks, tiling = -(-loop.size // width), Tiling.of(loop, width, target)
    costs = tuple(tiling.cost(rows) for rows in range(2 * tiling.shapes[0].rows + 1))
    return Products(tiling.unit_bytes * blocks * width, blocks, tiling.grain, costs)
