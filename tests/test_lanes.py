"""Lanes hold every sequence once, in few more steps than there must be, the busiest lane first."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepnet.engines.base import Call
from stepnet.engines.lanes import Lanes, lanes_for
from stepnet.engines.llvm.running.laid import EVEN_SECONDS, Laid

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60).map(np.array)


def check(lanes: Lanes, lengths: np.ndarray, sequences: list[int]) -> None:
    """Each of `sequences` is in one lane, which has as many steps as its sequences."""
    assert sorted(lanes.order.tolist()) == sequences
    assert lanes.first[0] == 0
    assert lanes.first[-1] == len(lanes.order)
    for lane, (start, stop) in enumerate(zip(lanes.first[:-1], lanes.first[1:], strict=True)):
        assert lanes.steps[lane] == lengths[lanes.order[start:stop]].sum()
    assert (np.diff(lanes.steps) <= 0).all()


@given(LENGTHS, st.integers(1, 12))
def test_every_sequence_that_has_steps_is_in_one_lane(lengths: np.ndarray, most: int) -> None:
    lanes = lanes_for(lengths, most)
    filled = np.flatnonzero(lengths).tolist()
    check(lanes, lengths, filled)
    assert lanes.count == min(most, len(filled))


@given(LENGTHS, st.integers(1, 12))
def test_no_lane_is_much_longer_than_it_must_be(lengths: np.ndarray, most: int) -> None:
    lanes = lanes_for(lengths, most)
    if lanes.count:
        # Graham: a lane that got its last sequence while it was a shortest one is no longer than this.
        assert lanes.steps[0] <= lengths.sum() / lanes.count + lengths.max()


@given(LENGTHS, st.integers(1, 12), st.integers(1, 4))
def test_parts_share_the_lanes_out(lengths: np.ndarray, most: int, parts: int) -> None:
    lanes = lanes_for(lengths, most)
    shares = [lanes.part(number, parts) for number in range(parts)]
    for share in shares:
        check(share, lengths, sorted(share.order.tolist()))
    assert (
        sorted(np.concatenate([share.order for share in shares]).tolist()) == np.flatnonzero(lengths).tolist()
    )
    counts = [share.count for share in shares]
    assert max(counts) - min(counts) <= 1


def test_long_calls_have_no_more_lanes_than_it_takes_to_end_with_the_longest_sequence() -> None:
    lengths = np.array([500, 340, 320, *range(8, 130, 2)])
    total = int(lengths.sum())
    laid = Laid(Call([], np.cumsum(lengths) - lengths, lengths, total, []))
    assert [lanes for lanes, _ in laid.sets(2, EVEN_SECONDS / 2)] == [32, 32]
    for count in (1, 2):
        sets = laid.sets(count, EVEN_SECONDS)
        # 500 steps of 10.6 lanes are needed, so there are 16 in one set, and 8 in each of two.
        assert [lanes for lanes, _ in sets] == [16 // count] * count
        most_steps = max(words[1] for _, words in sets)
        assert 500 <= most_steps < 1.3 * 500


def test_sequences_of_one_length_have_a_lane_each() -> None:
    laid = Laid(Call([], np.arange(40) * 9, np.full(40, 9), 360, []))
    assert [lanes for lanes, _ in laid.sets(2, 1.0)] == [20, 20]
