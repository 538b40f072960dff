"""What the loops of a plan compute and read at each step, as the estimate of times wants it (`plan/load`)."""

from collections.abc import Sequence
from math import prod

from stepnet.engines.llvm.lower.driven import Program
from stepnet.engines.llvm.lower.loops import GatherLoop, LaneLoop, Loop, Phase, ReduceLoop, ScanLoop, UnitLoop
from stepnet.engines.llvm.lower.tiling import Tiling
from stepnet.engines.llvm.machine.target import Target
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
    loops = [loop for phases in parts for phase in phases for loop in loops_of(phase)]
    units = [loop for loop in loops if isinstance(loop, UnitLoop)]
    products = [products_of(loop, width, target) for loop in units if loop.products]
    flops = sum(loop.size * net.nodes[n].row.flops for loop in units for n, _ in loop.nodes)
    return Stage(tuple(products), flops + sum(map(copied, loops)), sum(map(len, parts)))


def loops_of(phase: Phase) -> Sequence[Loop]:
    """The loops of a phase."""
    return [loop for _, loop in phase.work] if isinstance(phase, LaneLoop) else phase


def copied(loop: Loop) -> int:
    """The numbers that a loop other than that of units reads on each row."""
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
