"""Processor time of tests, by files, and the files whose tests take turns where time is short.

    tests/costs.txt      tests/model/test_nested.py 0.41     seconds of a test of the file, on average
    --costs              measures all tests of a run, and writes that file again
    --turn 2/3           runs all tests of other files, and the second third of those of these files

A sixth of the tests takes seven tenths of the time, so runs that divide these among themselves take half of
the time or less, and have the other tests in common. A test has its turn by its name: new tests beside it
leave it where it is, and the values of a table that repeat do not fall to one turn.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

PLACE = Path(__file__).resolve().parents[1] / "costs.txt"
COSTLY = 0.1
"""The seconds of processor time from which on a file's tests, on average, take turns."""
ALWAYS = ("README.md", "docs/", "tests/repository/")
"""Where tests take no turns: the rules of the source are those of each change, and a page is one test of many
examples.
"""


def costly_files() -> dict[str, float]:
    """The files whose tests take turns, with the seconds of each of these on average."""
    lines = (line.rsplit(" ", 1) for line in PLACE.read_text("utf-8").splitlines())
    return {path: float(seconds) for path, seconds in lines}


def of_other_turns(names: Iterable[str], files: Iterable[str], turn: str) -> set[str]:
    """The tests, among those of these names, that a run of this turn leaves out.

    files: those whose tests take turns; turn: 2/3 is the second of three.

    >>> names = [f"a.py::test[{number}]" for number in range(6)] + ["b.py::test"]
    >>> left = [of_other_turns(names, ["a.py"], turn) for turn in ("1/2", "2/2")]
    >>> left[0] | left[1] == set(names[:-1]), left[0] & left[1]
    (True, set())
    >>> of_other_turns(names, ["a.py"], "1/1")
    set()
    """
    files = frozenset(files)
    place, of = map(int, turn.split("/"))
    return {
        name for name in names if name.partition("::")[0] in files and crc32(name.encode()) % of != place - 1
    }


def processor_time() -> float:
    """The seconds of processor time of this process, and of those that it has waited for."""
    return sum(os.times()[:4])


class Costs:
    """The plugin that measures what tests take, and writes it down at the end."""

    def __init__(self) -> None:
        self.seconds, self.tests = defaultdict[str, float](float), Counter[str]()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Adds the time of a test to that of its file."""
        path, before = item.nodeid.partition("::")[0], processor_time()
        try:
            return (yield)
        finally:
            self.seconds[path] += processor_time() - before
            self.tests[path] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Gives what a worker measured to the process that started it, or writes it down."""
        if hasattr(session.config, "workerinput"):
            vars(session.config)["workeroutput"]["costs"] = dict(self.seconds), dict(self.tests)
        else:
            PLACE.write_text(written(costly_files(), self.seconds, self.tests), "utf-8")

    @pytest.hookimpl(optionalhook=True)  # of xdist
    def pytest_testnodedown(self, node: Any) -> None:
        """Adds what a worker measured."""
        seconds, tests = node.workeroutput.get("costs", ({}, {}))
        self.tests.update(tests)
        for path in seconds:
            self.seconds[path] += seconds[path]


def written(before: dict[str, float], seconds: Mapping[str, float], tests: Mapping[str, int]) -> str:
    """The lines of the files whose tests are costly, by their names: as before where none of them ran.

    >>> written({"a.py": 0.5, "c.py": 0.2}, {"b.py": 3.0, "a.py": 0.1}, {"b.py": 4, "a.py": 2})
    'b.py 0.75\\nc.py 0.20\\n'
    """
    means = before | {path: seconds[path] / tests[path] for path in tests}
    costly = (path for path in sorted(means) if means[path] >= COSTLY and not path.startswith(ALWAYS))
    return "".join(f"{path} {means[path]:.2f}\n" for path in costly)
