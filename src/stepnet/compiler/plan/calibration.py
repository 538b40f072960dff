"""Rates of a machine, fitted to the measured times of calls.

    measured times of calls          rates of a table      ->      rates of this machine
    gru of 64, 1 row: 31 us          reads, flops, ...             the same fields, as the times say

The estimates of `load.py` are products and sums of a few rates. Each rate is multiplied by a factor so that
the estimates of all calls come as near to their times as they can.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, isfinite, log

from stepnet.compiler.plan.load import CallSize, Load, Machine
from stepnet.compiler.values.records import dataclass

FITTED = ("reads", "rate", "flops", "step", "sequence", "handover", "barrier", "exchange")
"""The fields of a machine that are fitted. What caches hold, and when threads are worth it, stays. What
threads cost each other is measured by itself before, but some of that time may be none in a call, as the
processor computes meanwhile.
"""
MOST = 16.0
"""The largest factor between a fitted rate and that of the table. What is beyond it was not measured well."""
KNOWN = 0.05
"""The weight of a rate that stays as it is, in observations."""
DISTURBED = 0.2
"""The natural logarithm of the factor from which a miss counts less than its square: other processes may have
disturbed the time.
"""
FIRST, LAST = 2.0, 1.01
"""The factors by which a rate is changed at first and at last, to see whether the estimates come nearer."""


@dataclass(frozen=True)
class Observation:
    """Measured time of a call.

    load, size: the work of the recurrence, and the size of the call.
    sets: the number of threads with sequences of their own. together: the number of threads that share each
        step.
    seconds: the time.
    """

    load: Load
    size: CallSize
    sets: int
    together: int
    seconds: float

    def __post_init__(self) -> None:
        """Raises `ValueError` for a time that no call takes."""
        if not (isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"a call takes more than 0 seconds, not {self.seconds}")

    def error(self, machine: Machine) -> float:
        """Returns the natural logarithm of the estimated time over the measured one."""
        estimate = self.load.seconds(self.size, self.sets, self.together, machine)
        return log(estimate / self.seconds)


def error(machine: Machine, observations: Sequence[Observation]) -> float:
    """Returns the factor by which estimates miss measured times (1.1 for a tenth), as the root mean square of
    logarithms, in which large errors count most.
    """
    squares = sum(observation.error(machine) ** 2 for observation in observations)
    return exp((squares / len(observations)) ** 0.5)


def misfit(machine: Machine, observations: Sequence[Observation]) -> float:
    """Sums the squares of the errors of estimates. An error beyond `DISTURBED`, as of a call that another
    process disturbs, counts only linearly.
    """
    errors = (abs(observation.error(machine)) for observation in observations)
    return sum(each * each if each < DISTURBED else DISTURBED * (2 * each - DISTURBED) for each in errors)


def fitted(machine: Machine, observations: Sequence[Observation]) -> Machine:
    """Fits the rates of a machine to measured times, by changing one rate at a time while that helps.

    machine: the rates to begin with. That a rate is the one to begin with counts as `KNOWN` observations, so
        that rates on which the times hardly depend stay near it.
    """
    factors = dict.fromkeys(names_of(machine), 1.0)

    def cost(factors: dict[tuple[str, int], float]) -> float:
        """Returns the misfit of the estimates, plus the distance of the rates from the initial ones."""
        changes = KNOWN * sum(log(factor) ** 2 for factor in factors.values())
        return misfit(scaled(machine, factors), observations) + changes

    best, change = cost(factors), FIRST
    while change > LAST:
        improved = False
        for name in factors:
            for factor in (factors[name] * change, factors[name] / change):
                if not 1 / MOST <= factor <= MOST:
                    continue
                found = cost({**factors, name: factor})
                if found < best * (1 - 1e-6):
                    factors[name], best, improved = factor, found, True
        if not improved:
            change **= 0.5
    return scaled(machine, factors)


def names_of(machine: Machine) -> list[tuple[str, int]]:
    """Lists the fitted numbers of a machine, as the name of a field and the position in it."""
    counts = {name: len(machine.reads) if name == "reads" else 1 for name in FITTED}
    return [(name, index) for name, count in counts.items() for index in range(count)]


def scaled(machine: Machine, factors: dict[tuple[str, int], float]) -> Machine:
    """Returns a machine whose numbers are multiplied by factors, by `names_of`."""
    reads = tuple(rate * factors["reads", index] for index, rate in enumerate(machine.reads))
    others = {name: getattr(machine, name) * factors[name, 0] for name in FITTED if name != "reads"}
    return replace(machine, reads=reads, **others)
