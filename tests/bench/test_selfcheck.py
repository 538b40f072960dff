"""The checks on a GPU, in emulation: their rows, and what they say of wrong results."""

import numpy as np
import pytest

from bench.gpu import selfcheck
from bench.gpu.pointwise import differing, groups
from bench.gpu.selfcheck import ANYWHERE, ulps, verdict
from stepnet.compiler.targets.cuda import Device, EmulatedDevice
from stepnet.errors import DeviceError


def test_a_check_that_is_right():
    row = verdict(ANYWHERE["pointwise of bool, float32"], EmulatedDevice())
    assert (row["right"], row["said"]) == (True, "4 operations on 6074 numbers")


def test_checks_that_are_wrong():
    def wrong(device: Device) -> None:
        raise AssertionError("3 operations")

    def failing(device: Device) -> None:
        raise DeviceError("the GPU is gone")

    rows = [verdict(check, EmulatedDevice()) for check in (wrong, failing)]
    assert [row["right"] for row in rows] == [False, False]
    assert rows[0]["said"] == "AssertionError: 3 operations"
    assert rows[1]["said"] == "DeviceError: the GPU is gone"


def test_a_part_in_a_process_of_its_own():
    with pytest.raises(AssertionError, match="there is no CUDA driver here"):
        selfcheck.other_process("fork", "was forked", EmulatedDevice())


def test_distances_of_floats():
    ones = np.ones(3, "f4")
    assert ulps(ones, np.nextafter(ones, np.float32(2))) == 1
    assert ulps(np.array([0.0]), np.array([-5e-324])) == 1
    assert ulps(np.array([np.nan, 1]), np.array([1.0, 1])) == -1
    assert differing(np.array([np.nan, 1, 0.0]), np.array([-np.nan, 2, -0.0])).tolist() == [1, 2]


def test_every_operation_has_cases():
    operations = {case.node.operation for group in groups().values() for case in group}
    assert {"add", "where", "power", "cast", "remainder", "erf", "tan"} <= operations
    assert len(operations) > 40
