"""The register tiles of a loop with products, and how many of each cover a number of rows."""

from dataclasses import replace
from math import gcd

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.targets.cpu.lower.loops import UnitLoop
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.arithmetic import arithmetic
from stepnet.compiler.targets.cpu.products.tile import UNROLLED
from stepnet.compiler.targets.cpu.products.tiles import (
    AHEAD_ROWS,
    CLAIMED_BYTES,
    LARGE_BYTES,
    SECTION_BYTES,
    SECTIONED_BYTES,
    TURN_BYTES,
    Tile,
    cover,
    cycles_in_cache,
    tiles,
)
from stepnet.compiler.targets.cpu.writing.elementary import ELEMENTARY
from stepnet.compiler.values.records import dataclass

ELEMENTARY_LENGTH = 16
"""The number of instructions of a short elementary function."""


@dataclass(frozen=True)
class Tiling:
    """Tiling of a loop's products: their division into register tiles.

    shapes: the register tiles, those of more rows first.
    gates: the number of products per unit.
    unit_bytes: the bytes of a unit's parameters, over all products.
    vector_bytes: the bytes of a vector of accumulators.
    grain: the number of unit blocks in a group; threads divide the work by whole groups.
    keeps_sums: whether sums are stored to memory between the products and the epilogue. If the epilogue is
        long, its code is emitted once instead of in each tile.
    is_large: whether the parameters displace everything else from the near caches.
    fetches_ahead: whether tiles of many rows fetch the parameters of the tiles that follow.
    claimed_rows: the fewest rows at which threads that share the unit blocks claim some of each other; 0 if
        they never do.
    """

    shapes: tuple[Tile, ...]
    gates: int
    unit_bytes: int
    vector_bytes: int
    grain: int
    keeps_sums: bool
    is_large: bool
    fetches_ahead: bool
    claimed_rows: int

    @classmethod
    def of(cls, net: Net, loop: UnitLoop, width: int, processor: Processor) -> "Tiling":
        """Chooses the tiling of a loop with matrix products: the sizes of its register tiles (rows x vectors
        of columns), the groups of work that threads divide among them, and whether sums are kept in memory.
        width: the number of elements of a vector.
        """
        gates, blocks = sum(len(product.ports) for product in loop.products), -(-loop.size // width)
        vector_bytes = width * max(np.dtype(product.dtype).itemsize for product in loop.products)
        vectors_per_word, unit_bytes, by_matrix = 1, 0, True
        for product in loop.products:
            for operand in product.operands:
                kind = arithmetic(operand.weights, operand.field.dtype, width, processor)
                by_matrix &= kind.by_matrix
                vectors_per_word = max(vectors_per_word, kind.vectors_per_word)
                unit_bytes += len(product.ports) * kind.word_count(operand.inner) * kind.word_bytes
        is_long = instruction_count(net, loop) > 2 * gates
        fetches_ahead = unit_bytes * loop.size >= LARGE_BYTES
        sections = sections_of(loop, unit_bytes * width, width, processor) if fetches_ahead else 1
        takes_turns = sections > 1 or (is_long and fetches_ahead and unit_bytes * width <= TURN_BYTES)
        divisor = most_gate_groups(loop) if takes_turns else 1
        shapes = tiles(
            processor,
            gates,
            blocks,
            max(1, vector_bytes // processor.vector_bytes),
            vectors_per_word,
            divisor,
            by_matrix,
        )
        shapes = tuple(
            replace(shape, sections=sections if shape.units == 1 and shape.rows >= AHEAD_ROWS else 1)
            for shape in shapes
        )
        keeps_sums = is_long or any(shape.sections > 1 or shape.gate_groups > 1 for shape in shapes)
        is_large = keeps_sums and fetches_ahead
        grain = grain_of(blocks, shapes[-1].units)
        claimed_rows = -(-CLAIMED_BYTES // (unit_bytes * loop.size)) if fetches_ahead else 0
        return cls(
            shapes, gates, unit_bytes, vector_bytes, grain, keeps_sums, is_large, fetches_ahead, claimed_rows
        )

    def cover(self, rows: int) -> tuple[int, ...]:
        """Returns the number of tiles of each of these shapes that together compute at least `rows` rows."""
        return cover(self.shapes, rows, self.gates, self.vector_bytes)

    def counts(self) -> list[tuple[int, ...]]:
        """Computes the table from which code reads how many tiles of each shape cover the rows of a loop: a
        line for each number of rows that full tiles of the largest shape leave.

        The first half is for fewer rows than that shape. The second half is for all others. There the number
        of full tiles is to be added to the count of the largest shape, which is -1 if other tiles replace one
        of them, for less work.
        """
        large = self.shapes[0].rows
        without_large = [self.cover(rows) for rows in range(large)]
        with_large = [self.cover(rows + large) for rows in range(large)]
        return [*without_large, *((first - 1, *rest) for first, *rest in with_large)]

    def cost(self, rows: int) -> float:
        """Estimates the time of `rows` rows from the cycles of the tiles that cover them, in units of the
        time of one row of the largest tile of vectors.
        """
        cycles = [cycles_in_cache(shape, self.gates) for shape in self.shapes]
        total = sum(count * tile for count, tile in zip(self.cover(rows), cycles, strict=True))
        of_vectors = next(index for index, shape in enumerate(self.shapes) if not shape.by_matrix)
        return total / cycles[of_vectors] * self.shapes[of_vectors].rows


def instruction_count(net: Net, loop: UnitLoop) -> int:
    """Estimates the instructions, per vector, of a loop's elementwise work, to decide how it is tiled."""
    operations = (net.nodes[number].operation for number, _ in loop.nodes)
    return sum(ELEMENTARY_LENGTH if operation in ELEMENTARY else 1 for operation in operations)


def most_gate_groups(loop: UnitLoop) -> int:
    """Returns the largest number of equal groups into which the gates (sums per unit, which is a feature of
    the result) of each of a loop's products can be divided, to be computed one group after the other; 1 if
    some sum is not read.
    """
    is_read = all(port >= 0 for product in loop.products for port in product.ports)
    return gcd(*(len(product.ports) for product in loop.products)) if is_read else 1


def sections_of(loop: UnitLoop, block_bytes: int, width: int, processor: Processor) -> int:
    """Returns the number of equal sections of k in which the products of a loop are computed, all rows by
    one section and then by the next: 1 unless a unit block has more parameters than `SECTIONED_BYTES`.

    block_bytes: these parameters. width: the number of elements of a vector.
    """
    operands = [(product.ports, operand) for product in loop.products for operand in product.operands]
    if block_bytes <= SECTIONED_BYTES or len(operands) > 1:
        return 1
    ports, operand = operands[0]
    kind = arithmetic(operand.weights, operand.field.dtype, width, processor)
    if kind.heads or operand.field.pieces or min(ports) < 0:
        return 1
    words, least = kind.word_count(operand.inner), -(-block_bytes // SECTION_BYTES)
    return next((count for count in range(least, 4 * least) if words % (UNROLLED * count) == 0), 1)


def grain_of(blocks: int, units: int) -> int:
    """Returns the number of unit blocks in a group. Threads divide the groups among them, but not a group.

    blocks: the number of all unit blocks (vectors of features).
    units: the number of unit blocks in the largest group. It is halved until there is an even number of full
        groups, or a group has a single block; it stays if one group has all blocks.
    """
    while 1 < units < blocks and blocks % (2 * units):
        units //= 2
    return units
