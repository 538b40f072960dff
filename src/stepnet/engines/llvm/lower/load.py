"""What the loops of a plan compute and read at each step, as the estimate of times wants it (`plan/load`)."""

from collections.abc import Sequence
from math import prod

from stepnet.engines.llvm.lower.driven import Program
from stepnet.engines.llvm.lower.loops import (
    GatherLoop,
    InnerLoop,
    LaneLoop,
    Loop,
    Phase,
    ReduceLoop,
    ScanLoop,
    UnitLoop,
)
from stepnet.engines.llvm.lower.tiling import Tiling
from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.arithmetic import arithmetic, bytes_of
from stepnet.net.ir import Net
from stepnet.plan.load import Load, Products, Stage


def load(program: Program, target: Target) -> Load:
    """The load of a program."""
    loop = stage(program.body, [program.loop], program.width, target)
    return Load(loop, stage(program.outer, [program.before, program.after], program.width, target))


def stage(net: Net, parts: Sequence[Sequence[Phase]], width: int, target: Target) -> Stage:
    """That of loops by phase, which threads that share them leave together.

    Work on the inner sequences of a row counts as if each had one word: how many there are is not known.
    """
    phases = [phase for own in parts for phase in own]
    loops = [(body, loop) for phase in phases for body, loop in loops_of(phase, net)]
    units = [(body, loop) for body, loop in loops if isinstance(loop, UnitLoop)]
    products = [products_of(loop, width, target) for _, loop in units if loop.products]
    flops = sum(loop.size * body.nodes[n].row.flops for body, loop in units for n, _ in loop.nodes)
    barriers = sum(len(phase.phases) if isinstance(phase, InnerLoop) else 1 for phase in phases)
    return Stage(tuple(products), flops + sum(copied(loop) for _, loop in loops), barriers)


def loops_of(phase: Phase, net: Net) -> Sequence[tuple[Net, Loop]]:
    """The loops of a phase of a net, each with the net whose nodes it computes."""
    if isinstance(phase, InnerLoop):
        within = [(phase.body, loop) for loops in phase.phases for loop in loops]
        return [(net, loop) for loop in (*phase.begin, *phase.end)] + within
    return [
        (net, loop) for loop in ([own for _, own in phase.work] if isinstance(phase, LaneLoop) else phase)
    ]


def copied(loop: Loop) -> int:
    """The numbers that a loop other than that of units reads on each row."""
    if isinstance(loop, UnitLoop):
        return 0
    if isinstance(loop, ReduceLoop | ScanLoop):
        return prod(loop.shape)
    return loop.indices * loop.row_size if isinstance(loop, GatherLoop) else loop.size


def products_of(loop: UnitLoop, width: int, target: Target) -> Products:
    """The products of a loop."""
    weights, blocks, tiling = 0, -(-loop.size // width), Tiling.of(loop, width, target)
    for product in loop.products:
        for side in product.sides:
            kind = arithmetic(side.weights, side.left.dtype, width, target)
            words = kind.words(side.inner) * len(product.ports) * blocks * width
            weights += words * bytes_of(kind.word)
    costs = tuple(tiling.cost(rows) for rows in range(2 * tiling.shapes[0].rows + 1))
    return Products(weights, blocks, tiling.grain, costs)
