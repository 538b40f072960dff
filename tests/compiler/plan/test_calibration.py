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
    barrier=0.5e-6,
    handover=9e-6,
)


def observed(machine: Machine) -> list[Observation]:
    """Calls of all sizes and ways, with the times that the machine is estimated to take."""
    found: list[Observation] = []
    for cell in ("gru", "lstm"):
        for hidden in (16, 64, 128, 256, 512, 1024):
            work = load(cell, hidden)
            for rows in (1, 4, 16, 64):
                size = CallSize(rows, 100, 100 * rows)
                for sets, together in ((1, 1), (1, 2), *([(2, 1)] if rows > 1 else [])):
                    seconds = work.seconds(size, sets, together, machine)
                    found.append(Observation(work, size, sets, together, seconds))
    return found


def test_the_rates_of_another_machine_are_found():
    observations = observed(OTHER)
    assert error(MACHINE, observations) > 1.3
    machine = fitted(MACHINE, observations)
    assert error(machine, observations) < 1.02
    assert machine.rate == pytest.approx(OTHER.rate, rel=0.05)
    assert machine.barrier == pytest.approx(OTHER.barrier, rel=0.2)
    kept = {name: getattr(MACHINE, name) for name in vars(MACHINE) if name not in FITTED}
    assert {name: getattr(machine, name) for name in kept} == kept


def test_rates_that_no_call_depends_on_stay():
    alone = [one for one in observed(OTHER) if one.sets == one.together == 1]
    machine = fitted(MACHINE, alone)
    assert (machine.barrier, machine.handover) == (MACHINE.barrier, MACHINE.handover)


def test_no_call_takes_no_time():
    with pytest.raises(ValueError, match="a call takes more than 0 seconds, not 0"):
        Observation(load("gru", 64), CallSize(1, 1, 1), 1, 1, 0.0)
