"""The sums over sequences in machine code: against float64, for every target, dtype and layout."""

from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.targets.cpu import Processor, available_targets
from stepnet.compiler.targets.cpu.running.sums import sums
from stepnet.ragged import offsets_of

Array = np.ndarray
TARGETS = available_targets()


def right(values: Array, places: Array, offsets: Array) -> Array:
    """The sums in float64, one sequence at a time."""
    wide = values.astype("float64")[places]
    return np.array([wide[a:b].sum(axis=0) for a, b in pairwise(offsets)])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    shape=st.sampled_from([(1,), (3,), (16,), (64,), (70,), (5, 7), ()]),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 99),
)
def test_they_are_the_sums(
    target: Processor, lengths: list[int], shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = sum(lengths) + 3
    values = random.uniform(-1, 1, (rows, *shape)).astype(dtype)
    places, offsets = random.permutation(rows)[: sum(lengths)], offsets_of(np.array(lengths))
    found = sums(values, places, offsets, target)
    assert found.dtype == values.dtype
    assert_close(found, right(values, places, offsets), max(lengths))


def test_a_sequence_has_its_own_bits() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (50, 37)).astype("float32")
    alone = sums(values, np.arange(20, 45), np.array([0, 25]), TARGETS[0])
    beside = sums(values, np.r_[5:12, 20:45], np.array([0, 7, 32]), TARGETS[0])
    assert alone[0].tobytes() == beside[1].tobytes()


def test_other_dtypes_are_added_by_numpy() -> None:
    values = np.arange(12).reshape(4, 3)
    found = sums(values, np.array([2, 0, 1]), np.array([0, 2, 3]), TARGETS[0])
    assert (found.dtype, found.tolist()) == (values.dtype, [[6, 8, 10], [3, 4, 5]])


def test_a_row_that_is_no_number_stays_in_its_sequence() -> None:
    values = np.ones((4, 20), "float32")
    values[3] = np.nan
    found = sums(values, np.array([0, 1, 3]), np.array([0, 2, 3]), TARGETS[0])
    assert (found[0] == 2).all()
    assert np.isnan(found[1]).all()


def shifted(x: Any, h: Any, shift: Any) -> tuple[Any, Any]:
    y = x + shift
    return y, y


@pytest.mark.parametrize("columns", [1, 2, 37])
def test_sums_over_all_rows_have_the_bits_of_numpy(columns: int) -> None:
    """In a first and in a prepared call; NumPy adds a single column in another order than several."""
    random = np.random.default_rng(columns)
    run = sn.vjp(sn.RNN(shifted, np.zeros(columns, "f4"), memory=columns))
    for rows in (1, 7, 8, 300):
        x, given = (random.standard_normal((rows, 1, columns)).astype("f4") for _ in range(2))
        for _ in range(4):
            _, backward = run(x)
            np.testing.assert_array_equal(backward(given).params, given[:, 0].sum(axis=0), strict=True)
