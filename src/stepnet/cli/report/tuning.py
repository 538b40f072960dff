"""The rates of this machine, measured by calls that threads share in every way: `stepnet tune`."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepnet import cells
from stepnet.compiler.disk.overview import why_not
from stepnet.compiler.disk.settings import settings
from stepnet.compiler.plan.calibration import FITTED, Observation, error, fitted
from stepnet.compiler.plan.load import CallSize, Machine
from stepnet.compiler.plan.partition import How
from stepnet.compiler.targets.cpu.costs import machine_for, table_machine
from stepnet.compiler.targets.cpu.lower.program import lowered
from stepnet.compiler.targets.cpu.machine.processor import host_processor
from stepnet.compiler.targets.cpu.rates import forced, store_rates
from stepnet.compiler.targets.threads import threads
from stepnet.explain.bars import work_bar
from stepnet.explain.document import DocumentTable, TitledSection
from stepnet.explain.text import text

CELLS = "gru", "lstm"
UNITS = 16, 64, 128, 256, 512, 1024
ROWS = 1, 2, 4, 16, 64
WAYS: tuple[How, ...] = ("alone", "rows", "units")
MOST_STEPS, LEAST_STEPS, MOST_WORK = 200, 4, 5e7
"""The most and fewest steps of a call, and the multiply-adds of a call from which it has fewer than most."""
LEAST_TURNS, TURN = 5, 0.02
"""A call is timed so often at least, and for so many seconds: the least time counts."""


@dataclass(frozen=True)
class Tuning:
    """The rates of this machine before and after a measurement, by name, and how well they fit.

    before, after: the rates; those of the table before.
    missed_before, missed_after: the factor by which estimates with these rates miss the measured times.
    calls: the number of calls that were timed.
    stored: why the rates were not kept; None if they were.
    """

    processor: str
    before: dict[str, float | tuple[float, ...]]
    after: dict[str, float | tuple[float, ...]]
    missed_before: float
    missed_after: float
    calls: int
    stored: str | None


@dataclass(frozen=True)
class TimedCase:
    """Call to be timed in one way to share it.

    cell, units, rows: a named cell with as many inputs as units, and the number of sequences.
    """

    cell: str
    units: int
    rows: int
    how: How

    @property
    def steps(self) -> int:
        """The number of steps of a call, so that it takes some milliseconds."""
        work = self.rows * 8 * self.units * self.units  # of a step of an LSTM
        return max(LEAST_STEPS, min(MOST_STEPS, int(MOST_WORK / work)))

    def observed(self) -> Observation | None:
        """Times the call; returns None if threads cannot share it in this way."""
        count = 1 if self.how == "alone" else threads()
        is_possible = self.how == "alone" or (count > 1 and (self.how == "units" or self.rows >= count))
        if not is_possible:
            return None
        rnn = cells.rnn(self.cell, cells.CELLS[self.cell].parameters(self.units, self.units, seed=0))
        x = np.random.default_rng(0).normal(size=(self.rows, self.steps, self.units)).astype("float32")
        with forced(self.how):
            seconds = least_time(lambda: rnn(x, engine="llvm"))
        size = CallSize(self.rows, self.steps, self.rows * self.steps)
        sets, together = (count, 1) if self.how == "rows" else (1, count)
        return Observation(lowered(rnn.plan, host_processor()).load, size, sets, together, seconds)


def least_time(call: Callable[[], object]) -> float:
    """Returns the least seconds of several calls, after two that prepare it."""
    for _ in range(2):
        call()
    begun, least, turns = time.perf_counter(), float("inf"), 0
    while turns < LEAST_TURNS or time.perf_counter() < begun + TURN:
        start = time.perf_counter()
        call()
        least, turns = min(least, time.perf_counter() - start), turns + 1
    return least


def measure(quiet: bool = False) -> Tuning:
    """Times calls of all sizes in all ways, fits the rates of this machine to the times, and keeps them.

    quiet: whether no progress bar is drawn.
    """
    cases = [
        TimedCase(cell, units, rows, how)
        for cell in CELLS
        for units in UNITS
        for rows in ROWS
        for how in WAYS
    ]
    processor = host_processor()
    observations = list[Observation]()
    with work_bar("calls", len(cases), shown=not quiet) as advance:
        for case in cases:
            observations += filter(None, [case.observed()])
            advance(1)
    table = table_machine(processor)
    machine = fitted(table, observations)
    store_rates(processor, machine)
    machine_for.cache_clear()
    return Tuning(
        str(processor),
        rates_of(table),
        rates_of(machine),
        error(table, observations),
        error(machine, observations),
        len(observations),
        why_not(settings()),
    )


def rates_of(machine: Machine) -> dict[str, float | tuple[float, ...]]:
    """Returns the rates of a machine that are fitted, by name."""
    return {name: getattr(machine, name) for name in FITTED}


def tuning_text(tuning: Tuning) -> str:
    """Formats the rates of a machine before and after the measurement, and how well the estimates fit."""

    def numbers(value: float | tuple[float, ...]) -> str:
        """Formats a rate, or several, with two digits."""
        return " ".join(f"{each:.2g}" for each in (value if isinstance(value, tuple) else (value,)))

    rows = [("rate", "table", "measured")]
    rows += [(name, numbers(old), numbers(tuning.after[name])) for name, old in tuning.before.items()]
    fit = f"estimates of {tuning.calls} calls miss their times by a factor of {tuning.missed_after:.2f}"
    kept = "kept in the cache" if tuning.stored is None else f"not kept: {tuning.stored}"
    items = DocumentTable(tuple(rows), ("<", ">")), f"{fit}, with the table {tuning.missed_before:.2f}", kept
    return text([TitledSection(tuning.processor, items)])
