"""What a run found, as values, and as JSON to save and to read again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.runtimes.cases import Case
from bench.runtimes.machine import Peak
from bench.runtimes.runner import MARKS, OURS
from stepnet.errors import FileError, StepnetError

FORMAT, VERSION = "stepnet-bench", 1


@dataclass(frozen=True)
class Timing:
    """The seconds of one run of a peer: the median of each round, in the order of the rounds."""

    rounds: tuple[float, ...]
    calls: int
    preparing: float

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """Half of what lies between the quartiles of the rounds, of the median.

        >>> Timing((1.0, 1.1, 1.0, 0.9, 7.0), calls=1, preparing=0).spread
        0.05...
        """
        if len(self.rounds) < 2:
            return 0.0
        lower, _, upper = quantiles(self.rounds, n=4, method="inclusive")
        return (upper - lower) / 2 / self.seconds


@dataclass(frozen=True)
class Result:
    """One case: the timing of each peer, or why there is none, and the peak of the machine meanwhile."""

    case: Case
    timings: dict[str, Timing]
    failures: dict[str, str]
    peak: Peak

    @property
    def ours(self) -> Timing | None:
        """The timing of stepnet itself."""
        return self.timings.get(OURS)

    @property
    def best(self) -> str | None:
        """The fastest peer; a mark is none."""
        peers = {name: t.seconds for name, t in self.timings.items() if name != OURS and name not in MARKS}
        return min(peers, key=peers.__getitem__) if peers else None

    def ratio(self, name: str | None) -> float | None:
        """How many times as long as ours this peer takes: the median over rounds."""
        theirs = self.timings.get(name) if name is not None else None
        if theirs is None or self.ours is None:
            return None
        return median(their / our for their, our in zip(theirs.rounds, self.ours.rounds, strict=True))

    @property
    def compute_share(self) -> float | None:
        """Our multiply-adds a second, of the peak."""
        return None if self.ours is None else self.case.flops / self.ours.seconds / self.peak.flops

    @property
    def stream_share(self) -> float | None:
        """Our recurrent weights read a second, once for each step of the longest sequence, of the peak."""
        if self.ours is None:
            return None
        return self.case.weight_bytes * self.case.time / self.ours.seconds / self.peak.bandwidth


@dataclass(frozen=True)
class Run:
    """All that one run found. `missing`: the peers that could not be started, and why. `facts`: seconds of
    importing and compiling, where asked for.
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
        """The failures that are no peer's plain lack: a wrong result, or a process that ended."""
        return [
            (result.case, name, why)
            for result in self.results
            for name, why in result.failures.items()
            if not why.startswith(REFUSED)
        ]


REFUSED = "refused: "


def to_record(run: Run) -> dict[str, Any]:
    """The run as plain data. What follows from the rest is there too, for readers without stepnet."""
    cases = [
        {
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
    """The run that `to_record` made plain data of; raises `FileError` for anything else."""
    found = checked({"run": record}, "run", dict)
    if found.get("format") != FORMAT:
        raise FileError(f"this is no saved benchmark: its format is not {FORMAT!r}")
    if found.get("version") != VERSION:
        raise FileError(
            f"the saved benchmark is of version {found.get('version')}; this stepnet reads {VERSION}"
        )
    rest = {name: checked(found, name, kind) for name, kind in RUN_FIELDS.items()}
    results = tuple(result_from(item) for item in checked(found, "cases", list))
    return Run(results, **rest)


def result_from(record: Any) -> Result:
    """One case of a saved run."""
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
        return Result(Case(**case), timings, checked(record, "failures", dict), Peak(**peak))
    except (TypeError, StepnetError) as error:
        raise FileError(f"the saved benchmark has a damaged case: {error}") from error


def checked(record: Any, name: str, kind: type) -> Any:
    """The entry of this name; raises `FileError` where there is none of this kind."""
    found = record.get(name) if hasattr(record, "get") else None
    if not isinstance(found, kind):
        raise FileError(f"the saved benchmark is damaged: {name!r} should be a {kind.__name__}")
    return found


def save(run: Run, path: Path) -> None:
    """Write the run as JSON; folders that lack are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_record(run), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Run:
    """The run that a file holds; raises `FileError` for a file that is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise FileError(f"{path} is no JSON: {error}") from error
    return from_record(record)


@dataclass(frozen=True)
class Change:
    """One case in two runs: our seconds, and the ratio to the best peer, before and now."""

    case: Case
    before: Result
    now: Result

    @property
    def ratio(self) -> float | None:
        """How many times as fast as before stepnet is now."""
        if self.before.ours is None or self.now.ours is None:
            return None
        return self.before.ours.seconds / self.now.ours.seconds

    @property
    def sure(self) -> bool:
        """Whether the difference is more than the rounds of both runs overlap."""
        before, now = self.before.ours, self.now.ours
        if before is None or now is None:
            return False
        return max(before.rounds) < min(now.rounds) or max(now.rounds) < min(before.rounds)


def changes(before: Run, now: Run) -> list[Change]:
    """The cases that both runs have, in the order of the later."""
    earlier = {result.case: result for result in before.results}
    return [
        Change(result.case, earlier[result.case], result) for result in now.results if result.case in earlier
    ]


def differences(before: Run, now: Run) -> list[str]:
    """What else is different: machine and versions, as `what: before -> now`."""
    found: list[str] = []
    pairs: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("", before.machine, now.machine),
        *(("", before.versions.get(peer, {}), now.versions.get(peer, {})) for peer in now.versions),
    ]
    for prefix, old, new in pairs:
        for name in old:
            if name in new and old[name] != new[name]:
                found.append(f"{prefix}{name}: {old[name]} -> {new[name]}")
    return list(dict.fromkeys(found))
