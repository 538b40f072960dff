"""The results of one case in several runs as one, since the speed of a machine varies from run to run.

[result, result, result] --repeated--> one Repeated, whose figures are medians of runs
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from bench.runtimes.cases import Case
from bench.runtimes.results import Result
from bench.runtimes.runner import MARKS, OURS

KEPT = 3  # runs of a case that a file keeps, the latest


@dataclass(frozen=True)
class Repeated:
    """The results of one case, of one group, in one run or several, the earliest first.

    A figure is the median of the runs in which it was measured: a run may have asked fewer peers.
    """

    runs: tuple[Result, ...]

    @property
    def case(self) -> Case:
        """The case."""
        return self.runs[-1].case

    @property
    def group(self) -> str:
        """The group of cases that it was run in, "" for none."""
        return self.runs[-1].group

    @property
    def peers(self) -> list[str]:
        """The names of those that were timed in some run, in the order in which they came."""
        return list(dict.fromkeys(name for run in self.runs for name in run.timings))

    @property
    def failures(self) -> dict[str, str]:
        """Why a peer was timed in no run, the latest reason."""
        reasons = {name: why for run in self.runs for name, why in run.failures.items()}
        return {name: why for name, why in reasons.items() if name not in self.peers}

    @property
    def best(self) -> str | None:
        """The name of the fastest peer by its ratio, marks to compare with left out; None without any."""
        ratios = {name: self.ratio(name) for name in self.peers if name != OURS and name not in MARKS}
        known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        return min(known, key=known.__getitem__) if known else None

    def ratio(self, name: str | None) -> float | None:
        """Returns a peer's time over stepnet's, the median of runs; None if one was not timed."""
        ratios = self.ratios(name)
        return median(ratios) if ratios else None

    def ratios(self, name: str | None) -> list[float]:
        """Returns a peer's time over stepnet's in each run that has both."""
        return [ratio for run in self.runs if (ratio := run.ratio(name)) is not None]

    def shown(self, name: str) -> float | None:
        """Returns the time of a peer in the unit of the case's mode, for tables; None if it was not timed."""
        times = [time for run in self.runs if (time := run.shown(name)) is not None]
        return median(times) if times else None

    def seconds(self, name: str) -> float:
        """Returns the time of a peer that was timed, in seconds."""
        return median(run.timings[name].seconds for run in self.runs if name in run.timings)

    @property
    def disturbed(self) -> bool:
        """True if something else disturbed most of the runs."""
        return 2 * sum(run.disturbed for run in self.runs) > len(self.runs)


def repeated(results: Iterable[Result]) -> list[Repeated]:
    """Returns the results case by case and group by group, in the order in which they came first."""
    found: dict[tuple[str, Case], list[Result]] = {}
    for result in results:
        found.setdefault((result.group, result.case), []).append(result)
    return [Repeated(tuple(runs)) for runs in found.values()]
