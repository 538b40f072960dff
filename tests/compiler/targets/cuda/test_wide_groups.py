"""Groups of blocks that run 16 or 32 sequences, whose left operands warps read from the second cache as they
multiply them: results, bits, what the emulation finds, and what is chosen.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepnet.compiler.targets.cuda import H100, TensorSchedule, TensorShape, TensorStep, chosen, step_time
from tests.compiler.targets.cuda.tensor_loops import RAGGED, Case, backward_plan, cell_plan
from tests.compiler.targets.cuda.test_choice import DEVICE
from tests.compiler.targets.cuda.test_tensor_loops import STEPS, assert_right, case_of

DIRECT = TensorSchedule(2, "grid", chains=1, parts=2, resident=2, unsplit=1, places=0, rows=16)
LENGTHS = [*RAGGED, *RAGGED[::-1], 1, 0, 4]
"""The steps of 23 sequences: two turns of a group of 16, and one of 32 whose last lanes are idle."""


@pytest.mark.long(every=6)
@pytest.mark.parametrize("name", [*STEPS, "float16 gru", "bfloat16 lstm"])
@pytest.mark.parametrize(("parts", "rows", "places"), [(2, 16, 0), (8, 32, 0), (4, 16, 1), (1, 32, 2)])
def test_wide_groups_give_what_the_interpreter_gives(name: str, parts: int, rows: int, places: int):
    its = replace(
        DIRECT, parts=parts, rows=rows, places=places, chains=1 + 2 * (parts == 4), ahead=1 + parts % 3
    )
    its = its if places == 0 else replace(its, exchange="tagged")
    dtype, _, cell = name.rpartition(" ")
    plan = cell_plan(cell, 24, dtype) if "float" in dtype else STEPS[name]()
    assert_right(case_of(plan, LENGTHS, reverse=parts == 2), its, seed=parts, groups=1)


@pytest.mark.parametrize("name", ["gru", "backward lstm", "bfloat16 gru", "minimal_gated_unit"])
def test_a_sequence_has_the_same_bits_in_groups_of_8_16_and_32(name: str):
    make = backward_plan if name.startswith("backward") else cell_plan
    plan = make(name.split()[-1], 24, "bfloat16" if name.startswith("bfloat16") else "float32")
    case = Case.drawn(TensorStep.of(plan), LENGTHS)
    narrow = replace(DIRECT, exchange="tagged", places=1, rows=8)
    first = case.run(narrow, groups=1)
    schedules = (DIRECT, replace(DIRECT, rows=32), replace(narrow, rows=16), replace(narrow, rows=32))
    for seed, its in enumerate(schedules):
        again = case.run(its, seed + 1, groups=1 + seed % 2, refilled=2 * (seed == 1))
        for one, other in zip((*first[0], *first[1]), (*again[0], *again[1]), strict=True):
            assert np.array_equal(one, other, equal_nan=True), its.name


def test_infinite_and_missing_numbers_stay_in_their_sequences():
    case = case_of(cell_plan("gru", 16), [3] * 20)
    case.memories[0][3], case.memories[0][17] = np.nan, 2
    found, _ = case.run(DIRECT, groups=1)
    assert np.isnan(found[0][9:12]).any()
    assert np.isfinite(np.delete(found[0], range(9, 12), 0)).all()


def test_a_missing_barrier_is_found():
    case = case_of(cell_plan("gru", 32), [4] * 18)
    expected = case.expected()[1][0]
    racy = replace(DIRECT, without="barrier")
    wrong = [
        seed for seed in (1, 2, 3) if not np.allclose(case.run(racy, seed, 1)[1][0], expected, atol=1e-4)
    ]
    assert wrong


def test_a_missing_block_is_found():
    with pytest.raises(RuntimeError, match="threads wait for each other"):
        case_of(cell_plan("gru", 32)).run(DIRECT, missing=1)


def test_what_cannot_be_read_as_it_is_multiplied_is_refused():
    with pytest.raises(
        ValueError, match='only where several warps divide a sum and blocks exchange values by "grid"'
    ):
        TensorSchedule(2, "tagged", parts=4, places=0)
    with pytest.raises(
        ValueError, match="or 16 or 32 where values go through the second cache, not 16 and 1"
    ):
        TensorSchedule(rows=16)
    step = TensorStep.of(cell_plan("gru", 32))
    assert "no whole reads of 16 bytes" in str(TensorShape(step, replace(DIRECT, rows=8)).misfit(DEVICE))
    packed = replace(DIRECT, numbers="bfloat16", states="bfloat16")
    assert "not numbers of float32" in str(TensorShape(step, packed).misfit(DEVICE))


@pytest.mark.parametrize("name", ["gru", "lstm", "minimal_gated_unit", "backward lstm"])
def test_64_sequences_of_1024_units_take_one_turn(name: str):
    make: Any = backward_plan if name.startswith("backward") else cell_plan
    best, *others = chosen(make(name.split()[-1], 1024), 64, DEVICE)
    assert best.shape.schedule.name.startswith("grid64-float32-p8-c1")
    assert best.shape.schedule.name.endswith("-r32-direct")
    assert (best.pace.at_once, best.microseconds) == (2, best.pace.step)
    narrow = [each.microseconds for each in others if each.shape.schedule.rows == 8]
    assert all(best.microseconds < 0.6 * each for each in narrow)
    assert bool(narrow) == (name != "backward lstm")  # 8 sequences alone do not fit, as 131 KB of them do not


def test_rates_of_tensor_cores_and_of_the_second_cache_bound_the_time_of_a_step():
    shape = chosen(cell_plan("lstm", 1024), 64, DEVICE)[0].shape
    assert shape.instructions == 4 * 4 * 16 * 3
    slow = replace(H100, product=1.0)
    assert step_time(shape, slow).products == pytest.approx(shape.instructions * 2)
    slow = replace(H100, direct=1.0)
    read, waited = 1024 * 32 * 4, 1024 * 32 * 4 / 16
    time, usual = step_time(shape, slow), step_time(shape, replace(H100, direct=0.0))
    assert time.products == pytest.approx(read - waited)
    assert time.exchange == pytest.approx(usual.exchange + waited)
    slow = replace(H100, link=1.0)
    assert step_time(shape, slow).products == pytest.approx(16 * 3)
