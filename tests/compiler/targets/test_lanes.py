"""Lanes hold every sequence once, in few more steps than there must be, the busiest lane first."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepnet.compiler.targets.cpu.running.sequence_layout import EVEN_SECONDS, SequenceLayout
from stepnet.compiler.targets.lanes import MANY, Lanes, lanes_for
from stepnet.ragged import Positions, offsets_of

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60).map(np.array)


def check(lanes: Lanes, lengths: np.ndarray, sequences: list[int]) -> None:
    """Each of `sequences` is in one lane, which has as many steps as its sequences."""
    assert sorted(lanes.order.tolist()) == sequences
    assert lanes.first[0] == 0
    assert lanes.first[-1] == len(lanes.order)
    for lane, (start, stop) in enumerate(zip(lanes.first[:-1], lanes.first[1:], strict=True)):
        assert lanes.steps[lane] == lengths[lanes.order[start:stop]].sum()
    assert (np.diff(lanes.steps) <= 0).all()


@pytest.mark.long(examples=15)
@given(LENGTHS, st.integers(1, 12))
def test_every_sequence_that_has_steps_is_in_one_lane(lengths: np.ndarray, most: int) -> None:
    lanes = lanes_for(lengths, most)
    filled = np.flatnonzero(lengths).tolist()
    check(lanes, lengths, filled)
    assert lanes.count == min(most, len(filled))


@pytest.mark.long(examples=15)
@given(LENGTHS, st.integers(1, 12), st.sampled_from([2, MANY]))
@example(np.array([9, 1, 1, 1]), 2, 2)
@example(np.array([9, 8, 5, 4]), 2, 2)
@example(np.array([9, 7, 7, *[3] * 11, *[2] * 8]), 3, 2)
@example(np.array([70_000, 40_000, 39_000, 1]), 2, 2)
def test_each_sequence_is_in_the_lane_that_had_the_fewest_steps(
    lengths: np.ndarray, most: int, many: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{Lanes.__module__}.MANY", many)
        lanes = lanes_for(lengths, most)
    steps = [0] * lanes.count
    for length in sorted(lengths[lengths > 0].tolist(), reverse=True):
        steps[steps.index(min(steps))] += length
    assert lanes.steps.tolist() == sorted(steps, reverse=True)
    check(lanes, lengths, np.flatnonzero(lengths).tolist())


@pytest.mark.long(examples=15)
@given(LENGTHS, st.integers(1, 12), st.integers(1, 4))
def test_parts_share_the_lanes_out(lengths: np.ndarray, most: int, parts: int) -> None:
    lanes = lanes_for(lengths, most)
    shares = [lanes.every_nth(number, parts) for number in range(parts)]
    for share in shares:
        check(share, lengths, sorted(share.order.tolist()))
    assert (
        sorted(np.concatenate([share.order for share in shares]).tolist()) == np.flatnonzero(lengths).tolist()
    )
    counts = [share.count for share in shares]
    assert max(counts) - min(counts) <= 1


def laid_out(lengths: np.ndarray) -> SequenceLayout:
    """A call of sequences that lie one after the other."""
    return SequenceLayout(Positions.end_to_end(offsets_of(lengths)))


def test_long_calls_have_no_more_lanes_than_stay_at_work_until_the_end() -> None:
    lengths = np.array([500, 340, 320, *range(8, 130, 2)])
    total = int(lengths.sum())
    laid = laid_out(lengths)
    assert [lanes for lanes, _ in laid.sets(2, EVEN_SECONDS / 2, 8)] == [32, 32]
    # There are steps for 10.6 lanes of 500, so 8 have more than these, each about as many.
    ((count, words),) = laid.sets(1, EVEN_SECONDS, 8)
    assert count == 8
    assert total / 8 <= words[1] < 1.01 * total / 8
    # Each of two sets has 8, as products are computed for so many rows at a time.
    sets = laid.sets(2, EVEN_SECONDS, 2)
    assert [lanes for lanes, _ in sets] == [8, 8]
    assert max(words[1] for _, words in sets) == 500


@pytest.mark.parametrize(
    ("threads", "fewest", "lanes"), [(1, 2, [4]), (1, 8, [8]), (2, 2, [2, 2]), (2, 4, [4, 4])]
)
def test_few_sequences_at_work_have_as_few_lanes_where_few_rows_are_enough(
    threads: int, fewest: int, lanes: list[int]
) -> None:
    """There are steps for 2.4 lanes of 500."""
    laid = laid_out(np.array([500, *[50] * 14]))
    assert [count for count, _ in laid.sets(threads, EVEN_SECONDS, fewest)] == lanes


@pytest.mark.parametrize(("number", "sets"), [(40, 2), (12, 1), (16, 1)])
def test_sequences_of_about_one_length_have_a_lane_each(number: int, sets: int) -> None:
    for shortest in (100, 90):
        lengths = np.linspace(100, shortest, number).astype(np.int64)
        assert [lanes for lanes, _ in laid_out(lengths).sets(sets, 1.0, 2)] == [number // sets] * sets


def test_threads_that_lay_sequences_out_at_once_share_the_tables() -> None:
    """Machine code has the addresses of the tables, so they may not go with a layout that was replaced."""
    both_inside = threading.Barrier(2)

    class Lengths(np.ndarray):
        def tolist(self) -> Any:
            both_inside.wait(10)
            return super().tolist()

    positions = Positions(np.array([0, 3]), np.array([3, 2]).view(Lengths), 5)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(SequenceLayout.of, [positions] * 2)
    assert first is second
