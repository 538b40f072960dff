"""Whether recurrences run at the same time: an estimate of times, and what `explain` says of it."""

import numpy as np
import pytest

import stepnet as sn
from stepnet import cells
from stepnet.plan.schedule import Part
from stepnet.plan.side_by_side import CACHE_BYTES, Load, side_by_side
from stepnet.plan.waves import runs_of, waves_of


def gru(hidden: int) -> Load:
    return Load(12 * hidden**2, 12 * hidden**2)


@pytest.mark.parametrize("hidden", [64, 128, 256, 512])
@pytest.mark.parametrize("rows", [1, 16])
def test_two_directions_run_at_the_same_time_on_two_threads(hidden: int, rows: int):
    size = (rows, 30, 30 * rows)
    assert side_by_side([gru(hidden)] * 2, [size] * 2, [False] * 2, 2) == (0, 1)


def test_threads_that_would_have_nothing_to_do_are_used():
    """Three recurrences of many sequences on two threads: one thread would run two of them."""
    sizes = [(64, 30, 1920)] * 3
    assert side_by_side([gru(128)] * 3, sizes, [False] * 3, 2) is None
    assert side_by_side([gru(128)] * 2, sizes[:2], [False] * 2, 2) is not None


def test_parameters_that_only_several_threads_have_in_their_caches_are_shared():
    load = Load(CACHE_BYTES * 3 // 2, 0)
    assert side_by_side([load] * 2, [(1, 100, 100)] * 2, [True] * 2, 2) is None
    assert side_by_side([load] * 2, [(1, 100, 100)] * 2, [False] * 2, 2) is not None


def test_next_to_no_work_is_not_handed_over():
    assert side_by_side([gru(4)] * 2, [(1, 2, 2)] * 2, [False] * 2, 2) is None


def test_the_longest_is_taken_first():
    assert side_by_side([gru(64), gru(256), gru(128)], [(1, 50, 50)] * 3, [False] * 3, 3) == (1, 2, 0)


def test_waves_and_runs_of_parts():
    def part(reads: tuple[int, ...], *results: int) -> Part:
        return Part("recurrence", reads, results)

    parts = [part((0, -1), 1, -1), part((0,), 2), part((1, -1), 3), part((2, 3), 4), part((0,), 5)]
    assert waves_of(parts) == ((0, 1, 4), (2,), (3,))
    assert runs_of(parts, lambda place: place != 2) == [(0, 1), (2,), (3, 4)]


def test_explain_says_which_parts_run_at_the_same_time():
    params = cells.CELLS["gru"].parameters(8, 16, seed=0)
    ahead, back = (cells.rnn("gru", params, reverse=reverse) for reverse in (False, True))
    graph = sn.Graph(lambda x, _: sn.Bidirectional(ahead, back)(x)[0], inputs=8)
    assert "parts 0, 1: at the same time at small batches" in " ".join(graph.explain().split())
    assert "at the same time" not in graph.explain("interpret")
    alone = sn.Graph(lambda x, _: ahead(ahead(x)[0][..., :8])[0], inputs=8)
    alone(np.zeros((1, 2, 8), "f4"))
    assert "at the same time" not in alone.explain()
