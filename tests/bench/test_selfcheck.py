"""The checks on a GPU, in emulation: their lines, and what they say of wrong results."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.gpu import selfcheck
from bench.gpu.pointwise import differing, groups
from bench.gpu.selfcheck import ANYWHERE, checked, main, ulps
from stepnet.compiler.targets.cuda.device import Device
from stepnet.compiler.targets.cuda.emulator import EmulatedDevice
from stepnet.errors import DeviceError


def test_a_check_that_is_right(capsys: pytest.CaptureFixture[str]):
    name = "pointwise of bool, float32"
    row = checked(name, ANYWHERE[name], EmulatedDevice())
    assert (row["right"], row["said"]) == (True, "4 operations on 6074 numbers")
    assert capsys.readouterr().out.startswith("right  pointwise of bool, float32")


def test_checks_that_are_wrong(capsys: pytest.CaptureFixture[str]):
    def wrong(device: Device) -> None:
        raise AssertionError("3 operations")

    def failing(device: Device) -> None:
        raise DeviceError("the GPU is gone")

    rows = [checked(check.__name__, check, EmulatedDevice()) for check in (wrong, failing)]
    assert [row["right"] for row in rows] == [False, False]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("WRONG  wrong")
    assert said[0].endswith("AssertionError: 3 operations")
    assert said[1].endswith("DeviceError: the GPU is gone")


def test_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for name in [*ANYWHERE]:
        if name not in ("copies", "errors"):
            monkeypatch.delitem(selfcheck.ANYWHERE, name)
    assert main(["--emulated", str(tmp_path / "out.json")]) == 0
    summary = json.loads((tmp_path / "out.json").read_text())
    assert (summary["checks"], summary["wrong"]) == (2, [])
    assert [row["name"] for row in summary["rows"]] == ["copies", "errors"]


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
