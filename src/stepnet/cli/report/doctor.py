"""The facts of a machine: its processor, engines and packages, and its problems."""

import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version

from stepnet.cli.report import cache
from stepnet.cli.report.problems import (
    SHARED_MEMORY,
    Problem,
    cache_problems,
    engine_problems,
    missing,
    package_problems,
    shared_memory_problems,
    thread_problems,
)
from stepnet.cli.report.trial import try_engine
from stepnet.compiler.native import ready_made
from stepnet.compiler.targets import AUTO, engine_names
from stepnet.compiler.targets.cpu.machine.processor import host_name, processor_texts
from stepnet.compiler.targets.threads import threads_limit
from stepnet.compiler.values.packages import PACKAGES
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.version import __version__
from stepnet.errors import StepnetError
from stepnet.explain.document import FACTS, DocumentTable, TitledSection
from stepnet.explain.text import text


@dataclass(frozen=True)
class Health:
    """The facts of an installation, which `stepnet doctor` prints.

    processor: its name, from LLVM if that works. targets: its instruction sets, the one in use first; empty
    if LLVM does not work. threads: the number that a call uses; None if it cannot be found. threads_by: what
    limits the threads, or why their number cannot be found. cache: where compiled code is stored, or why it
    is not. ready_made: whether there is machine code of known models for this processor. engines: for each
    engine why it does not run a small recurrence; None if it does. packages: versions by name; None for a
    missing package. missing: the command that installs each optional package that is missing. problems: the
    faults that were found.
    """

    stepnet: str
    python: str
    system: str
    processor: str
    targets: tuple[str, ...]
    threads: int | None
    threads_by: str
    cache: str
    ready_made: str
    engines: dict[str, str | None]
    packages: dict[str, str | None]
    missing: dict[str, str]
    problems: tuple[Problem, ...]

    @property
    def works(self) -> bool:
        """True if this installation has all that stepnet needs; optional parts may not work."""
        return not any(problem.needed for problem in self.problems)


def examine() -> Health:
    """Collects the facts of this installation, with a trial of each engine. No framework is imported."""
    names = engine_names()
    with ThreadPoolExecutor() as threads:
        engines = dict(zip(names, threads.map(try_engine, names), strict=True))
    packages = {package.name: installed_version(package.name) for package in PACKAGES}
    has_llvm = engines["llvm"] is None
    count, why = thread_limit()
    cache_facts = cache.examine()

    def problems() -> Iterator[Problem]:
        """Yields this installation's problems: of packages, engines, threads, cache and shared memory."""
        yield from package_problems(packages)
        yield from engine_problems(engines, packages, why)
        yield from thread_problems(count, why)
        yield from cache_problems(cache_facts)
        yield from shared_memory_problems(SHARED_MEMORY)

    return Health(
        stepnet=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=host_name() if has_llvm else platform.machine(),
        targets=processor_texts() if has_llvm else (),
        threads=count,
        threads_by=why,
        cache=cache.state(cache_facts),
        ready_made=ready_made.state(),
        engines=engines,
        packages=packages,
        missing=missing(packages, engines),
        problems=tuple(problems()),
    )


def installed_version(package: str) -> str | None:
    """Returns the version of an installed package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def thread_limit() -> tuple[int | None, str]:
    """Returns the number of threads of a call and what limits it; (None, error) if it cannot be found."""
    try:
        found = threads_limit()
    except StepnetError as error:
        return None, str(error)
    return found.count, found.why


def health_text(health: Health) -> str:
    """Formats the facts of an installation as the text that `stepnet doctor` prints."""
    first, *others = health.targets or ("nothing, as LLVM does not work",)
    threads = health.threads_by if health.threads is None else f"{health.threads}: {health.threads_by}"
    facts = [
        ("stepnet", health.stepnet),
        ("python", health.python),
        ("system", health.system),
        ("processor", health.processor),
        ("code for", first),
        *[("", f"also runs {target}") for target in others],
        ("threads", threads),
        ("cache", health.cache),
        ("ready-made", health.ready_made),
    ]
    problems = [
        row
        for problem in health.problems
        for row in (("error" if problem.needed else "warning", problem.what), ("", problem.cure))
    ]
    return text(
        [
            TitledSection("", (DocumentTable(tuple(facts), ("<13",)),)),
            named_facts("engines", [(name, engine_text(health, name)) for name in health.engines]),
            named_facts("needed", list(packages_text(health, needed=True))),
            named_facts("optional", list(packages_text(health, needed=False))),
            named_facts("problems" if problems else "no problems found", problems),
        ]
    )


def named_facts(title: str, rows: Sequence[tuple[str, str]]) -> TitledSection:
    """Makes a section of a report: a title, and a table of (name, fact) rows below it."""
    return TitledSection(title, (DocumentTable(tuple(rows), FACTS),))


def engine_text(health: Health, name: str) -> str:
    """Describes in a few words whether an engine works here, or why not. name: the name of the engine."""
    reason = health.engines[name]
    if reason is None:
        return "works" if name in AUTO else "works, where asked for by name"
    return missing_text(health, name) if name in health.missing else f"does not work: {reason}"


def packages_text(health: Health, needed: bool) -> Iterator[tuple[str, str]]:
    """Yields (name, version or how to install it) of all packages that are needed or, else, optional."""
    for package in PACKAGES:
        if (package.extra is None) == needed:
            yield package.name, health.packages[package.name] or missing_text(health, package.name)


def missing_text(health: Health, name: str) -> str:
    """Returns the text for a missing engine or package, with the command that installs it, if any."""
    return f"not installed: {health.missing[name]}" if name in health.missing else "not installed"
