"""The code of a plan calls a driver that all plans share: it is short, and keeps the driver loaded."""

import gc
import weakref

import numpy as np
import pytest

import stepnet as sn
from stepnet.compiler.targets.cpu import LlvmEngine

LOADED = "stepnet.compiler.targets.cpu.machine.stored_code.LOADED"


def sums() -> sn.RNN:
    """The sums of the inputs so far."""
    return sn.RNN(lambda x, total, _: (x + total, x + total), memory=3, inputs=3)


def test_the_code_of_a_sum_is_short() -> None:
    """It has loops and copies. What all plans do alike, such as the timetable, would be twice as much."""
    assert LlvmEngine().compile_plan(sums().plan).compiled.code.bytes < 1500


def test_plans_share_a_driver_which_stays_loaded_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another thread compiles it at the same time, and the last one is kept for further plans."""
    monkeypatch.setattr(LOADED, {})
    first, second = [
        LlvmEngine().compile_plan(sn.RNN(step, memory=width, inputs=width).plan)
        for step, width in ((lambda x, h, _: (h - x, h), 7), (lambda x, h, _: (h * x, h), 9))
    ]
    driver = first.compiled.code.called
    assert driver is not None
    assert second.compiled.code.called is driver
    held = weakref.ref(driver)
    monkeypatch.setattr(LOADED, {})
    del driver, second
    gc.collect()
    assert held() is not None
    del first


@pytest.mark.parametrize("lengths", [[1], [4, 4], [5, 1, 3], [2, 0, 7, 7, 1], [3] * 20])
def test_each_sequence_begins_and_ends_in_its_lane(lengths: list[int]) -> None:
    """With initial memories and final ones, in few and many lanes; of whole numbers, so sums are exact."""
    random, model = np.random.default_rng(sum(lengths)), sums()
    x = [random.integers(-9, 9, (length, 3)).astype("float32") for length in lengths]
    begin = random.integers(-9, 9, (len(lengths), 3)).astype("float32")
    outputs, final = model(sn.Ragged.from_list(x), begin)
    for place, each in enumerate(x):
        expected = begin[place] + np.cumsum(each, axis=0)
        np.testing.assert_array_equal(outputs[place], expected)
        np.testing.assert_array_equal(final[place], [begin[place], *expected][-1])
