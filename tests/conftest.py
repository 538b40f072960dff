"""Set-up of all tests: each engine, hypothesis that draws the same examples in every run, so that a failure
is seen again, and processes that run tests beside one another, but for those that are to be alone.
"""

import gc
import os
import shutil
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is first imported
os.environ["OMP_NUM_THREADS"] = "1"  # of torch and NumPy, whose threads wait for those of the other workers
os.environ["STEPNET_NUM_THREADS"] = str(  # but stepnet has all
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)
# Tests see the code that is generated now. Those of the cache have folders of their own; see `COMPILED`, too.
os.environ["STEPNET_CACHE"] = "0"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # or it starts processes, each of which imports PyTorch
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # which older versions of Ray warn about
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process that a test starts compiles all of stepnet

import pytest
from constants import Constants
from costs import Costs, costly_files, of_other_turns
from hypothesis import HealthCheck, settings
from linux_alone import skip_libraries
from ray_session import RaySession, uses_ray
from sharing import by_rows
from turns import covering, values_of

import stepnet as sn
from stepnet.compiler.plan.plan import KNOWN
from stepnet.compiler.targets.cpu.running import native
from stepnet.compiler.targets.threads import threads_set

sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.set_threshold(1_000_000, 20, 20)  # to compile and to import makes much, and little of it is garbage

# How soon an example is drawn is a property of the machine.
slow = [HealthCheck.too_slow]
settings.register_profile(
    "same every time", derandomize=True, deadline=None, max_examples=50, suppress_health_check=slow
)
settings.load_profile("same every time")


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> Constants:
    """Sets constants of modules until the end of the test."""
    return Constants(monkeypatch)


@pytest.fixture
def small_calls_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of several sequences are shared by threads, though they are so small that one would be faster:
    for tests of what threads do.
    """
    monkeypatch.setattr(native, "partition", by_rows)


@pytest.fixture(params=["interpret", "llvm"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that runs every net."""
    return request.param


@pytest.fixture
def tried_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], str | None]], None]:
    """Sets how `stepnet doctor` tries engines: a function of a name that says why that engine fails."""
    return lambda trial: monkeypatch.setattr("stepnet.cli.report.doctor.try_engine", trial)


@pytest.fixture
def works(tried_by: Callable[[Callable[[str], str | None]], None]) -> None:
    """For `stepnet doctor` engines are not tried, as each trial starts a process, and work."""
    tried_by(lambda name: None)


@pytest.fixture(name="cache")
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for the cache of plans and code."""
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def same_threads() -> Generator[None]:
    """Leaves the number of threads as it was."""
    before = threads_set()
    yield
    sn.set_threads(before)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test-peers ARGS=--save` keeps what frameworks gave, `make pictures` what the browser showed;
    `make test-long` runs tests marked `long` at their full length, and other random steps each time.
    """
    parser.addoption("--long", action="store_true", help="run what has a full length at that")
    parser.addoption("--save", action="store_true", help="keep what frameworks gave and browsers showed")
    parser.addoption("--steps", type=int, default=10_000, help="with --long: how many random steps")
    parser.addoption("--seed", type=int, help="with --long: what random steps begin with, as it was printed")
    parser.addoption("--share", default="1/1", help="without --long: 2/3 is of each three tests the second")
    parser.addoption(
        "--turn", default="1/1", help="without --long: 2/3 is of each three costly tests the second"
    )
    parser.addoption("--costs", action="store_true", help="measure files of tests, and write tests/costs.txt")


def pytest_configure(config: pytest.Config) -> None:
    """A new seed for random steps where none is asked for; the workers of a run have it from there."""
    config.pluginmanager.register(RaySession())
    if config.option.costs:
        config.pluginmanager.register(Costs())
    if config.option.seed is None:
        config.option.seed = int.from_bytes(os.urandom(3), "big")
    if config.option.long and not hasattr(config, "workerinput"):
        config.pluginmanager.register(AtOnce(config))


COMPILED = pytest.StashKey[Path]()
"""The folder of code that this run alone has compiled: of tests that may replace a part of the compiler."""
KEPT = Path(__file__).resolve().parents[1] / "build" / "tests" / "compiled"
"""The folder of code that is kept for later runs. An entry's key has a digest of the compiler's modules."""
PATCHING = ("MonkeyPatch", "unittest.mock", "random_ways")
"""Words of files whose tests may replace parts of modules without the fixture `monkeypatch`."""
COMPILING = [
    Path(__file__).parent / place
    for place in (
        "compiler/targets",
        "compiler/disk",
        "interface/test_processes.py",
        "cli/test_cli.py",
        "cli/test_doctor.py",
        "model/test_stored.py",
    )
]
"""Folders and files of tests that compile all they run: they are about generated code, or about the cache."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Chooses the folder of compiled code, which is inside that of all temporary files of this run."""
    config = session.config
    if hasattr(config, "workerinput"):
        config.stash[COMPILED] = vars(config)["_tmp_path_factory"].getbasetemp().parent / "compiled"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Says what a worker left out; after all workers removes the folder of compiled code."""
    if hasattr(session.config, "workerinput"):
        vars(session.config)["workeroutput"]["left"] = session.config.stash.get(LEFT, {})
    factory = vars(session.config).get("_tmp_path_factory")
    if factory is not None and not hasattr(session.config, "workerinput"):
        shutil.rmtree(factory.getbasetemp() / "compiled", ignore_errors=True)


class AtOnce:
    """Shows each failure when it happens: a run of hours may be stopped before it would show them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Shows what a test that failed said."""
        if report.failed:
            terminal: Any = self.config.pluginmanager.getplugin("terminalreporter")
            terminal.write_line(f"\n{report.nodeid}\n{report.longreprtext}")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    """Keeps doctest from modules without examples, which it would look for in all docstrings of each."""
    collectors = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text("utf-8"):
        return collectors
    return [each for each in collectors if type(each).__name__ != "DoctestModule"]


LEFT = pytest.StashKey[dict[str, tuple[str, int, int]]]()
"""For each test that is left to `make test-long` in part: what of it, how many, and of how many."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --long no row of a table that is marked `long` itself; each n-th case alone of a test marked
    `long(every=n)`, or of the tests of a file that have one `of`; of a test marked `long(each=True)` few
    cases that have each row of each `parametrize`, and of one marked `long(pairs=True)` few that have each
    two rows of two of them; of a property marked `long(examples=n)` that many examples; and of all that the
    share that `--share` says. Without oneDNN the examples of its own pages are skipped, and elsewhere than on
    Linux those of libraries for C. What runs on Ray is first.
    """
    items.sort(key=lambda item: not uses_ray(item))
    skip_without_onednn(items)
    skip_without_locks(items)
    skip_libraries(items)
    if config.option.long:
        return
    places, cases, left = Counter[object](), Counter[str](), dict[pytest.Item, str]()
    all_cases = Counter(item.nodeid.partition("[")[0] for item in items)
    grids = defaultdict[str, dict[pytest.Item, frozenset[object]]](dict)
    config.stash[LEFT] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        marks = {key: mark for mark in item.iter_markers("long") for key in mark.kwargs}
        row: list[pytest.Mark] = getattr(vars(item).get("callspec"), "marks", [])
        is_row = any(mark.name == "long" and not mark.kwargs for mark in row)
        if mark := marks.get("every"):
            table = item.path, mark.kwargs.get("of", name)
            if places[table] % mark.kwargs["every"]:
                left[item] = name
            places[table] += 1
            cases[name] += 1
        elif is_row:
            left[item] = name
        elif mark := marks.get("each") or marks.get("pairs"):
            rows: list[str] = vars(item)["callspec"]._idlist  # by `parametrize`
            grids[name][item] = values_of(rows, in_pairs="pairs" in mark.kwargs)
        if mark := marks.get("examples"):
            config.stash[LEFT].setdefault(name, ("examples", *fewer_examples(item, mark.kwargs["examples"])))
    for name, grid in grids.items():
        left |= dict.fromkeys(grid.keys() - covering(grid), name)
        cases[name] = len(grid)
    config.stash[LEFT] |= {
        name: ("cases", count, cases[name] or all_cases[name])
        for name, count in Counter(left.values()).items()
    }
    kept = [item for item in items if item not in left]
    others = of_other_turns((item.nodeid for item in kept), costly_files(), config.option.turn)
    config.stash[LEFT]["--turn"] = "turns", len(others), len(kept)
    kept = [item for item in kept if item.nodeid not in others]
    place, of = map(int, config.option.share.split("/"))
    mine = dict.fromkeys(kept[place - 1 :: of])
    config.stash[LEFT]["--share"] = "shares", len(kept) - len(mine), len(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in mine])
    items[:] = mine


def fewer_examples(item: Any, count: int) -> tuple[int, int]:
    """The number of examples that a property leaves out, and of how many, now that it draws `count`."""
    function = vars(item.function)
    whole: settings = function["_hypothesis_internal_use_settings"]
    function["_hypothesis_internal_use_settings"] = settings(whole, max_examples=count)
    return whole.max_examples - count, whole.max_examples


ONEDNN = ("docs/onednn.md", "src/stepnet/onednn/")


def skip_without_onednn(items: list[pytest.Item]) -> None:
    """Skips examples that run on oneDNN where it is not installed, and says so."""
    from installed_onednn import missing_onednn

    examples = [item for item in items if any(path in item.path.as_posix() for path in ONEDNN)]
    if examples and (reason := missing_onednn()):
        for item in examples:
            item.add_marker(pytest.mark.skip(reason=reason))


def skip_without_locks(items: list[pytest.Item]) -> None:
    """Skips tests that are to be alone, in a worker of a system without locks of files, and says so."""
    if fcntl is None and "PYTEST_XDIST_WORKER" in os.environ:
        for item in items:
            if item.get_closest_marker("alone"):
                reason = (
                    "fcntl is missing, which keeps other tests from running beside this one; -n 0 runs it"
                )
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_testnodedown(node: Any) -> None:
    """Takes from a worker, which collected the tests, what it left out."""
    node.config.stash[LEFT] = node.workeroutput.get("left", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Reports the tests that were left to `make test-long`; with -v, each of them."""
    left = config.stash.get(LEFT, {})
    for kind in ("cases", "examples"):
        counts = {name: (out, all_) for name, (of, out, all_) in left.items() if of == kind}
        if config.option.verbose > 0:
            for name, (out, all_) in counts.items():
                terminalreporter.write_line(f"left to make test-long: {out} of {all_} {kind} of {name}")
        if counts:
            out, all_ = map(sum, zip(*counts.values(), strict=True))
            terminalreporter.write_line(
                f"left to make test-long: {out:,} of {all_:,} {kind} of {len(counts)} tests"
            )

    for option, others in (("--turn", "other turns, which make test has all"), ("--share", "other shares")):
        _, out, all_ = left.get(option, ("", 0, 0))
        if out:
            terminalreporter.write_line(f"left to runs of {others}: {out:,} of {all_:,} tests")


def pytest_report_header(config: pytest.Config) -> str | None:
    """With --long the seed of the random steps."""
    again = (
        f"random steps: seed {config.option.seed}, as in make test-long ARGS='--seed {config.option.seed}'"
    )
    return again if config.option.long else None


def pytest_collection_finish() -> None:
    """Garbage is looked for among the values that tests have made since: see `leave_to_the_end`."""
    leave_to_the_end()


def pytest_runtest_logfinish() -> None:
    """The same after each `SETTLED` tests: caches and frameworks have grown meanwhile."""
    if next(TESTED) % SETTLED == SETTLED - 1:
        leave_to_the_end()


TESTED, SETTLED = count(), 400


def leave_to_the_end() -> None:
    """Leaves the values that exist now out of later searches for garbage: modules, frameworks and caches stay
    to the end, and a search through them takes a hundred milliseconds.
    """
    gc.collect()
    gc.freeze()


@cache
def has_patches(path: Path) -> bool:
    """Tells whether a file says a word of `PATCHING`: its tests neither find nor leave code of other runs."""
    text = path.read_text("utf-8")
    return any(word in text for word in PATCHING)


def may_patch(item: pytest.Item) -> bool:
    """Tells whether a test may replace parts of modules, and so of the compiler."""
    return "monkeypatch" in vars(item).get("fixturenames", ()) or has_patches(item.path)


@pytest.fixture(autouse=True)
def no_plans_of_patched_passes(request: pytest.FixtureRequest) -> Generator[None]:
    """A test that may replace a part of the compiler neither finds nor leaves plans."""
    if not may_patch(request.node):
        yield
        return
    KNOWN.clear()
    yield
    KNOWN.clear()


HELD: list[ExitStack] = []
"""The locks of tests that are alone and follow one another, which are taken once for all of them."""


def is_alone(item: pytest.Item | None) -> bool:
    """True if a test is to run while no other process of this run is in a test."""
    return item is not None and item.get_closest_marker("alone") is not None


def entered(folder: Path, kind: int) -> ExitStack:
    """The locks of a test, shared or exclusive. Another lock is held for a moment, so that a test that waits
    to be alone is not overtaken for ever. folder: that of all processes.
    """
    assert fcntl is not None
    with ExitStack() as locks:
        inside, door = (locks.enter_context(Path(folder, name).open("a")) for name in ("inside", "door"))
        fcntl.flock(door, kind)
        fcntl.flock(inside, kind)
        fcntl.flock(door, fcntl.LOCK_UN)
        return locks.pop_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Runs a test with or without the compiled code of other workers, and one that is marked `alone` while no
    other process of this run is in a test.

    Tests share a lock, which those that are alone have for themselves, until the next one is not.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    patches = may_patch(item)
    os.environ["STEPNET_CACHE_DIR"] = str(item.config.stash[COMPILED] if patches else KEPT)
    os.environ["STEPNET_CACHE"] = "0" if any(map(item.path.is_relative_to, COMPILING)) else "1"
    if fcntl is None:
        return (yield)

    folder = vars(item.config)["_tmp_path_factory"].getbasetemp().parent
    kind = fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH
    with HELD.pop() if HELD else entered(folder, kind) as locks:
        try:
            return (yield)
        finally:
            if is_alone(item) and is_alone(nextitem):
                HELD.append(locks.pop_all())
