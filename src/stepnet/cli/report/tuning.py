"""The rates of this machine, measured by calls that threads share in every way: `stepnet tune`."""

import time
from dataclasses import asdict, replace
from itertools import product

import numpy as np

from stepnet import cells
from stepnet.compiler.disk.overview import why_not
from stepnet.compiler.disk.settings import settings
from stepnet.compiler.native.system import thread_clock
from stepnet.compiler.plan.calibration import FITTED, Observation, error, fitted
from stepnet.compiler.plan.load import CallSize, Load, Machine
from stepnet.compiler.plan.partition import How
from stepnet.compiler.targets.cpu.costs import machine_for, table_machine
from stepnet.compiler.targets.cpu.lower.program import lowered
from stepnet.compiler.targets.cpu.machine.processor import host_processor
from stepnet.compiler.targets.cpu.products.reads import cycle_seconds, far_reads
from stepnet.compiler.targets.cpu.rates import are_rates, forced, store_rates
from stepnet.compiler.targets.cpu.threads.exchanges import exchange_rates
from stepnet.compiler.targets.cpu.threads.workers import WORKER_POOL
from stepnet.compiler.targets.threads import threads
from stepnet.compiler.values.records import dataclass
from stepnet.explain.bars import work_bar
from stepnet.explain.document import DocumentTable, TitledSection
from stepnet.explain.text import text
from stepnet.model.recurrence import RNN

CELLS = "gru", "lstm"
UNITS = 8, 16, 64, 128, 256, 512, 1024
ROWS = 1, 2, 4, 16, 64
WAYS: tuple[How, ...] = ("alone", "rows", "units")
SHORT, SHORT_UNITS = (4096, 2), 64
"""The rows and steps of a call of many short sequences, which one thread runs, and its units."""
MOST_STEPS, LEAST_STEPS, MOST_WORK = 200, 4, 5e7
"""The most and fewest steps of a call, and the multiply-adds of a call from which it has fewer than most."""
ROUNDS, TURN = 3, 0.007
"""All calls take turns, so often, each for so many seconds. The least time counts."""
PREPARING, FEWEST = 3, 3
"""The calls after which a further one of the same size does no more than its work, and those that are timed
at least in a turn.
"""
PATIENCE = 10
"""A turn may be so many times as long for a call whose threads were always late, as other processes run."""
WORTH = 2.0
"""A call counts if it takes so many times as long as one that does next to nothing."""
RATES = "caches", "cycle", *FITTED
"""The names of all that is measured: caches, the cycle, and rates that are fitted to times of calls."""


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

    cell, units: a named cell with as many inputs as units. rows, steps: the numbers of sequences and steps.
    """

    cell: str
    units: int
    rows: int
    steps: int
    how: How

    @property
    def is_possible(self) -> bool:
        """Tells whether threads can share the call in this way."""
        count = threads()
        return self.how == "alone" or (count > 1 and (self.how == "units" or self.rows >= count))


class TimedCall:
    """Call of a recurrence, to be timed again and again.

    least: the least seconds so far, of calls for which no thread was late.
    """

    def __init__(self, case: TimedCase, rnn: RNN, load: Load) -> None:
        """Makes the inputs of a call of a recurrence, as a case says. load: the work of the recurrence."""
        self.case, self.rnn, self.load, self.least = case, rnn, load, float("inf")
        shape = case.rows, case.steps, case.units
        self.x = np.random.default_rng(0).normal(size=shape).astype("float32")

    def run(self) -> None:
        """Runs the call once."""
        self.rnn(self.x, engine="llvm")

    @property
    def is_late(self) -> bool:
        """Tells whether threads were late in all calls so far."""
        return self.least == float("inf")

    def take_turn(self) -> None:
        """Times the call for a while, after a few calls that prepare it."""
        now = thread_clock() if self.case.how == "alone" else time.perf_counter
        with forced(self.case.how):
            for _ in range(PREPARING):
                self.run()
            begun, passed, count = time.perf_counter(), 0.0, 0
            while passed < TURN or count < FEWEST or (self.is_late and passed < PATIENCE * TURN):
                seconds = WORKER_POOL.timed(self.run, now)
                self.least = self.least if seconds is None else min(self.least, seconds)
                passed, count = time.perf_counter() - begun, count + 1

    def observation(self, call_seconds: float) -> Observation | None:
        """Returns the time of the call's work; None if no thread was in time, or if there is little work.
        call_seconds: the time of a call that does next to nothing.
        """
        case = self.case
        seconds = self.least - call_seconds
        if self.is_late or seconds <= max(0.0, (WORTH - 1) * call_seconds):
            return None
        size = CallSize(case.rows, case.steps, case.rows * case.steps)
        sets, together = {"alone": (1, 1), "rows": (threads(), 1), "units": (1, threads())}[case.how]
        return Observation(self.load, size, sets, together, seconds)


def timed_calls() -> list[TimedCall]:
    """Returns all calls to time, and ahead of them one of a single step, which does next to nothing. Those
    that are shared in the same way are of the same recurrence. Steps of which one thread would do all, while
    the others wait, are shared by none.
    """
    calls = [TimedCall(TimedCase("gru", min(UNITS), 1, 1, "alone"), *made("gru", min(UNITS)))]
    for cell, units, how in product(CELLS, UNITS, WAYS):
        sizes = [(rows, steps_of(units, rows)) for rows in ROWS]
        sizes += [SHORT] if units == SHORT_UNITS and how == "alone" else []
        cases, (rnn, load) = [TimedCase(cell, units, *size, how) for size in sizes], made(cell, units)
        if how != "units" or load.loop.is_divided(threads()):
            calls += [TimedCall(case, rnn, load) for case in cases if case.is_possible]
    return calls


def steps_of(units: int, rows: int) -> int:
    """Returns the number of steps with which a call of that many units and rows takes some milliseconds."""
    work = rows * 8 * units * units  # of a step of an LSTM
    return max(LEAST_STEPS, min(MOST_STEPS, int(MOST_WORK / work)))


def made(cell: str, units: int) -> tuple[RNN, Load]:
    """Makes a recurrence of a named cell with as many inputs as units; returns it, and its work."""
    rnn = cells.rnn(cell, cells.CELLS[cell].parameters(units, units, seed=0))
    return rnn, lowered(rnn.plan, host_processor()).load


def measure(quiet: bool = False) -> Tuning:
    """Measures how fast far memory and a cycle are and what two threads cost each other, times calls of all
    sizes in all ways, fits the rates of this machine to the times, and keeps all of them.

    quiet: whether no progress bar is drawn.
    """
    with WORKER_POOL.apart():
        return measured(quiet)


def measured(quiet: bool) -> Tuning:
    """Measures the rates of this machine, while threads stay on processors of their own, and keeps them."""
    processor = host_processor()
    table = table_machine(processor)
    far = far_reads(processor, table.caches[-1])
    caches, reads = (*table.caches[:2], far.cache), (*table.reads[:2], far.near, far.far)
    machine = replace(table, caches=caches, reads=reads, cycle=cycle_seconds(processor))
    if (exchange := exchange_rates(processor)) is not None:
        machine = replace(machine, **asdict(exchange))
    nothing, *calls = timed_calls()
    with work_bar("calls", ROUNDS * len(calls), shown=not quiet) as advance:
        for _ in range(ROUNDS):
            nothing.take_turn()
            for call in calls:
                call.take_turn()
                advance(1)
    observations = [found for call in calls if (found := call.observation(nothing.least)) is not None]
    machine = fitted(machine, observations)
    is_kept = store_rates(processor, machine)
    machine_for.cache_clear()
    return Tuning(
        str(processor),
        rates_of(table),
        rates_of(machine),
        error(table, observations),
        error(machine, observations),
        len(observations),
        None if is_kept else why_not_kept(machine),
    )


def why_not_kept(machine: Machine) -> str:
    """Returns the reason why the rates of a machine could not be kept."""
    if not are_rates(machine):
        return "some of the measured rates are zero or infinite: run it again"
    chosen = settings()
    return why_not(chosen) or f"the entry could not be written to {chosen.folder}"


def rates_of(machine: Machine) -> dict[str, float | tuple[float, ...]]:
    """Returns the rates of a machine that are measured, by name."""
    return {name: getattr(machine, name) for name in RATES}


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
