"""Tiles fit the registers, and together they cover every row and few more."""

import pytest

from stepnet.engines.llvm.machine.target import Target, available_targets
from stepnet.engines.llvm.products.tiles import cover, tiles
from stepnet.engines.llvm.running.workspace import SLACK

TARGETS = pytest.mark.parametrize("target", available_targets(), ids=lambda target: target.name)


@TARGETS
def test_the_registers_are_those_of_the_processor(target: Target) -> None:
    """Intel's manual: 16 of 16 or 32 bytes each, and with AVX-512 32 of 64."""
    sizes = {"generic": (16, 16), "avx2": (32, 16), "avx512": (64, 32)}
    assert (target.vector_bytes, target.registers) == sizes[target.name]


@TARGETS
@pytest.mark.parametrize("blocks", [1, 2, 5, 16])
@pytest.mark.parametrize("gates", range(1, 20))
def test_accumulators_and_operands_fit_the_registers(target: Target, gates: int, blocks: int) -> None:
    shapes = tiles(target, gates, blocks)
    assert shapes[-1].rows == 1
    assert [shape.rows for shape in shapes] == sorted({shape.rows for shape in shapes}, reverse=True)
    for shape in shapes:
        assert 1 <= shape.units <= blocks
        # More gates than registers can be had: then one row of one unit is all there is, and it spills.
        smallest = shape.rows == shape.units == 1
        assert shape.rows * shape.units * gates + 2 <= target.registers or smallest


@TARGETS
@pytest.mark.parametrize("gates", range(1, 12))
def test_every_row_is_covered(target: Target, gates: int) -> None:
    shapes = tiles(target, gates, 16)
    large, small = shapes[0].rows, shapes[1].rows if len(shapes) > 2 else 0
    for left in range(1, large):
        for others in (False, True):
            found = cover(shapes, left, others)
            covered = found.large * large + found.small * small + found.single
            assert left <= covered < left + SLACK
            assert others or found.large >= 0


def test_eight_rows_of_an_lstm_are_two_tiles_of_four() -> None:
    target = Target("avx512", "", "", 64, 32)
    shapes = tiles(target, 4, 16)
    assert [shape.rows for shape in shapes] == [6, 4, 1]
    after_one_of_six = cover(shapes, 2, after_others=True)
    assert (after_one_of_six.large, after_one_of_six.small, after_one_of_six.single) == (-1, 2, 0)
