"""The default number of threads: from the CPU affinity of the process, the CPU quota of its control groups,
and environment variables.

    affinity                  of the process, as taskset and containers set it
    cpu.max                   of control groups of version 2: "200000 100000" is two CPUs, "max ..." no limit
    cpu.cfs_quota_us          of version 1, divided by cpu.cfs_period_us; -1 is no limit
    STEPNET_NUM_THREADS       or, if not set, OMP_NUM_THREADS: its first number, if it is a list

The smallest limit applies. A group is also limited by the quotas of its ancestors, so all are read, from the
group of the process to the root. See https://docs.kernel.org/admin-guide/cgroup-v2.html.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from posixpath import basename, join

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, InputError

VARIABLES = ("STEPNET_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Limit:
    """Limit on the number of threads of a call. why: where it comes from, for the user."""

    count: int
    why: str


@dataclass(frozen=True)
class Mount:
    """Mounted hierarchy of Linux control groups (cgroups), which limit the CPU time of processes.

    mount_point: the mount point.
    group: the group that the folder at the mount point stands for.
    version: the version of control groups, 1 or 2.
    """

    mount_point: str
    group: str
    version: int

    def folders(self, group: str) -> list[str]:
        """Lists the folders of a control group and its ancestors up to the mount point, in this order."""
        own, names = self.group.rstrip("/"), list[str]()
        if f"{group}/".startswith(f"{own}/"):
            names = [name for name in group[len(own) :].split("/") if name]
        return [join(self.mount_point, *names[:count]) for count in range(len(names), -1, -1)]


def processors() -> int:
    """Returns the number of processors that this process may use, by its affinity and control groups."""
    return of_this_system().count


@cache
def limit() -> Limit:
    """Returns the default number of threads, the smallest limit; read once per process, and after forks."""
    return smallest([of_this_system(), *of_variables(os.environ)])


@cache
def of_this_system() -> Limit:
    """Returns the smallest limit on threads that this system sets; read as `limit` is."""
    return smallest(of_system("/"))


def least(root: str, variables: Mapping[str, str]) -> Limit:
    """Returns the smallest limit on threads, of system files below `root` and environment variables."""
    return smallest([*of_system(root), *of_variables(variables)])


def smallest(limits: Iterable[Limit]) -> Limit:
    """Returns the smallest of some limits on threads."""
    return min(limits, key=lambda limit: limit.count)


def of_variables(variables: Mapping[str, str]) -> Iterator[Limit]:
    """Yields the limit on threads that an environment variable (the first of `VARIABLES` that is set) gives.

    variables: the environment.

    Raises `InputError` if its value is not a whole number from 1 on.

    >>> [limit.count for limit in of_variables({"OMP_NUM_THREADS": "3,2", "STEPNET_NUM_THREADS": ""})]
    [3]
    """
    for name in VARIABLES:
        text = variables.get(name, "").strip()
        if not text:
            continue
        first = text.split(",")[0].strip() if name.startswith("OMP") else text
        if not re.fullmatch("[0-9]{1,9}", first) or not int(first):
            raise InputError(
                f"the environment variable {name} is {text!r}, but a number of threads is a whole number "
                "from 1 on; set it to one, or unset it"
            )
        yield Limit(int(first), f"{name} is {text}")
        return


def of_system(root: str) -> Iterator[Limit]:
    """Yields the limits on threads that Linux sets for this process: its CPU affinity, and the CPU quotas of
    its control groups. root: the folder that holds `proc` and `sys`: "/", or a test's.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    yield Limit(count, f"this process may run on {count} processor{'s' * (count > 1)}")
    if sys.platform != "linux":  # elsewhere these paths are anybody's
        return
    groups = groups_of(lines(join(root, "proc/self/cgroup")))
    for mount in mounts(root, lines(join(root, "proc/self/mountinfo"))):
        group = groups.get(mount.version)
        for folder in mount.folders(group) if group is not None else ():
            quota = quota_v2(folder) if mount.version == 2 else quota_v1(folder)
            if quota is not None:
                name = "cpu.max" if mount.version == 2 else "cpu.cfs_quota_us"
                why = f"the control group has {quota:g} processors' time: {join(folder, name)}"
                yield Limit(max(1, int(quota)), why)


def lines(path: str) -> list[str]:
    """Reads the lines of a system file; an empty list if the file does not exist or may not be read."""
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []


def groups_of(rows: list[str]) -> dict[int, str]:
    """Reads this process's control group by version, 1 or 2, from the lines of /proc/self/cgroup. Version 1
    has several groups, of which that of the CPU is taken. Raises `FileError` for another format.
    """
    groups: dict[int, str] = {}
    for row in rows:
        if row.count(":") < 2:
            raise FileError(f"/proc/self/cgroup has {row!r}, but the kernel writes number:controllers:group")
        _, controllers, group = row.split(":", 2)
        if not controllers:
            groups[2] = group
        elif "cpu" in controllers.split(","):
            groups[1] = group
    return groups


def mounts(root: str, rows: list[str]) -> Iterator[Mount]:
    """Yields the mounted control groups that limit CPU time, from the lines of /proc/self/mountinfo. Raises
    `FileError` for another format. root: the folder that stands for "/", such as a test's.
    """
    for row in rows:
        before, _, after = row.partition(" - ")
        if before.count(" ") < 4 or after.count(" ") < 2:
            raise FileError(
                f"/proc/self/mountinfo has {row!r}, but the kernel writes "
                "`... group mountpoint ... - type source options`"
            )
        _, _, _, group, mount_point, *_ = before.split(" ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            where = join(root, unescaped(mount_point).lstrip("/"))
            yield Mount(where, unescaped(group), 2 if kind == "cgroup2" else 1)


def unescaped(text: str) -> str:
    r"""Decodes the octal escapes of a path of mountinfo, such as \040 for a space.

    >>> unescaped(r"/sys/fs/my\040groups")
    '/sys/fs/my groups'
    """
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), text) if "\\" in text else text


def quota_v2(folder: str) -> float | None:
    """Reads the CPU quota of a control group (version 2) from its folder, in CPUs; None for no limit. Raises
    `FileError` for another format than "quota period", or "max period".
    """
    path = join(folder, "cpu.max")
    text = " ".join(lines(path))
    quota, _, period = text.partition(" ")
    if not text or (quota == "max" and period.isdecimal()):
        return None
    if not quota.isdecimal() or not period.isdecimal() or not int(period):
        raise FileError(f"{path} is {text!r}, but the kernel writes a quota, or max, and a period there")
    return int(quota) / int(period)


def quota_v1(folder: str) -> float | None:
    """Reads the CPU quota of a control group (version 1) from its folder, in CPUs; None for no limit. Raises
    `FileError` for files that are not numbers.
    """
    paths = join(folder, "cpu.cfs_quota_us"), join(folder, "cpu.cfs_period_us")
    quota, period = (" ".join(lines(path)) for path in paths)
    if quota in ("", "-1"):
        return None
    if not quota.isdecimal() or not period.isdecimal() or not int(period):
        raise FileError(
            f"{paths[0]} is {quota!r} and {basename(paths[1])} {period!r}, "
            "but the kernel writes numbers there"
        )
    return int(quota) / int(period)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: (limit.cache_clear(), of_this_system.cache_clear()))
