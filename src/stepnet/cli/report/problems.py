"""Finds problems of an installation, each with its solution: one function for each kind of problem."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepnet.cli.report.cache import CacheFacts
from stepnet.compiler.disk.sources import UNKNOWN
from stepnet.compiler.targets import AUTO
from stepnet.compiler.targets.cuda.driver.library import NO_DRIVER
from stepnet.compiler.targets.limits import VARIABLES, processors
from stepnet.compiler.targets.onednn.library import HAS_WHEEL, INSTALL, MISSING, VARIABLE
from stepnet.compiler.values.packages import LLVMLITE, PACKAGES
from stepnet.compiler.values.records import dataclass

SHARED_MEMORY = Path("/dev/shm")
REPORT = "report it, with the output of stepnet doctor --json"
CURES = (
    (re.compile(r"(STEPNET_CACHE\w*) is .*; it is "), r"unset \1, or set it as the message says"),
    (
        re.compile(re.escape(UNKNOWN)),
        "install stepnet in a folder that can be listed, which a zip file is not, or set STEPNET_CACHE=0 to "
        "do without",
    ),
    (re.compile(r"the environment variable (\w+) is "), r"unset \1, or set it as the message says"),
    (re.compile(r"ulimit -v"), "raise the limit of memory: ulimit -v unlimited"),
)
"""Solutions by the text of an error, for the cache and all engines."""
CACHE = "set STEPNET_CACHE_DIR to a folder of your own with mode 700, or STEPNET_CACHE=0 to do without"
"""The solution of all other errors of the cache on disk."""
ENGINES = {
    "llvm": f'pip install --force-reinstall "{LLVMLITE.name}>={LLVMLITE.floor}", or else {REPORT}',
    "onednn": (
        f"{INSTALL}, and unset {VARIABLE} if it is set"
        if HAS_WHEEL
        else f"unset {VARIABLE} if it is set, or set it to the path of another oneDNN"
    ),
}
"""Solutions of all other errors, by the engine that raised them."""


@dataclass(frozen=True)
class Problem:
    """A problem of an installation, with its solution.

    needed: True if stepnet does not work at all; False if a part of it does not, or is slower. what: the
    problem, in a sentence. cure: the command that solves it, or what to do.
    """

    needed: bool
    what: str
    cure: str


def package_problems(versions: Mapping[str, str | None]) -> Iterator[Problem]:
    """Yields a problem for each package that is too old, or needed and missing (version None)."""
    for package in PACKAGES:
        version, needed = versions[package.name], package.extra is None
        if version is not None and package.older(version):
            yield Problem(needed, package.too_old(version), package.command)
        elif version is None and needed:
            yield Problem(needed, f"{package.name} is not installed", package.command)


def missing(versions: Mapping[str, str | None], engines: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the commands that install the missing optional packages, by name of the package.

    versions: installed versions by name; None if missing. engines: why each does not work; None if it does.
    """
    commands = {
        package.name: package.command
        for package in PACKAGES
        if package.extra is not None and versions[package.name] is None
    }
    return {**commands, "onednn": INSTALL} if engines["onednn"] == MISSING else commands


def engine_problems(
    reasons: Mapping[str, str | None], versions: Mapping[str, str | None], threads: str
) -> Iterator[Problem]:
    """Yields a problem for each engine that does not run a small recurrence, except oneDNN if it is not
    installed. Errors that come from an old llvmlite or from the threads are left out.

    reasons: why each engine does not run; None if it does. versions: installed versions by package. threads:
    the error if the number of threads cannot be found. Other functions report both. A machine without a GPU
    is no problem.
    """
    old = versions[LLVMLITE.name]
    without_gpu = (reason for reason in reasons.values() if reason and reason.startswith(NO_DRIVER))
    reported = {None, MISSING, threads, *without_gpu}
    if old is not None and LLVMLITE.older(old):
        reported.add(reasons["llvm"])
    for name, reason in reasons.items():
        if reason is not None and reason not in reported:
            what = f"the engine {name} does not work: {reason}"
            yield Problem(name in AUTO, what, cure(reason, ENGINES.get(name, REPORT)))


def cure(reason: str, otherwise: str = REPORT) -> str:
    """Returns the solution of an error by its text, `reason`. otherwise: the solution if none is known."""
    for pattern, text in CURES:
        if match := pattern.search(reason):
            return match.expand(text)
    return otherwise


def cache_problems(cache: CacheFacts) -> Iterator[Problem]:
    """Yields a problem if the cache on disk cannot be used although it is not turned off."""
    if cache.reason is not None and cache.folder is not None:
        yield Problem(
            False,
            f"compiled code is not kept on disk: {cache.reason}",
            cure(cache.reason, CACHE),
        )


def thread_problems(count: int | None, why: str) -> Iterator[Problem]:
    """Yields a problem if the number of threads cannot be found, or OMP_NUM_THREADS makes it needlessly
    small.

    count: the number of threads of a call; None if it cannot be found. why: the source of the number, or the
    error.
    """
    own, shared = VARIABLES
    if count is None:
        yield Problem(True, why, cure(why))
    elif why.startswith(shared) and count < processors():
        what = f"{why}, so a call uses {count} of {processors()} processors"
        yield Problem(False, what, f"unset {shared}, or set {own}={processors()}")


def shared_memory_problems(folder: Path) -> Iterator[Problem]:
    """Yields a problem if this is a Linux without writable shared memory. folder: where it is mounted."""
    if sys.platform == "linux" and not os.access(folder, os.W_OK | os.X_OK):
        what = (
            f"{folder} is not a folder that can be written to, and Ray, DataLoader and multiprocessing share "
            "memory there"
        )
        yield Problem(False, what, f"mount -t tmpfs tmpfs {folder}; of a container, docker run --shm-size=1g")
