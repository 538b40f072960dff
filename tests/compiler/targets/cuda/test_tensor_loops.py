"""Loops on tensor cores in emulation: results, bits, and what the emulation finds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cuda import TensorSchedule, TensorShape, TensorStep, refuse
from tests.compiler.targets.cuda.tensor_loops import RAGGED, Case, backward_plan, cell_plan, step_plan

Array = np.ndarray
BLOCK = TensorSchedule(chains=3)
GRID, TAGGED, CLUSTER = (TensorSchedule(2, kind, chains=3) for kind in ("grid", "tagged", "cluster"))


def assert_right(case: Case, schedule: TensorSchedule, seed: int = 1, groups: int | None = None) -> None:
    """Asserts that a loop gives what the interpreter gives."""
    found, expected = case.run(schedule, seed, groups), case.expected()
    for ours, theirs in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert_close(ours, theirs, max(case.lengths, default=1), 4 * case.step.width)


def case_of(plan: Plan, lengths: list[int] = RAGGED, reverse: bool = False) -> Case:
    """Random operands for the step of a plan."""
    assert refuse(plan) is None
    return Case.drawn(TensorStep.of(plan), lengths, reverse)


# ---- steps


def layer_norm(x: Any, h: Any, p: Any) -> Any:
    """A step with a mean and a variance over all units."""
    z = x @ p["W"] + h @ p["R"]
    away = z - z.mean(-1, keepdims=True)
    h = np.tanh(away / np.sqrt((away * away).mean(-1, keepdims=True) + 1e-5) * p["g"])
    return h, h


def joined(x: Any, h: Any, p: Any) -> Any:
    """A step with a bool, with gates as columns of one product, and an output of several values."""
    z = x @ p["W"] + h @ p["R"]
    after = sn.sigmoid(z[..., :20]) * np.where(z[..., 20:40] > 0, h, 0.5 * h) + np.tanh(z[..., 40:])
    return np.concatenate([after, h * after], -1), after


def two_lefts(x: Any, h: Any, p: Any) -> Any:
    """A step whose output layer reads two values, and a product of one number."""
    gate = sn.sigmoid(h @ p["v"] + x[..., :1])
    after = np.tanh(x @ p["W"] + gate * (h @ p["R"]))
    return np.concatenate([after, gate], -1), np.tanh(np.concatenate([after, h], -1) @ p["A"])


STEPS: dict[str, Callable[[], Plan]] = {
    "gru": lambda: cell_plan("gru", 24),
    "lstm": lambda: cell_plan("lstm", 16),
    "minimal_gated_unit": lambda: cell_plan("minimal_gated_unit", 20),
    "gru_reset_before": lambda: cell_plan("gru_reset_before", 32),
    "lstm_projection": lambda: cell_plan("lstm_projection", 16),
    "lstm_peephole": lambda: cell_plan("lstm_peephole", 12),
    "backward gru": lambda: backward_plan("gru", 20),
    "backward lstm": lambda: backward_plan("lstm", 16),
    "backward minimal_gated_unit": lambda: backward_plan("minimal_gated_unit", 24),
    "layer norm": lambda: step_plan(layer_norm, 20, W=(6, 20), R=(20, 20), g=(20,)),
    "joined": lambda: step_plan(joined, 20, W=(6, 60), R=(20, 60)),
    "two lefts": lambda: step_plan(two_lefts, 12, W=(6, 12), R=(12, 12), v=(12, 1), A=(24, 12)),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("schedule", [BLOCK, GRID, TAGGED, CLUSTER], ids=lambda its: its.name)
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("name", STEPS)
def test_loops_give_what_the_interpreter_gives(name: str, parts: int, schedule: TensorSchedule):
    its = replace(schedule, parts=parts, ahead=1 + parts % 3, resident=4 if parts == 1 else 100)
    assert_right(case_of(STEPS[name](), reverse=parts == 2), its, groups=1 if parts < 4 else None)


def test_units_that_are_alone_exchange_nothing():
    case = case_of(cell_plan("rg_lru", 40))
    assert_right(case, TensorSchedule(3, "alone", ahead=4))
    assert TensorShape(case.step, TensorSchedule(3, "alone")).scratch == 0


def test_steps_lie_anywhere_and_memories_begin_with_zeros():
    case = case_of(cell_plan("gru", 16), [3, 7, 0, 1, 5])
    for name in ("sequences",):  # time first: step t of sequence i is entry 5 t + i
        setattr(case, name, [np.random.default_rng(1).random((35, 16), "f4") for _ in case.sequences])
    case.starts, case.steps, case.zeros = [0, 1, 2, 3, 4], 5 * np.arange(7), True
    assert_right(case, replace(BLOCK, ahead=2))
    case.reverse = True
    assert_right(case, BLOCK)


@pytest.mark.parametrize("done", [None, [5, 0, 2, 9]])
def test_steps_have_numbers(done: list[int] | None):
    def counting(x: Any, h: Any, p: Any, index: Any) -> Any:
        after = np.tanh(h @ p["R"] + index[:, None].astype("f4") / 8)
        return after, after

    case = case_of(step_plan(counting, 16, R=(16, 16)), [3, 1, 0, 2], reverse=done is not None)
    case.done = done
    assert_right(case, replace(BLOCK, ahead=2))


@pytest.mark.parametrize("lengths", [[0], [0, 0, 0], [1], [2, 0, 0, 0, 0, 0, 0, 0, 0]])
def test_few_and_empty_sequences(lengths: list[int]):
    case = case_of(cell_plan("simple_rnn", 16), lengths)
    for schedule in (BLOCK, replace(BLOCK, ahead=3)):
        assert_right(case, schedule)


# ---- bits


def test_schedules_and_orders_of_threads_give_the_same_bits():
    case = case_of(cell_plan("simple_rnn", 24), [4, 2, 5])
    first, *others = (case.run(its, seed)[0][0] for seed, its in enumerate((BLOCK, GRID, TAGGED, CLUSTER)))
    assert all(np.array_equal(first, other) for other in others)
    assert np.array_equal(first, case.run(replace(BLOCK, resident=2, ahead=2), 5)[0][0])


def test_a_sequence_has_the_same_bits_alone_and_in_any_batch():
    case = case_of(cell_plan("gru", 16), RAGGED)
    outputs, last = case.run(BLOCK, groups=1)
    for row in (0, 1, 8):
        alone, first = case.alone(row), case.starts[row]
        its, after = alone.run(BLOCK, seed=row)
        assert np.array_equal(its[0], outputs[0][first : first + RAGGED[row]])
        assert np.array_equal(after[0][0], last[0][row])


@pytest.mark.parametrize(("numbers", "least", "most"), [("tf32", 1e-5, 4e-3), ("bfloat16", 1e-4, 4e-2)])
def test_rounded_products_are_not_float32(numbers: Any, least: float, most: float):
    case = case_of(cell_plan("simple_rnn", 24), [5, 2])
    found, expected = case.run(TensorSchedule(numbers=numbers, parts=2)), case.expected()
    assert least < np.abs(found[0][0] - expected[0][0]).max() < most


def test_sums_over_units_have_all_digits_if_products_are_rounded():
    plan = step_plan(lambda x, h, p: (h + x[..., :1], h / (1 + h.sum(-1, keepdims=True))), 24)
    assert_right(case_of(plan, [3, 1]), TensorSchedule(numbers="bfloat16"))


def test_approximate_functions_are_as_exact_as_products_in_tf32_need():
    case = case_of(cell_plan("lstm", 16), [6, 3])
    exact, fast = (case.run(replace(BLOCK, functions=kind))[0][0] for kind in ("exact", "fast"))
    assert not np.array_equal(exact, fast)
    assert_close(fast, exact.astype("f8"), 6, 32)


# ---- what the emulation finds


def test_a_missing_barrier_is_found():
    case = case_of(cell_plan("simple_rnn", 32), [4, 2])
    racy = replace(BLOCK, without="barrier")
    expected = case.expected()[1][0]
    wrong = [seed for seed in (1, 2) if not np.allclose(case.run(racy, seed)[1][0], expected)]
    assert wrong


@pytest.mark.parametrize("schedule", [GRID, TAGGED, CLUSTER], ids=lambda its: its.exchange)
def test_a_missing_block_is_found(schedule: TensorSchedule):
    case = case_of(cell_plan("simple_rnn", 32))
    with pytest.raises(RuntimeError, match="deadlock: 32 of 96 threads wait for each other"):
        case.run(schedule, missing=1)


# ---- what does not fit


def test_tags_of_an_earlier_call_are_cleared():
    step = TensorStep.of(cell_plan("gru", 32))
    tagged, grid = TensorShape(step, TAGGED), TensorShape(step, GRID)
    assert tagged.zeros == tagged.scratch == 256 + 2 * 32 * 8 * 2 * 4
    assert (grid.zeros, grid.scratch) == (256, 256 + 2 * 32 * 8 * 4)


@pytest.mark.parametrize(
    ("step", "shapes", "reason"),
    [
        (lambda x, h, p: (h, h[..., ::-1] + x[..., :1]), {}, "it moves values between units"),
        (lambda x, h, p: (h, h * h.max(-1, keepdims=True)), {}, "it is no sum of all features"),
        (lambda x, h, p: (h, np.remainder(h + x[..., :1], 2)), {}, "it calls a function of the C library"),
        (lambda x, h, p: (h, np.concatenate([h[..., 8:], h[..., :8]], -1)), {}, "moves values between units"),
        (lambda x, h, p: (h, (h.astype("f8") + 1).astype("f4")), {}, "the dtype is not one of float32"),
    ],
)
def test_steps_that_do_not_fit_tensor_cores_are_refused(
    step: Callable[..., Any], shapes: dict[str, tuple[int, ...]], reason: str
):
    assert reason in str(refuse(step_plan(step, 16, **shapes)))


def test_schedules_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="a group of 2 blocks cannot exchange values by 'block'"):
        TensorSchedule(blocks=2)
