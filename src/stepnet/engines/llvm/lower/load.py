"""What the loops of a plan compute and read at each step, as the estimate of times wants it (`plan/load`)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from stepnet.engines.llvm.lower.driven import Program
from stepnet.engines.llvm.lower.loops import GatherLoop, Loop, ReduceLoop, ScanLoop, UnitLoop
from stepnet.engines.llvm.machine.target import Target
from stepnet.engines.llvm.products.arithmetic import arithmetic, bytes_of
from stepnet.engines.llvm.products.tiles import Cover, Tile, cover, tiles
from stepnet.net.ir import Net
from stepnet.plan.load import Load, Products, Stage, Tiling


def load(program: Program, target: Target) -> Load:
    """The load of a program."""
    loop = stage(program.body, [program.loop], program.width, target)
    return Load(loop, stage(program.outer, [program.before, program.after], program.width, target))


def stage(net: Net, parts: Sequence[Sequence[Sequence[Loop]]], width: int, target: Target) -> Stage:
    """That of loops by phase, which threads that share them leave together."""
    loops = [loop for phases in parts for loops in phases for loop in loops]
    units = [loop for loop in loops if isinstance(loop, UnitLoop)]
    products = [products_of(loop, width, target) for loop in units if loop.products]
    flops = sum(loop.size * net.nodes[n].row.flops for loop in units for n, _ in loop.nodes)
    return Stage(tuple(products), flops + sum(map(copied, loops)), sum(map(len, parts)))


def copied(loop: Loop) -> int:
    """The numbers that a loop other than that of units reads on each row."""
    if isinstance(loop, UnitLoop):
        return 0
    if isinstance(loop, ReduceLoop | ScanLoop):
        return prod(loop.shape)
    return loop.indices * loop.row_size if isinstance(loop, GatherLoop) else loop.size


def shapes(loop: UnitLoop, width: int, target: Target) -> tuple[Tile, ...]:
    """The tiles that the products of a loop are computed in."""
    gates = sum(len(product.ports) for product in loop.products)
    widest = max(np.dtype(product.dtype).itemsize for product in loop.products) * width
    sides = [side for product in loop.products for side in product.sides]
    parts = max(arithmetic(side.weights, side.left.dtype, width, target).parts for side in sides)
    return tiles(target, gates, -(-loop.size // width), max(1, widest // target.vector_bytes), parts)


def products_of(loop: UnitLoop, width: int, target: Target) -> Products:
    """The products of a loop."""
    weights, blocks, tiled = 0, -(-loop.size // width), shapes(loop, width, target)
    for product in loop.products:
        for side in product.sides:
            kind = arithmetic(side.weights, side.left.dtype, width, target)
            words = kind.words(side.inner) * len(product.ports) * blocks * width
            weights += words * bytes_of(kind.word)
    return Products(weights, blocks, tuple(tilings(tiled)))


def tilings(tiled: tuple[Tile, ...]) -> Iterator[Tiling]:
    """How 0, 1, ... rows are computed, up to twice those of a large tile."""
    yield Tiling(0.0, single=False, grain=1)
    large = tiled[0].rows
    for rows in range(1, 2 * large + 1):
        whole, left = divmod(rows, large)
        rest = cover(tiled, left, whole > 0) if left else Cover(0, 0, 0)
        tiles_used = replace(rest, large=whole + rest.large)
        counts = zip(tiled, tiles_used.counts(tiled), strict=True)
        grain = max(shape.units for shape, count in counts if count)
        several = replace(tiles_used, single=0).cost(tiled)
        yield Tiling(float(several), tiles_used.single > 0, grain)
