"""The monitor of a motor: in C it finds the faults that its stream finds."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_as_modules import example
from on_devices import main
from tolerance import assert_close

COMPILER = "cc"


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="cc is missing")
def test_the_monitor_in_c_finds_the_faults_of_the_held_out_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    module, made = example("motor_monitor"), list[Any]()

    def make(folder: Path, epochs: int) -> Any:
        made.append(module.make(folder, epochs))
        return made[0]

    main(module.__doc__, make, module.report, 2, [str(tmp_path), "--epochs", str(module.EPOCHS)])
    (made,), said = made, capsys.readouterr().out.splitlines()
    assert said[-1] == "false alarms in 1500 frames: 0"
    assert (
        f"RAM {made.made.sizes.ram_bytes} bytes, constants {made.made.sizes.constant_bytes} bytes, "
        in said[-5]
    )
    alarms, stream = np.fromfile(tmp_path / "outputs", "f4"), made.rnn.stream(rows=1)
    streamed = np.concatenate([stream.step(frame[None]) for frame in made.codes])[:, 0]
    assert_close(alarms, streamed, len(streamed), module.HIDDEN)
    judgement = module.judge(alarms)
    assert judgement == module.judge(streamed)
    assert judgement.delays.keys() == module.FAULTS.keys()
    assert max(judgement.delays.values()) < 60
    assert judgement.false == 0
    assert made.made.sizes.ram_bytes < 1_000
    assert made.made.sizes.constant_bytes < 5_000


def test_a_healthy_motor_is_the_same_before_a_fault():
    module = example("motor_monitor")
    healthy, faulty = (module.motor(400, 3, faults) for faults in ({}, module.FAULTS))
    begin, end = module.FAULTS["worn bearing"]
    np.testing.assert_array_equal(healthy[:begin], faulty[:begin])
    assert faulty[begin:end, 1].mean() > healthy[begin:end, 1].mean() + 0.05


def test_faults_that_are_missed_and_false_alarms_are_counted():
    module = example("motor_monitor")
    alarms = np.zeros(module.FRAMES)
    alarms[[0, 320, 379, 385, 600, 601, 1100]] = 2
    judgement = module.judge(alarms)
    assert judgement.delays == {"worn bearing": 20, "loose thermometer": 0}
    assert judgement.false == 2
