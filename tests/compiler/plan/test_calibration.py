"""Rates of a machine are found from the times of calls."""

from dataclasses import replace

import pytest
from wide_machine import MACHINE, load

from stepnet.compiler.plan.calibration import FITTED, Observation, error, fitted
from stepnet.compiler.plan.load import CallSize, Machine

OTHER = replace(
    MACHINE,
    reads=(300e9, 250e9, 20e9, 12e9),
    rate=290e9,
    flops=50e9,
    step=0.3e-6,
    sequence=0.5e-6,
    handover=3e-6,
    barrier=0.3e-6,
    exchange=3e9,
)


def observed(machine: Machine) -> list[Observation]:
    """Calls of all sizes and ways, with the times that the machine is estimated to take."""
    found: list[Observation] = []
    for cell in ("gru", "lstm"):
        for hidden in (16, 64, 128, 256, 512, 1024):
            work = load(cell, hidden)
            for rows, steps in (
                (1, 100),
                (4, 100),
                (16, 100),
                (64, 100),
                *([(4, 5)] if hidden < 256 else []),
            ):
                size = CallSize(rows, steps, steps * rows)
                for sets, together in ((1, 1), (1, 2), *([(2, 1)] if rows > 1 else [])):
                    seconds = work.seconds(size, sets, together, machine)
                    found.append(Observation(work, size, sets, together, seconds))
        short = CallSize(4096, 2, 8192)
        found.append(Observation(load(cell, 64), short, 1, 1, load(cell, 64).seconds(short, 1, 1, machine)))
    return found


def test_the_rates_of_another_machine_are_found():
    observations = observed(OTHER)
    assert error(MACHINE, observations) > 1.3
    machine = fitted(MACHINE, observations)
    assert error(machine, observations) < 1.02
    assert machine.rate == pytest.approx(OTHER.rate, rel=0.05)
    assert machine.step == pytest.approx(OTHER.step, rel=0.2)
    assert machine.sequence == pytest.approx(OTHER.sequence, rel=0.3)
    assert machine.barrier == pytest.approx(OTHER.barrier, rel=0.1)
    assert machine.handover == pytest.approx(OTHER.handover, rel=0.3)
    assert OTHER.exchange < machine.exchange < (OTHER.exchange * MACHINE.exchange) ** 0.5, "half of the way"
    kept = {name: getattr(MACHINE, name) for name in vars(MACHINE) if name not in FITTED}
    assert {name: getattr(machine, name) for name in kept} == kept


def test_rates_that_no_call_depends_on_stay():
    """No weights of few units are read from memory."""
    machine = fitted(MACHINE, [one for one in observed(OTHER) if one.load.loop.weights < 2**18])
    assert machine.reads[-1] == MACHINE.reads[-1]


def test_times_that_other_processes_disturbed_count_little():
    observations = observed(OTHER)[::3]
    for place in range(0, len(observations), 5):
        observations[place] = replace(observations[place], seconds=20 * observations[place].seconds)
    assert fitted(MACHINE, observations).rate == pytest.approx(OTHER.rate, rel=0.15)


def test_no_call_takes_no_time():
    with pytest.raises(ValueError, match="a call takes more than 0 seconds, not 0"):
        Observation(load("gru", 64), CallSize(1, 1, 1), 1, 1, 0.0)
