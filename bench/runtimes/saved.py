"""Files of results, one for each processor: each run is merged with those before.

    file of runs + a run --merged--> file of runs

A case keeps its last three results, of which the pages show medians: a ratio is of one run. Each run keeps
its date, command, versions and settings.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.runtimes.repeated import KEPT, Repeated, repeated
from bench.runtimes.results import FORMAT, VERSION, Result, Run, checked, from_record, to_record
from stepnet.errors import FileError, InputError

FOLDER = Path(__file__).resolve().parents[1] / "saved"
SAME = ("processor", "instructions", "threads")  # the facts in which all runs of one file agree


@dataclass(frozen=True)
class Saved:
    """Runs of one processor, the earliest first."""

    runs: tuple[Run, ...]

    @property
    def results(self) -> list[Result]:
        """All results of all runs and groups."""
        return [result for run in self.runs for result in run.results]

    @property
    def cases(self) -> list[Repeated]:
        """The results of each case and group as one, with the medians of its runs."""
        return repeated(self.results)

    @property
    def facts(self) -> dict[str, float]:
        """The seconds of importing and compiling, the latest of each."""
        return {name: seconds for run in self.runs for name, seconds in run.facts.items()}

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the runtimes, the latest of each."""
        return {
            name: version
            for run in self.runs
            for found in run.versions.values()
            for name, version in found.items()
        }

    def merged(self, run: Run) -> "Saved":
        """Returns these runs with a later one of the same processor. The earliest results of a case are left
        out where there are more than `KEPT`.
        """
        for name in SAME:
            for earlier in self.runs[:1]:
                if earlier.machine.get(name) != run.machine.get(name):
                    raise InputError(
                        f"the file has results with {name} {earlier.machine.get(name)!r}, and this run has "
                        f"{run.machine.get(name)!r}; save it in another file"
                    )
        later = Counter((result.group, result.case) for result in run.results)
        kept: list[Run] = []
        for old in reversed(self.runs):
            results = tuple(one for one in old.results if later[one.group, one.case] < KEPT)
            later.update((one.group, one.case) for one in old.results)
            if results or set(old.facts) - set(run.facts):
                kept.insert(0, replace(old, results=results))
        return Saved((*kept, run))


def path_of(machine: dict[str, Any]) -> Path:
    """Returns the path of the file of results of a processor, its instructions and a number of threads.

    >>> path_of({"processor": "Intel(R) Xeon(R) Gold", "family": "6.143", "threads": 2}).name
    'intel-xeon-gold-6.143-2-threads.json'
    """
    name = " ".join(str(machine.get(fact, "")) for fact in ("processor", "family", "instructions"))
    words = re.findall(r"[a-z0-9.]+", re.sub(r"\([A-Za-z]+\)", "", name.lower()))
    return FOLDER / f"{'-'.join(words)}-{machine['threads']}-threads.json"


def save(run: Run, path: Path) -> None:
    """Merges a run into a file of results; folders that lack are made."""
    saved = (load(path) if path.exists() else Saved(())).merged(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(saved), encoding="utf-8")


def text(saved: Saved) -> str:
    """Returns the runs as JSON, with a line for each case."""
    runs: list[str] = []
    for run in saved.runs:
        record = to_record(run)
        cases = ",\n    ".join(json.dumps(case) for case in record.pop("cases"))
        rest = json.dumps(record, indent=1).removesuffix("\n}").replace("\n", "\n  ")
        runs.append(f'  {rest},\n   "cases": [\n    {cases}\n   ]\n  }}')
    listed = ",\n".join(runs)
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "runs": [\n{listed}\n]}}\n'


def load(path: Path) -> Saved:
    """Reads the runs in a file of results; raises `FileError` for another file."""
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise FileError(f"{path} is no JSON: {error}") from error
    found = checked({"file": record}, "file", dict)
    if found.get("format") != FORMAT:
        raise FileError(f"this is no saved benchmark: its format is not {FORMAT!r}")
    if found.get("version") != VERSION:
        raise FileError(
            f"the saved benchmark is of version {found.get('version')}; this stepnet reads {VERSION}"
        )
    return Saved(tuple(from_record(run) for run in checked(found, "runs", list)))
