"""The choice of register tiles, rows by unit blocks, by a small cost model.

    tiles for 3 gates and 32 registers        ->  8x1   6x1   4x2   2x4   1x4     rows x unit blocks
    13 rows                                   ->  8, 6     one row of padding
    10 rows                                   ->  6, 4     (8, 2 would take longer)

A tile of many rows loads few parameters per multiply-add; a tile of few rows wastes no work on padding. With
4 gates, 8 rows have more accumulators than there are registers. If the sums are stored to memory anyway, a
tile of 8 rows computes two gates in each of two turns: it loads each parameter once, where two tiles of 4
rows load it twice. All tilings of a number of rows give the same bits.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.values.records import dataclass

# Of a core per cycle: the vector multiply-adds, the vector loads, and the bytes of parameters from the L2
# cache. Then the latency of a multiply-add in cycles. Measured on Zen 5 (bench/kernel.py). Other processors
# with these instructions have the same values, except for the bytes.
MULTIPLY_ADDS, READS, CACHE_BYTES, LATENCY = 2, 2, 40, 4
MOST_ROWS = 8
MATRIX_ROWS, MATRIX_SUMS = 16, 4
"""The rows of a tile whose products are computed by instructions for matrices, and the number of its sums, of
a unit block each, that registers hold at once."""
ROW_CYCLES, TILE_CYCLES = 0.2, 0.5
"""The cycles of the elementwise work of a row, and of the begin and end of a tile. Both happen once per tile;
these are their shares per k, for k of about 100. So padding rows cost something, and among choices that are
otherwise equal the one with fewer tiles is taken."""
LEAST_SUMS = MULTIPLY_ADDS * LATENCY
FEWEST_SUMS = LEAST_SUMS * 3 // 2
"""LEAST_SUMS independent accumulators hide the latency of multiply-adds; FEWEST_SUMS leave some room for
other instructions."""
STREAMS = 8
"""The most unit blocks of a tile. Their parameters are often a multiple of 4096 bytes apart, and then map to
one set of the L1 cache, which has 8 to 12 ways."""
SIZES = (6, 4, 2)
"""The rows of further tiles, between the largest tile and that of one row."""

LARGE_BYTES = 384 * 1024
"""Parameters of at least this size displace everything else of a step from the L1 and L2 caches. Then other
operands are prefetched, tiles take turns so that each parameter is loaded once, and steps traverse the unit
blocks forwards and backwards in alternation."""
CLAIMED_BYTES = 4 * 2**20
"""The fewest bytes of large parameters, times rows, of which threads that share a step claim unit blocks of
each other: some 25 microseconds. In less time exchanging the words of the claims costs up to a twentieth."""
AHEAD_ROWS = 3
"""The fewest rows of a tile that fetches parameters for the tiles that follow. A tile of fewer rows reads its
own as fast as they arrive."""
TURN_BYTES = 512 * 1024
"""The most parameters of a unit block whose tiles take turns: with those that are fetched for the next tiles
they lie in the L2 cache. Otherwise each of two turns would fetch all of them again."""
SECTIONED_BYTES, SECTION_BYTES = 320 * 1024, 32 * 1024
"""A unit block with more parameters than `SECTIONED_BYTES` is computed in sections of k of at most
`SECTION_BYTES`. Tiles of all rows multiply one section before the next one, which they fetch meanwhile: whole
unit blocks, the rows, and what is fetched would exceed the L2 cache. A section stays in the L1 cache, as the
lines that arrive from memory leave little room for those from L2."""


@dataclass(frozen=True)
class Tile:
    """Size of a register tile, which computes a number of rows by a number of unit blocks in registers.

    rows: the number of rows.
    units: the number of unit blocks (vectors of units).
    gate_groups: the number of turns in which the gates (products per unit) are computed, the same number in
        each.
    by_matrix: whether instructions for matrices compute it. Such a tile never reaches beyond the last row.
    sections: the number of equal sections of k after each of which its sums are stored, and the other tiles
        of the unit block multiply the same parameters.
    """

    rows: int
    units: int
    gate_groups: int = 1
    by_matrix: bool = False
    sections: int = 1


def tiles(
    processor: Processor,
    gates: int,
    blocks: int,
    vectors: int = 1,
    vectors_per_word: int = 1,
    divisor: int = 1,
    by_matrix: bool = False,
) -> tuple[Tile, ...]:
    """Chooses the register tiles of a loop with `gates` products per unit, those of more rows first.

    processor: the processor, whose number of registers limits the tiles.
    blocks: the number of unit blocks (vectors of features).
    vectors: the registers that one vector of the work takes.
    vectors_per_word: the number of vectors into which packed parameters are unpacked.
    divisor: a tile may compute its gates in several equal groups, one after the other (in turns). Their
        number divides this.
    by_matrix: whether the processor has instructions that multiply matrices in the encoding of the products.

    The last tile has one row. The registers of a tile hold all accumulators of a turn; the parameters of all
    columns or the elements of all rows, whichever are fewer; and one of the other kind.
    """
    registers = processor.registers // vectors
    most_sums = registers * 3 // (3 + vectors_per_word)

    def rows_that_fit(columns: int) -> int:
        """Returns the largest number of rows of a tile (rows and columns of a product whose sums stay in
        registers) for which the registers suffice. columns: its vectors of parameters, unit blocks times
        gates.
        """
        fitting = (
            rows
            for rows in range(MOST_ROWS, 1, -1)
            if rows * columns + (min(rows, columns) + 1) * vectors_per_word <= registers
        )
        return next(fitting, 1)

    def units_for(rows: int, most: int) -> int:
        """Returns the number of unit blocks (vectors of features) of a tile that gives enough accumulators to
        hide latency, but no more than `most`.

        The number is doubled until it is enough, and is no more than `blocks` and about `STREAMS` (8).
        """
        units = 1
        while units < min(blocks, STREAMS) and 2 * units * rows * gates <= most:
            # Two tiles, which threads can divide, are better than one, even if they hide less latency.
            enough = LEAST_SUMS if 2 * units >= blocks else FEWEST_SUMS
            if units * rows * gates >= enough:
                break
            units *= 2
        return min(units, blocks)

    # With few gates a large tile has several unit blocks, so that each broadcast element feeds more than one
    # multiply-add. The cells of such tiles are indexed by shifts and masks, so their rows are powers of two.
    # Parameters that are unpacked into four vectors need so many instructions that more rows are worth more.
    large_units = min(blocks, max(1, (2 if vectors_per_word == 4 else 3) // gates))
    large_rows = rows_that_fit(large_units * gates)
    if large_units > 1:
        large_rows = power_of_two(large_rows)
    small = [Tile(rows, units_for(rows, most_sums)) for rows in SIZES if rows < large_rows]
    small = [tile for tile in small if tile.units == 1 or power_of_two(tile.rows) == tile.rows]
    single = Tile(1, units_for(1, registers // 2 if vectors_per_word == 1 else most_sums // 2))
    large = Tile(large_rows, large_units) if large_rows > 1 else single
    matrix = [Tile(MATRIX_ROWS, min(blocks, max(1, MATRIX_SUMS // gates)), by_matrix=True)] * by_matrix
    return tuple(
        dict.fromkeys((*matrix, *by_gate_groups(large, gates, divisor, rows_that_fit), large, *small, single))
    )


def by_gate_groups(
    large: Tile, gates: int, divisor: int, rows_that_fit: Callable[[int], int]
) -> Iterator[Tile]:
    """Yields a tile of more rows than `large`, whose gates (products per unit) are computed in several equal
    groups, one after the other (in turns), so that the sums of a group fit the registers.

    Yields none if `large` has several unit blocks, or if each such tile takes more cycles per row.

    divisor: the number of turns divides it.
    rows_that_fit: returns the most rows of a tile, by its vectors of parameters.
    """

    def per_row(tile: Tile) -> float:
        """Returns the cycles that a tile takes per row, by which tiles are compared."""
        return cycles(tile, gates, 0) / tile.rows

    numbers = (turns for turns in range(2, divisor + 1) if divisor % turns == 0)
    shapes = (Tile(rows_that_fit(gates // turns), 1, turns) for turns in numbers)
    larger = [tile for tile in shapes if tile.rows > large.rows and per_row(tile) <= per_row(large)]
    if large.units == 1 and larger:
        yield max(larger, key=lambda tile: (tile.rows, -tile.gate_groups))


def power_of_two(most: int) -> int:
    """Returns the largest power of two that is at most `most`, a positive integer."""
    return 1 << (most.bit_length() - 1)


def cycles(tile: Tile, gates: int, vector_bytes: int) -> float:
    """Estimates the cycles that a tile takes, with all its rows, for one k (element of the summed axis) of
    one unit block. A tile may compute its gates in several groups, one after the other (in turns).

    They are the maximum of the cycles for: multiply-adds; loads of vectors of parameters, and of elements of
    rows, which its unit blocks share and each turn repeats; bytes of parameters from the L2 cache; and the
    latency of a multiply-add, which each turn waits for and the unit blocks share.

    gates: the products per unit. vector_bytes: the bytes of a vector of parameters; 0 if these are in the L1
    cache, so that their transfer costs nothing.

    >>> [cycles(tile, gates=3, vector_bytes=64) for tile in (Tile(8, 1), Tile(2, 4), Tile(1, 4))]
    [12.0, 4.8, 4.8]
    """
    if tile.by_matrix:  # one instruction multiplies 16 words of k in 16 cycles
        return gates * max(1.0, vector_bytes / CACHE_BYTES)
    sums = tile.rows * gates
    return max(
        sums / MULTIPLY_ADDS,
        (tile.gate_groups * tile.rows / tile.units + gates) / READS,
        gates * vector_bytes / CACHE_BYTES,
        tile.gate_groups * LATENCY / tile.units,
    )


def cycles_in_cache(tile: Tile, gates: int) -> float:
    """Estimates the cycles that a register tile takes for one element of the summed axis and one unit block
    (a vector of columns), with its fixed costs, if the parameters are in the L1 cache. gates: the products
    per unit.
    """
    return cycles(tile, gates, 0) + TILE_CYCLES + ROW_CYCLES * tile.rows


@lru_cache(maxsize=1024)
def cover(shapes: tuple[Tile, ...], rows: int, gates: int, vector_bytes: int) -> tuple[int, ...]:
    """Returns the number of tiles of each shape (rows x vectors of columns, in registers) that together
    compute at least `rows` rows of a matrix product in the fewest cycles.

    gates, vector_bytes: the products per unit, and the bytes of a vector of parameters.
    """
    return cheapest(shapes, rows, gates, vector_bytes)[1]


@lru_cache(maxsize=1024)
def cheapest(
    shapes: tuple[Tile, ...], rows: int, gates: int, vector_bytes: int
) -> tuple[float, tuple[int, ...]]:
    """Finds the register tiles (rows x vectors of columns) that compute at least `rows` rows of a matrix
    product in the fewest cycles: the exact minimum.

    gates, vector_bytes: the products per unit, and the bytes of a vector of parameters.

    Returns these cycles, for one element of the summed axis and one vector of columns, and the number of
    tiles of each shape.
    """
    if rows <= 0:
        return 0.0, (0,) * len(shapes)
    choices: list[tuple[float, tuple[int, ...]]] = []
    for index, shape in enumerate(shapes):
        if shape.by_matrix and rows < shape.rows:
            continue
        others, counts = cheapest(shapes, rows - shape.rows, gates, vector_bytes)
        overhead = TILE_CYCLES + ROW_CYCLES * shape.rows
        counts = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
        choices.append((cycles(shape, gates, vector_bytes) + others + overhead, counts))
    return min(choices)
