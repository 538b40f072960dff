"""The results of a run, as values and as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from statistics import geometric_mean, median, quantiles
from typing import Any, Protocol

from bench.runtimes.cases import MODES, Case
from bench.runtimes.machine import Peak
from bench.runtimes.runner import MARKS, OURS
from stepnet.errors import FileError, StepnetError

FORMAT, VERSION = "stepnet-bench", 2
REFUSED = "refused: "
QUIET = 0.9  # with a smaller share of the processors' time, times say little
SPREAD = 0.3  # rounds are disturbed if their quartiles are further apart, in times the median


@dataclass(frozen=True)
class Timing:
    """The seconds of one peer for one case: the median of each round; calls: of a round."""

    rounds: tuple[float, ...]
    calls: int
    preparing: float

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles of the rounds, as a share of the median.

        >>> Timing((1.0, 1.1, 1.0, 0.9, 7.0), calls=1, preparing=0).spread
        0.05...
        """
        if len(self.rounds) < 2:
            return 0.0
        lower, _, upper = quantiles(self.rounds, n=4, method="inclusive")
        return (upper - lower) / 2 / self.seconds


@dataclass(frozen=True)
class Result:
    """The result for one case: the timing of each peer, or why there is none, and the peak of the machine
    meanwhile. `group`: the group of cases that it was run in, "" for none.
    """

    case: Case
    timings: dict[str, Timing]
    failures: dict[str, str]
    peak: Peak
    group: str = ""

    @property
    def ours(self) -> Timing | None:
        """The timing of stepnet itself; None if it was not timed."""
        return self.timings.get(OURS)

    @property
    def best(self) -> str | None:
        """The name of the fastest peer, marks to compare with left out; None without any."""
        peers = {name: t.seconds for name, t in self.timings.items() if name != OURS and name not in MARKS}
        return min(peers, key=peers.__getitem__) if peers else None

    def ratio(self, name: str | None) -> float | None:
        """Returns a peer's time over stepnet's, the median over rounds; None if one was not timed."""
        theirs = self.timings.get(name) if name is not None else None
        if theirs is None or self.ours is None:
            return None
        return median(their / our for their, our in zip(theirs.rounds, self.ours.rounds, strict=True))

    def shown(self, name: str) -> float | None:
        """Returns the time of a peer in the unit of the case's mode, for tables; None if it was not timed."""
        mode, timing = MODES[self.case.mode], self.timings.get(name)
        if timing is None:
            return None
        return timing.seconds * mode.scale / (self.case.time if mode.by_step else 1)

    @property
    def disturbed(self) -> bool:
        """True if something else disturbed stepnet or the best peer: their rounds are far apart, or other
        processes had the processors (which is wanted if the case is busy).
        """
        names = [OURS, *([self.best] if self.best else [])]
        apart = any(2 * self.timings[name].spread > SPREAD for name in names if name in self.timings)
        return apart or (not self.case.busy and self.peak.quiet < QUIET)

    @property
    def compute_share(self) -> float | None:
        """stepnet's multiply-adds a second as a share of the peak; None if they are not known."""
        if self.ours is None or self.case.starts or self.case.device != "cpu":
            return None
        return self.case.flops / self.ours.seconds / self.peak.flops

    @property
    def stream_share(self) -> float | None:
        """The bytes of weights that stepnet reads a second, once a step, as a share of the peak; or None."""
        if self.ours is None or self.case.starts or self.case.device != "cpu":
            return None
        return self.case.weight_bytes * self.case.time / self.ours.seconds / self.peak.bandwidth


@dataclass(frozen=True)
class Run:
    """The results of one run of the benchmark. `missing`: the peers that could not be started, and why.
    `facts`: seconds of importing and compiling, if asked for.
    """

    results: tuple[Result, ...]
    machine: dict[str, Any]
    versions: dict[str, dict[str, str]]
    missing: dict[str, str]
    settings: dict[str, Any]
    command: str
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    facts: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def wrong(self) -> list[tuple[Case, str, str]]:
        """The failures that are defects, as (case, peer, reason): a wrong result, or a process that ended."""
        return [
            (result.case, name, why)
            for result in self.results
            for name, why in result.failures.items()
            if not why.startswith(REFUSED)
        ]


def to_record(run: Run) -> dict[str, Any]:
    """Converts a run to plain data for JSON, with derived figures for readers without stepnet."""
    cases = [
        {
            "group": result.group,
            "case": result.case.record,
            "name": str(result.case),
            "flops": result.case.flops,
            "weight_bytes": result.case.weight_bytes,
            "peak": asdict(result.peak),
            "timings": {
                name: {**asdict(timing), "median": timing.seconds, "spread": timing.spread}
                for name, timing in result.timings.items()
            },
            "failures": result.failures,
            "best_peer": result.best,
            "ratio": result.ratio(result.best),
            "compute_share": result.compute_share,
            "stream_share": result.stream_share,
        }
        for result in run.results
    ]
    rest = {name: getattr(run, name) for name in RUN_FIELDS}
    return {"format": FORMAT, "version": VERSION, **rest, "cases": cases}


RUN_FIELDS: Mapping[str, type] = {
    "date": str,
    "command": str,
    "machine": dict,
    "versions": dict,
    "missing": dict,
    "settings": dict,
    "facts": dict,
}


def from_record(record: Any) -> Run:
    """Restores the run that `to_record` made plain data of; raises `FileError` for anything else."""
    found = checked({"run": record}, "run", dict)
    rest = {name: checked(found, name, kind) for name, kind in RUN_FIELDS.items()}
    return Run(tuple(result_from(item) for item in checked(found, "cases", list)), **rest)


def result_from(record: Any) -> Result:
    """Restores the result of one case from plain data of a saved run; `FileError` if it is damaged."""
    case, peak = checked(record, "case", dict), checked(record, "peak", dict)
    timings = {
        name: Timing(
            tuple(float(seconds) for seconds in checked(timing, "rounds", list)),
            checked(timing, "calls", int),
            float(checked(timing, "preparing", float)),
        )
        for name, timing in checked(record, "timings", dict).items()
    }
    try:
        return Result(
            Case(**case),
            timings,
            checked(record, "failures", dict),
            Peak(**peak),
            checked(record, "group", str),
        )
    except (TypeError, StepnetError) as error:
        raise FileError(f"the saved benchmark has a damaged case: {error}") from error


def checked(record: Any, name: str, kind: type) -> Any:
    """Returns the entry `name` of a saved record; raises `FileError` unless it is of the type `kind`."""
    found = record.get(name) if hasattr(record, "get") else None
    if not isinstance(found, kind):
        raise FileError(f"the saved benchmark is damaged: {name!r} should be a {kind.__name__}")
    return found


class Compared(Protocol):
    """The result of one case, of a run or of several: `Result`, `repeated.Repeated`."""

    @property
    def case(self) -> Case:
        """The case."""
        ...

    @property
    def best(self) -> str | None:
        """The name of the fastest peer."""
        ...

    def ratio(self, name: str | None) -> float | None:
        """Returns a peer's time over stepnet's; None if one was not timed."""
        ...


def mean_ratio(results: Sequence[Compared], name: str | None = None) -> float | None:
    """Returns the geometric mean of a peer's time over stepnet's; without name, of each case's best peer."""
    ratios = [result.ratio(result.best if name is None else name) for result in results]
    known = [ratio for ratio in ratios if ratio is not None]
    return geometric_mean(known) if known else None


@dataclass(frozen=True)
class Change:
    """The results for one case in two runs, an earlier and a later one."""

    case: Case
    before: Result
    now: Result

    @property
    def ratio(self) -> float | None:
        """stepnet's time in the earlier run over that in the later; None if one is missing."""
        if self.before.ours is None or self.now.ours is None:
            return None
        return self.before.ours.seconds / self.now.ours.seconds

    @property
    def sure(self) -> bool:
        """True if the rounds of both runs do not overlap, so that the change is no chance."""
        before, now = self.before.ours, self.now.ours
        if before is None or now is None:
            return False
        return max(before.rounds) < min(now.rounds) or max(now.rounds) < min(before.rounds)


def changes(before: Sequence[Result], now: Sequence[Result]) -> list[Change]:
    """Pairs the results of the cases that an earlier and a later run have, in the order of the later."""
    earlier = {(result.group, result.case): result for result in before}
    earlier |= {(None, result.case): result for result in before}
    pairs = [(earlier.get((one.group, one.case), earlier.get((None, one.case))), one) for one in now]
    return [Change(new.case, old, new) for old, new in pairs if old is not None]


def differences(before: Run, now: Run) -> list[str]:
    """Returns other differences between two runs, of machine and versions, as lines `name: before -> now`."""
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
        (before.machine, now.machine),
        *((before.versions.get(peer, {}), now.versions.get(peer, {})) for peer in now.versions),
    ]
    found = [
        f"{name}: {old[name]} -> {new[name]}"
        for old, new in pairs
        for name in old
        if name in new and old[name] != new[name]
    ]
    return list(dict.fromkeys(found))
