"""Loops on tensor cores whose weights are more than registers hold: results, bits, and what fits a device."""

from dataclasses import replace

import numpy as np
import pytest
from tolerance import assert_close

from stepnet.compiler.targets.cuda import TensorSchedule, TensorShape, TensorStep, fitted, registers
from stepnet.compiler.targets.cuda.tensor.registers import TIGHT, limit
from tests.compiler.targets.cuda.tensor_loops import DEVICE, RAGGED, Case, cell_plan
from tests.compiler.targets.cuda.test_tensor_loops import STEPS, assert_right, case_of

SPLIT_LATE = TensorSchedule(chains=3, parts=8, resident=1, unsplit=2, places=1)
"""One operand in registers as it is multiplied, two as float32, and the others in shared memory."""


@pytest.mark.parametrize(
    ("name", "exchange", "parts"),
    [
        ("lstm", "grid", 4),
        ("backward lstm", "tagged", 8),
        ("gru_reset_before", "block", 4),
        ("layer norm", "tagged", 2),
        ("two lefts", "block", 8),
    ],
)
def test_split_weights_and_single_places_give_what_the_interpreter_gives(
    name: str, exchange: str, parts: int
):
    lengths = RAGGED if name.startswith("backward ") else [3, 0, 4, 1]
    case = case_of(STEPS[name](), lengths, reverse=parts == 2)
    blocks = 1 if exchange == "block" else 2
    its = replace(SPLIT_LATE, blocks=blocks, exchange=exchange, parts=parts)
    assert_right(case, its, seed=parts, groups=1)


def test_where_weights_lie_does_not_change_bits():
    case = Case.drawn(TensorStep.of(cell_plan("gru", 24)), [4, 2, 5])
    whole = replace(SPLIT_LATE, resident=100, unsplit=0, places=2)
    first = case.run(whole)[0][0]
    for seed, its in enumerate(
        [
            SPLIT_LATE,
            replace(SPLIT_LATE, resident=0, unsplit=100),
            replace(whole, blocks=2, exchange="cluster"),
            replace(SPLIT_LATE, blocks=2, exchange="tagged", ahead=2),
        ]
    ):
        assert np.array_equal(case.run(its, seed + 1)[0][0], first), its.name


def test_left_operands_of_warps_that_do_not_meet_need_two_places():
    with pytest.raises(
        ValueError, match="left operands need 2 places in shared memory, not 1, where 1 warps"
    ):
        TensorSchedule(places=1)
    with pytest.raises(ValueError, match="exchange values by 'cluster': they are written while others"):
        TensorSchedule(2, "cluster", parts=4, places=1)


def test_operands_go_where_a_device_has_room():
    step = TensorStep.of(cell_plan("gru", 512))
    schedule = TensorSchedule(32, "tagged", chains=3, parts=8, resident=0, ahead=2)
    roomy = fitted(step, schedule, DEVICE)
    assert (roomy.operands, roomy.schedule.places, roomy.schedule.unsplit) == (24, 2, 0)
    assert roomy.away == 24 - roomy.schedule.resident > 0
    less = replace(DEVICE, shared=roomy.shared_bytes - 1)
    assert fitted(step, schedule, less).schedule == replace(roomy.schedule, places=1)
    single = fitted(step, schedule, less)
    least = replace(less, shared=single.shared_bytes - 8 * single.operand_bytes)
    split = fitted(step, schedule, least)
    assert (split.schedule.places, split.schedule.ahead) == (1, 1)
    assert split.away == single.away - 8
    assert split.schedule.unsplit > 0
    assert split.misfit(least) is None
    assert registers(split, least) <= limit(split, least)
    nothing = replace(least, shared=single.states_bytes)
    assert "bytes of shared memory" in str(fitted(step, schedule, nothing).misfit(nothing))


def test_a_loop_for_a_small_device_is_right():
    step = TensorStep.of(cell_plan("lstm", 32))
    schedule = TensorSchedule(2, "tagged", chains=3, parts=4, resident=0, ahead=2)
    bare = TensorShape(step, replace(schedule, places=1))
    shared = bare.states_bytes + bare.sums_bytes
    small = replace(DEVICE, shared=shared, registers=bare.threads * (TIGHT + 8))
    shape = fitted(step, schedule, small)
    assert shape.misfit(small) is None
    assert shape.schedule.unsplit > 0
    case = Case.drawn(step, [3, 0, 2])
    found, expected = case.run(shape.schedule, 1), case.expected()
    assert_close(found[0][0], expected[0][0], 3, 4 * step.width)


def test_blocks_publish_sums_of_units_that_are_only_summed():
    step = case_of(STEPS["layer norm"]()).step
    shape = TensorShape(step, TensorSchedule(4, "tagged"))
    assert (step.width, shape.width) == (20, 64)
    assert [shape.published(left) for left in step.lefts if left in step.summed] == [8]
    assert [shape.depth(each, left) for each in step.sums.values() for left in each.lefts] == [3, 1]
