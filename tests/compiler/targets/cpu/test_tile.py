"""Tiles fit the registers, and together they cover every row and few more."""

import pytest

from stepnet.compiler.native.spaces import SLACK
from stepnet.compiler.targets.cpu import Processor, Tile, available_processors, cheapest, cover, cycles, tiles
from stepnet.compiler.targets.cpu.lower.tiling import grain_of

AVX512 = Processor("avx512", "", "", 64, 32)
PROCESSORS = pytest.mark.parametrize(
    "processor", available_processors(), ids=lambda processor: processor.name
)


@PROCESSORS
def test_the_registers_are_those_of_the_processor(processor: Processor) -> None:
    """Intel's manual: 16 of 16 or 32 bytes each, and with AVX-512 32 of 64. Of Arm's 32 tiles have 24."""
    sizes = {"generic": [(16, 16), (16, 24)], "avx2": [(32, 16)], "avx512": [(64, 32)], "neon": [(16, 24)]}
    sizes |= {"sve": [(32, 32), (64, 32)]}
    assert (processor.vector_bytes, processor.registers) in sizes[processor.name]


@pytest.mark.long(pairs=True)
@PROCESSORS
@pytest.mark.parametrize("blocks", [1, 2, 5, 16])
@pytest.mark.parametrize("gates", range(1, 20))
def test_accumulators_and_operands_fit_the_registers(processor: Processor, gates: int, blocks: int) -> None:
    shapes = tiles(processor, gates, blocks, divisor=gates)
    assert shapes[-1].rows == 1
    assert [shape.rows for shape in shapes] == sorted({shape.rows for shape in shapes}, reverse=True)
    for shape in shapes:
        assert 1 <= shape.units <= blocks
        # More gates than registers can be had: then one row of one unit is all there is, and it spills.
        smallest = shape.rows == shape.units == 1
        assert gates % shape.gate_groups == 0
        assert shape.rows * shape.units * gates // shape.gate_groups + 2 <= processor.registers or smallest


@pytest.mark.parametrize(
    ("registers", "gates", "divisor", "large"),
    [
        (32, 4, 4, Tile(8, 1, 2)),  # 16 sums in a turn; one gate in each would read more than it multiplies
        (32, 6, 6, Tile(8, 1, 2)),
        (32, 4, 1, Tile(6, 1)),
        (32, 3, 3, Tile(8, 1)),  # 24 sums at once
        (32, 5, 5, Tile(5, 1)),  # 5 turns of a gate each would take longer
        (16, 4, 2, Tile(6, 1, 2)),
    ],
)
def test_tiles_take_turns_to_have_more_rows(registers: int, gates: int, divisor: int, large: Tile) -> None:
    processor = Processor("", "", "", 64, registers)
    assert tiles(processor, gates, 16, divisor=divisor)[0] == large


@PROCESSORS
@pytest.mark.parametrize("gates", range(1, 12))
def test_every_row_is_covered(processor: Processor, gates: int) -> None:
    shapes = tiles(processor, gates, 16)
    for rows in range(2 * shapes[0].rows):
        counts = cover(shapes, rows, gates, processor.vector_bytes)
        covered = sum(count * shape.rows for count, shape in zip(counts, shapes, strict=True))
        assert rows <= covered < rows + SLACK


def chosen(gates: int, rows: int) -> list[tuple[int, int]]:
    """The tiles that so many rows are computed in with AVX-512, as rows and unit blocks."""
    shapes = tiles(AVX512, gates, 16)
    counts = cover(shapes, rows, gates, AVX512.vector_bytes)
    pairs = zip(shapes, counts, strict=True)
    return [(shape.rows, shape.units) for shape, count in pairs for _ in range(count)]


@pytest.mark.parametrize(
    ("gates", "rows", "expected"),
    [
        (3, 1, [(1, 4)]),  # 12 sums: 8 keep two units busy for the 4 cycles that each takes
        (3, 2, [(2, 2)]),
        (3, 3, [(4, 1)]),  # a row too many costs less than the parameters read again
        (3, 5, [(6, 1)]),
        (3, 7, [(8, 1)]),
        (3, 10, [(6, 1), (4, 1)]),  # 8 and 2 take longer: 2 rows are bound by what they read
        (3, 16, [(8, 1), (8, 1)]),
        (4, 2, [(2, 2)]),
        (4, 6, [(6, 1)]),
        (4, 8, [(4, 1), (4, 1)]),  # 6 and 2 take longer
        (4, 16, [(6, 1), (6, 1), (4, 1)]),
        (1, 1, [(1, 8)]),  # 16 streams of parameters would drive one another out of the cache
        (1, 8, [(8, 3)]),
        (1, 12, [(8, 3), (4, 4)]),
    ],
)
def test_tiles_are_those_that_take_the_fewest_cycles(
    gates: int, rows: int, expected: list[tuple[int, int]]
) -> None:
    found = chosen(gates, rows)
    assert sorted(found, reverse=True) == expected


@pytest.mark.parametrize(("gates", "blocks"), [(1, 16), (2, 8), (4, 4)])
def test_a_row_is_computed_in_two_tiles_so_that_threads_can_share_it(gates: int, blocks: int) -> None:
    one = tiles(AVX512, gates, blocks)[-1]
    assert (one.rows, one.units) == (1, blocks // 2)


@PROCESSORS
@pytest.mark.parametrize("gates", [1, 2, 3, 4])
def test_fewer_rows_take_no_longer_than_more(processor: Processor, gates: int) -> None:
    shapes = tiles(processor, gates, 16)
    costs = [cheapest(shapes, rows, gates, processor.vector_bytes)[0] for rows in range(1, 17)]
    assert costs == sorted(costs)
    # Two rows are far from taking as long as the most that the registers have room for.
    assert costs[1] < 0.7 * costs[7]


@pytest.mark.parametrize(
    ("tile", "gates", "bound"),
    [
        (Tile(8, 1), 3, 12.0),  # 24 multiply-adds, two a cycle
        (Tile(1, 1), 1, 4.0),  # one sum, each multiply-add after the one before
        (Tile(1, 4), 3, 4.8),  # 192 bytes of parameters, 40 a cycle
    ],
)
def test_a_tile_takes_as_long_as_what_binds_it(tile: Tile, gates: int, bound: float) -> None:
    assert cycles(tile, gates, 64) == pytest.approx(bound)


@pytest.mark.parametrize(
    ("blocks", "units", "grain"),
    [(16, 4, 4), (12, 4, 2), (20, 4, 2), (5, 4, 1), (4, 4, 4), (3, 4, 4), (32, 8, 8)],
)
def test_two_threads_have_equal_shares_of_even_numbers_of_blocks(blocks: int, units: int, grain: int) -> None:
    assert grain_of(blocks, units) == grain
    grains = -(-blocks // grain)
    if blocks % 2 == 0 and blocks > units:
        assert grains % 2 == 0
