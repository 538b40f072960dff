"""The monitor of a motor: in C it finds the faults that its stream finds, with the bits of NumPy."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from examples_as_modules import example
from tolerance import assert_close

from stepnet.compiler.targets.frame import FrameRun

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
SOME = 350
"""The frames that NumPy runs, among them a fault."""
COMPILER = shutil.which("gcc")


@pytest.mark.skipif(COMPILER is None, reason="gcc is missing")
def test_the_monitor_in_c_finds_the_faults_of_the_held_out_series(tmp_path: Path):
    module = example("motor_monitor")
    rnn, made = module.make(tmp_path)
    alarms = module.run(tmp_path, COMPILER, STRICT)
    series = module.motor(module.FRAMES, 200, module.FAULTS)
    run, stream = FrameRun(made.program), rnn.stream(rows=1)
    numpys = [run.step(frame)[0][0] for frame in series[:SOME]]
    np.testing.assert_array_equal(alarms[:SOME], numpys)
    streamed = np.concatenate([stream.step(frame[None]) for frame in series])[:, 0]
    assert_close(alarms, streamed, len(series), module.HIDDEN)
    judgement = module.judge(alarms)
    assert judgement == module.judge(streamed)
    assert judgement.delays.keys() == module.FAULTS.keys()
    assert max(judgement.delays.values()) < 60
    assert judgement.false == 0
    assert made.sizes.ram_bytes < 1_000
    assert made.sizes.constant_bytes < 5_000


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
