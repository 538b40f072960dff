"""Loops whose products plain units compute, of few sequences in a block, in emulation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.compiler.targets.cuda import (
    TensorSchedule,
    TensorShape,
    assembled,
    chosen,
    code_of,
    ptxas,
    registers,
)
from stepnet.compiler.targets.cuda.tensor.registers import limit
from tests.compiler.targets.cuda.tensor_loops import (
    DEVICE,
    RAGGED,
    backward_plan,
    cell_plan,
    loops_of,
    step_plan,
)
from tests.compiler.targets.cuda.test_tensor_loops import STEPS, assert_right, case_of

PLAIN = {
    (parts, rows): TensorSchedule(1, "plain", "float32", 2, parts, functions="short", ahead=2, rows=rows)
    for parts, rows in ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4))
}
CELLS = "gru", "lstm", "minimal_gated_unit", "layer_normed", "slstm"


@pytest.mark.parametrize(("parts", "rows"), PLAIN)
@pytest.mark.parametrize("name", STEPS)
def test_loops_give_what_the_interpreter_gives(name: str, parts: int, rows: int):
    its = replace(PLAIN[parts, rows], ahead=1 + rows % 3, chains=rows)
    assert_right(case_of(STEPS[name](), reverse=rows == 2), its, groups=3 if rows < 4 else None)


@pytest.mark.parametrize("parts", [2, 4])
def test_a_sequence_has_the_same_bits_in_blocks_of_any_size_and_in_any_order_of_threads(parts: int):
    case = case_of(cell_plan("gru", 40), RAGGED)
    outputs, last = case.run(PLAIN[parts, parts])
    for seed, rows in enumerate((rows for each, rows in PLAIN if each == parts), 1):
        others = case.run(PLAIN[parts, rows], seed)
        np.testing.assert_array_equal(others[0][0], outputs[0])
        np.testing.assert_array_equal(others[1][0], last[0])
    for row in (0, 1, 8):
        first = case.starts[row]
        its, after = case.alone(row).run(PLAIN[parts, 1 + row % 2], seed=row)
        np.testing.assert_array_equal(its[0], outputs[0][first : first + RAGGED[row]])
        np.testing.assert_array_equal(after[0][0], last[0][row])


def test_lanes_are_refilled():
    case = case_of(cell_plan("minimal_gated_unit", 16), RAGGED)
    expected, _ = case.run(PLAIN[4, 1])
    for rows in (2, 4):
        found, _ = case.run(PLAIN[4, rows], groups=1, refilled=2)
        np.testing.assert_array_equal(found[0], expected[0])


@pytest.mark.parametrize("its", PLAIN.values(), ids=lambda its: its.name)
def test_a_missing_barrier_is_noticed(its: TensorSchedule):
    case = case_of(cell_plan("simple_rnn", 48), [9, 9, 9])
    expected, _ = case.run(its)
    found = [case.run(replace(its, without="barrier"), seed)[0][0] for seed in range(1, 4)]
    assert not all(np.array_equal(each, expected[0]) for each in found)


def test_sums_are_as_exact_as_float32():
    """Of many terms, none of which a number of tf32 has: the error of a sum is that of float32."""
    case = case_of(cell_plan("simple_rnn", 96), [1, 1])
    (found, *_), _ = case.run(PLAIN[4, 2])
    (expected, *_), _ = case.expected()
    assert np.abs(found - expected).max() < 4e-7


@pytest.mark.parametrize("values", [{"parts": 8}, {"blocks": 2}, {"rows": 4}, {"exchange": "block"}])
def test_schedules_that_do_not_exist_are_refused(values: dict[str, object]):
    with pytest.raises(ValueError, match=r"a block of plain units has 2 or 4 parts and up to as many"):
        replace(PLAIN[2, 1], **values)


@pytest.mark.parametrize("rows", [1, 4])
def test_weights_in_shared_memory_give_the_same_bits(rows: int):
    case, its = case_of(cell_plan("gru", 40), RAGGED), PLAIN[4, rows]
    (expected, *_), _ = case.run(its)
    away = replace(its, resident=5)
    assert TensorShape(case.step, away).away == 3 * 3 - 5
    np.testing.assert_array_equal(case.run(away, seed=rows)[0][0], expected)


def test_what_does_not_fit_is_said():
    step = case_of(cell_plan("lstm", 128)).step
    shape, many = (TensorShape(step, replace(PLAIN[parts, 1], resident=0)) for parts in (2, 4))
    assert shape.misfit(DEVICE) == "it needs 263168 bytes of shared memory, and a block has 232448"
    assert many.misfit(DEVICE) == "its weights do not fit registers"
    assert all(not each.shape.is_plain for each in loops_of(cell_plan("gru", 256)))
    with pytest.raises(ValueError, match="left operands need 2 places in shared memory, not 1"):
        replace(PLAIN[2, 1], places=1)


SHORT = {
    "sigmoid": (sn.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (np.tanh, np.tanh),
    "exp": (np.exp, np.exp),
    "sqrt": (np.sqrt, np.sqrt),
    "quotient": (lambda x: 3 / x, lambda x: 3 / x),
    "part": (lambda x: x / 192, lambda x: x / 192),
}
"""Functions that plain units compute by instructions of the GPU, and what they are."""


@pytest.mark.parametrize(("function", "right"), SHORT.values(), ids=SHORT)
def test_short_functions_are_within_units_of_the_last_place(
    function: Callable[[Any], Any], right: Callable[[Any], Any]
):
    """Relative to the result, where that is no smaller than a normal number."""
    special = [np.inf, -np.inf, np.nan, 89.0, 95.0, 103.9, 200.0, -120.0, 0.0, -0.0, 1e-30]
    xs = np.concatenate([np.linspace(-87, 88, 700), np.linspace(-1, 1, 101), special]).astype("f4")
    plan = step_plan(lambda x, h, p: (function(h), h + x[..., :1] * (h @ p["R"])), 2, R=(2, 2))
    case = case_of(plan, [1] * (len(xs) // 2))
    given = xs.reshape(-1, 2)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        its = replace(case, memories=[given], others=[np.zeros_like(each) for each in case.others])
        (found, *_), _ = its.run(PLAIN[2, 2])
        expected = right(given.astype("f8"))
        is_normal = (np.abs(expected) > 1e-37) & (np.abs(expected) < 3e38)
        exact = expected[is_normal]
        assert (np.abs(found[is_normal] - exact) / np.abs(exact)).max() < 4 * 2**-23
        np.testing.assert_allclose(found[~is_normal], expected[~is_normal].astype("f4"), atol=1e-37)


@pytest.mark.parametrize("name", CELLS)
def test_they_are_chosen_for_64_units(name: str):
    """By the estimates, while each sequence has a multiprocessor; others for many."""
    plan = cell_plan(name, 64)
    for count in (1, 16, 128):
        best = chosen(plan, count, DEVICE)[0].shape
        assert best.is_plain
        assert best.schedule.rows == 1
    assert not chosen(plan, 1024, DEVICE)[0].shape.is_plain
    assert not any(each.shape.is_plain for each in loops_of(plan, "tf32"))


@pytest.mark.parametrize("name", CELLS)
def test_they_are_chosen_for_128_units_with_weights_in_shared_memory(name: str):
    best = loops_of(cell_plan(name, 128))[0].shape
    assert best.is_plain
    assert (best.away > 0) == (name != "minimal_gated_unit")


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.long(every=30)
@pytest.mark.parametrize("width", [32, 64, 96, 128])
@pytest.mark.parametrize("backward", [False, True], ids=["", "backward"])
@pytest.mark.parametrize("name", CELLS)
def test_registers_hold_all_weights(name: str, backward: bool, width: int):
    plan = (backward_plan if backward else cell_plan)(name, width)
    for shape in (each.shape for each in loops_of(plan) if each.shape.is_plain):
        found, most = assembled(code_of(shape).code), limit(shape, DEVICE)
        assert found.spilled == 0
        assert found.registers <= registers(shape, DEVICE) or most < 255
