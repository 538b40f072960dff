"""The choice of register tiles, rows by unit blocks, by a small cost model.

    rows 1..8 of work of 3 gates, 32 registers:   8x1   6x1   4x2   2x4   1x4     rows x unit blocks
    13 rows                                   ->  8, 6     one row of padding
    10 rows                                   ->  6, 4     or 8, 2, which takes longer

A tile of many rows loads few parameters per multiply-add; a tile of few rows wastes no work on padding. With
4 gates, 8 rows have more accumulators than there are registers. If the sums are stored to memory anyway, a
tile of 8 rows computes two gates in each of two turns: it loads each parameter once, where two tiles of 4
rows load it twice. All tilings of a number of rows give the same bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from stepnet.engines.llvm.machine.target import Target

# Per cycle of a core: vector multiply-adds, vector loads, and bytes of parameters from the L2 cache. Then the
# latency of a multiply-add in cycles. Measured on Zen 5 (bench/kernel.py); of other processors with these
# instructions the first two and the last are the same.
MULTIPLY_ADDS, READS, CACHE_BYTES, LATENCY = 2, 2, 40, 4
MOST_ROWS = 8
ROW_CYCLES, TILE_CYCLES = 0.2, 0.5
"""The cycles, for each k, of the elementwise work of a row, and of beginning and ending a tile: of what they
take once, shares for some 100 k. So no row is computed for nothing, and of equal choices the one of fewer
tiles is taken."""
LEAST_SUMS = MULTIPLY_ADDS * LATENCY
FEWEST_SUMS = LEAST_SUMS * 3 // 2
"""LEAST_SUMS independent accumulators hide the latency of multiply-adds; FEWEST_SUMS leave some room for
other instructions."""
STREAMS = 8
"""The most unit blocks side by side. Their parameters often lie a multiple of 4096 bytes apart, and then
map to one set of the L1 cache, which has 8 to 12 ways."""
SIZES = (6, 4, 2)
"""The numbers of rows between the most that fit the registers and one, where they are fewer than the most."""

LARGE_BYTES = 384 * 1024
"""Parameters of at least this size displace everything else of a step from the near caches. Then other
operands are prefetched, tiles take turns so that each parameter is loaded once, and steps traverse the unit
blocks forwards and backwards in alternation."""
FAR_BYTES = 8 * 2**20
"""Parameters of at least this size are in the last-level cache at best. Then tiles take no turns: each of two
turns would fetch all cache lines to use half of them."""


@dataclass(frozen=True)
class Tile:
    """The numbers of rows and of unit blocks of a register tile.

    turns: the number of turns in which the gates are computed, equally many in each.
    """

    rows: int
    units: int
    turns: int = 1


def tiles(
    target: Target, gates: int, blocks: int, vectors: int = 1, parts: int = 1, divisor: int = 1
) -> tuple[Tile, ...]:
    """The tiles for work of `gates` products, those of more rows first; the last is of one row.

    vectors: how many registers one vector of the work takes. parts: into how many vectors packed parameters
    are unpacked. divisor: tiles may take a number of turns that divides this one. The registers have room for
    all sums of a turn, for one parameter per column or one number per row, whichever are fewer, and for one
    of the others.
    """
    registers = target.registers // vectors
    most_sums = registers * 3 // (3 + parts)

    def rows_that_fit(columns: int) -> int:
        fitting = (
            rows
            for rows in range(MOST_ROWS, 1, -1)
            if rows * columns + (min(rows, columns) + 1) * parts <= registers
        )
        return next(fitting, 1)

    def units_for(rows: int, most: int) -> int:
        """As many unit blocks, doubled from one on, as keep the processor busy with at most so many sums."""
        units = 1
        while units < min(blocks, STREAMS) and 2 * units * rows * gates <= most:
            # Two tiles that wait a little for their sums can be shared between threads, and one cannot.
            enough = LEAST_SUMS if 2 * units >= blocks else FEWEST_SUMS
            if units * rows * gates >= enough:
                break
            units *= 2
        return min(units, blocks)

    # With few gates a large tile has several unit blocks, so that a number that is spread over a vector feeds
    # more than one multiply-add. Cells of such tiles are counted by shifts and masks: rows are powers of two.
    large_units = min(blocks, max(1, 3 // gates))
    large_rows = rows_that_fit(large_units * gates)
    if large_units > 1:
        large_rows = power_of_two(large_rows)
    small = [Tile(rows, units_for(rows, most_sums)) for rows in SIZES if rows < large_rows]
    small = [tile for tile in small if tile.units == 1 or power_of_two(tile.rows) == tile.rows]
    single = Tile(1, units_for(1, registers // 2 if parts == 1 else most_sums // 2))
    large = Tile(large_rows, large_units) if large_rows > 1 else single
    return tuple(dict.fromkeys((*in_turns(large, gates, divisor, rows_that_fit), large, *small, single)))


def in_turns(large: Tile, gates: int, divisor: int, rows_that_fit: Callable[[int], int]) -> Iterator[Tile]:
    """The tile that takes turns to have more rows than the largest one without, if it takes no longer for
    each row.
    """

    def each(tile: Tile) -> float:
        return cycles(tile, gates, 0) / tile.rows

    numbers = (turns for turns in range(2, divisor + 1) if divisor % turns == 0)
    shapes = (Tile(rows_that_fit(gates // turns), 1, turns) for turns in numbers)
    larger = [tile for tile in shapes if tile.rows > large.rows and each(tile) <= each(large)]
    if large.units == 1 and larger:
        yield max(larger, key=lambda tile: (tile.rows, -tile.turns))


def power_of_two(most: int) -> int:
    """The largest power of two up to a number."""
    return 1 << (most.bit_length() - 1)


def cycles(tile: Tile, gates: int, vector_bytes: int) -> float:
    """The cycles that a tile takes for one k of one unit block: those of whatever takes longest.

    >>> [cycles(tile, gates=3, vector_bytes=64) for tile in (Tile(8, 1), Tile(2, 4), Tile(1, 4))]
    [12.0, 4.8, 4.8]
    """
    sums = tile.rows * gates
    return max(
        sums / MULTIPLY_ADDS,
        (tile.turns * tile.rows / tile.units + gates) / READS,
        gates * vector_bytes / CACHE_BYTES,
        tile.turns * LATENCY / tile.units,
    )


def computing(tile: Tile, gates: int) -> float:
    """The cycles that a tile takes for one k of one unit block if its parameters are near, and its share of
    the elementwise work.
    """
    return cycles(tile, gates, 0) + TILE_CYCLES + ROW_CYCLES * tile.rows


@lru_cache(maxsize=1024)
def cover(shapes: tuple[Tile, ...], rows: int, gates: int, vector_bytes: int) -> tuple[int, ...]:
    """How many tiles of each shape compute so many rows, or a few more, in the fewest cycles."""
    return cheapest(shapes, rows, gates, vector_bytes)[1]


@lru_cache(maxsize=1024)
def cheapest(
    shapes: tuple[Tile, ...], rows: int, gates: int, vector_bytes: int
) -> tuple[float, tuple[int, ...]]:
    """The cycles of the best tiles for so many rows, and how many there are of each shape."""
    if rows <= 0:
        return 0.0, (0,) * len(shapes)
    choices: list[tuple[float, tuple[int, ...]]] = []
    for place, shape in enumerate(shapes):
        more, counts = cheapest(shapes, rows - shape.rows, gates, vector_bytes)
        extra = TILE_CYCLES + ROW_CYCLES * shape.rows
        counts = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
        choices.append((cycles(shape, gates, vector_bytes) + more + extra, counts))
    return min(choices)
