"""The problems of an installation, each with its cure: a function for each kind, from facts to problems."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepnet.cli.report.cache import Cache
from stepnet.engines import AUTO
from stepnet.engines.limits import VARIABLES, processors
from stepnet.engines.onednn.library import MISSING, VARIABLE
from stepnet.values.packages import LLVMLITE, PACKAGES

SHARED_MEMORY = Path("/dev/shm")
ONEDNN = "pip install 'stepnet[onednn]'"
REPORT = "report it, with the output of stepnet doctor --json"
CURES = (
    (re.compile(r"the environment variable (\w+) is "), r"unset \1, or set it as the message says"),
    (re.compile(r"ulimit -v"), "raise the limit of memory: ulimit -v unlimited"),
)
"""The cures of what errors say, whichever engine has met them."""
ENGINES = {
    "llvm": f"pip install --force-reinstall '{LLVMLITE.name}>={LLVMLITE.floor}', or else {REPORT}",
    "onednn": f"{ONEDNN}, and unset {VARIABLE} if it is set",
}
"""The cures of all else, by the engine that has met it."""


@dataclass(frozen=True)
class Problem:
    """A problem.

    needed: whether stepnet does not work without what is missing or broken; otherwise a part of it does not,
    or is slower.
    what: the problem, in a sentence.
    cure: the command that solves it, or what to do.
    """

    needed: bool
    what: str
    cure: str


def of_packages(versions: Mapping[str, str | None]) -> Iterator[Problem]:
    """Packages that are missing though always needed, or too old.

    versions: by name; None for a missing package.
    """
    for package in PACKAGES:
        version, needed = versions[package.name], package.extra is None
        if version is not None and package.older(version):
            yield Problem(needed, package.too_old(version), package.command)
        elif version is None and needed:
            yield Problem(needed, f"{package.name} is not installed", package.command)


def missing(versions: Mapping[str, str | None], engines: Mapping[str, str | None]) -> dict[str, str]:
    """The commands that install optional packages which are missing, by their names."""
    commands = {
        package.name: package.command
        for package in PACKAGES
        if package.extra is not None and versions[package.name] is None
    }
    return {**commands, "onednn": ONEDNN} if engines["onednn"] == MISSING else commands


def of_engines(
    reasons: Mapping[str, str | None], versions: Mapping[str, str | None], threads: str
) -> Iterator[Problem]:
    """Engines that do not run a small recurrence, but for oneDNN where it is not installed.

    reasons: by engine, why it does not; None if it does. What the other arguments say is not said again:
    versions: of packages; threads: where their number comes from, or why there is none.
    """
    old = versions[LLVMLITE.name]
    said = {None, MISSING, threads}
    if old is not None and LLVMLITE.older(old):
        said.add(reasons["llvm"])
    for name, reason in reasons.items():
        if reason is not None and reason not in said:
            what = f"the engine {name} does not work: {reason}"
            yield Problem(name in AUTO, what, cure(reason, ENGINES.get(name, REPORT)))


def cure(reason: str, otherwise: str = REPORT) -> str:
    """The cure of what an error says."""
    for pattern, text in CURES:
        if match := pattern.search(reason):
            return match.expand(text)
    return otherwise


def of_cache(cache: Cache) -> Iterator[Problem]:
    """A cache on disk that cannot be used though it is not turned off."""
    if cache.reason is not None and cache.folder is not None:
        yield Problem(
            False,
            f"compiled code is not kept on disk: {cache.reason}",
            "set STEPNET_CACHE_DIR to a folder of your own with mode 700, or STEPNET_CACHE=0 to do without",
        )


def of_threads(count: int | None, why: str) -> Iterator[Problem]:
    """A number of threads that cannot be found, or that OpenMP's variable makes smaller than it need be.

    count: the number of threads of a call, None if it cannot be found.
    why: the source of this number, or why there is none.
    """
    own, shared = VARIABLES
    if count is None:
        yield Problem(True, why, cure(why))
    elif why.startswith(shared) and count < processors():
        what = f"{why}, so a call uses {count} of {processors()} processors"
        yield Problem(False, what, f"unset {shared}, or set {own}={processors()}")


def of_shared_memory(folder: Path) -> Iterator[Problem]:
    """A Linux without shared memory."""
    if sys.platform == "linux" and not os.access(folder, os.W_OK | os.X_OK):
        what = (
            f"{folder} is not a folder that can be written to, and Ray, DataLoader and multiprocessing share "
            "memory there"
        )
        yield Problem(False, what, f"mount -t tmpfs tmpfs {folder}; of a container, docker run --shm-size=1g")
