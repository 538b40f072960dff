"""The number of threads of a call by default: affinity, control groups and environment variables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepnet.compiler.targets.limits import Limit, least, of_system
from stepnet.errors import FileError, InputError

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux is missing, whose processes these are about"
)
MOUNT2 = "30 23 0:26 {group} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
MOUNT1 = "31 23 0:27 {group} /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct"
OTHER1 = "32 23 0:28 / /sys/fs/cgroup/memory rw shared:6 - cgroup cgroup rw,memory"


def system(root: Path, group: str, mount: str, files: dict[str, str], at: str = "/") -> str:
    """A root with the files of a system; the process is in a group, and the group `at` is mounted."""
    mounts = ["23 1 0:22 / /sys rw - sysfs sysfs rw", OTHER1, mount.format(group=at)]
    for name, text in {"proc/self/cgroup": group, "proc/self/mountinfo": "\n".join(mounts), **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


def quotas(root: str) -> list[int]:
    """The limits by control groups."""
    return [limit.count for limit in of_system(root)][1:]


@pytest.mark.parametrize(
    ("text", "counts"),
    [("max 100000", []), ("150000 100000", [1]), ("20000 100000", [1]), ("350000 100000", [3])],
)
def test_a_quota_of_version_2_is_rounded_down_to_one_at_least(tmp_path: Path, text: str, counts: list[int]):
    root = system(tmp_path, "0::/a", MOUNT2, {"sys/fs/cgroup/a/cpu.max": text})
    assert quotas(root) == counts


@pytest.mark.parametrize(("text", "counts"), [("-1", []), ("250000", [5]), ("10000", [1])])
def test_a_quota_of_version_1(tmp_path: Path, text: str, counts: list[int]):
    folder = "sys/fs/cgroup/cpu,cpuacct/a"
    files = {f"{folder}/cpu.cfs_quota_us": text, f"{folder}/cpu.cfs_period_us": "50000"}
    root = system(tmp_path, "9:memory:/m\n4:cpu,cpuacct:/a\n0::/", MOUNT1, files)
    assert quotas(root) == counts


def test_the_least_quota_up_the_path_counts(tmp_path: Path):
    files = {
        "sys/fs/cgroup/cpu.max": "max 100000",
        "sys/fs/cgroup/a/cpu.max": "200000 100000",
        "sys/fs/cgroup/a/b/cpu.max": "800000 100000",
        "sys/fs/cgroup/a/b/c/cpu.max": "max 100000",
        "sys/fs/cgroup/other/cpu.max": "100000 100000",
    }
    root = system(tmp_path, "0::/a/b/c", MOUNT2, files)
    assert quotas(root) == [8, 2]
    by_group = min(list(of_system(root))[1:], key=lambda limit: limit.count)
    assert by_group.why == f"the control group has 2 processors' time: {root}/sys/fs/cgroup/a/cpu.max"


def test_a_group_of_which_only_a_part_is_mounted(tmp_path: Path):
    """A container sees its own group at the mount, under the name that the host has for it, or none of it."""
    files = {"sys/fs/cgroup/cpu.max": "300000 100000", "sys/fs/cgroup/in/cpu.max": "100000 100000"}
    assert quotas(system(tmp_path, "0::/docker/1/in", MOUNT2, files, "/docker/1")) == [1, 3]
    assert quotas(system(tmp_path, "0::/elsewhere", MOUNT2, files, "/docker/1")) == [3]


def test_a_system_without_control_groups_limits_nothing(tmp_path: Path):
    processors = f"this process may run on {HERE} processor{'s' * (HERE > 1)}"
    assert least(str(tmp_path), {}) == Limit(HERE, processors)
    assert least(system(tmp_path, "0::/a", MOUNT2, {}), {}) == Limit(HERE, processors)


@pytest.mark.parametrize("text", ["100000", "most 100000", "100000 0", "-1 100000", "1.5 2"])
def test_a_file_in_another_format_than_the_kernels_is_refused(tmp_path: Path, text: str):
    root = system(tmp_path, "0::/a", MOUNT2, {"sys/fs/cgroup/a/cpu.max": text})
    with pytest.raises(FileError, match=f"cpu.max is '{text}', but the kernel writes a quota, or max"):
        least(root, {})


@pytest.mark.parametrize(("quota", "period"), [("max", "100000"), ("100000", "0"), ("-2", "5"), ("1", "")])
def test_a_file_of_version_1_in_another_format(tmp_path: Path, quota: str, period: str):
    folder = "sys/fs/cgroup/cpu,cpuacct"
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}
    root = system(tmp_path, "4:cpu,cpuacct:/", MOUNT1, files)
    with pytest.raises(FileError, match=f"cpu.cfs_quota_us is '{quota}' and cpu.cfs_period_us '{period}'"):
        least(root, {})


@pytest.mark.parametrize(("name", "text"), [("cgroup", "0:/a"), ("mountinfo", "30 23 cgroup2")])
def test_tables_of_the_system_in_another_format(tmp_path: Path, name: str, text: str):
    root = system(tmp_path, "0::/", MOUNT2, {f"proc/self/{name}": text})
    with pytest.raises(FileError, match=f"/proc/self/{name} has '{text}'"):
        least(root, {})


# ---- environment variables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS is 1"),
        ({"OMP_NUM_THREADS": " 1, 7 "}, "OMP_NUM_THREADS is 1, 7"),
        ({"STEPNET_NUM_THREADS": "1", "OMP_NUM_THREADS": "nonsense"}, "STEPNET_NUM_THREADS is 1"),
        ({"STEPNET_NUM_THREADS": "", "OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS is 1"),
    ],
)
@pytest.mark.skipif(HERE == 1, reason="a second processor is missing")
def test_variables_lower_the_number(tmp_path: Path, variables: dict[str, str], why: str):
    assert least(str(tmp_path), variables) == Limit(1, why)


def test_variables_do_not_raise_the_number(tmp_path: Path):
    assert least(str(tmp_path), {"OMP_NUM_THREADS": str(HERE + 5)}).count == HERE


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5", "9" * 30, ",2", "\N{ARABIC-INDIC DIGIT TWO}"])
@pytest.mark.parametrize("name", ["STEPNET_NUM_THREADS", "OMP_NUM_THREADS"])
def test_a_variable_that_is_no_number_of_threads(tmp_path: Path, name: str, text: str):
    with pytest.raises(InputError, match=f"the environment variable {name} is '{text}', but a number of thr"):
        least(str(tmp_path), {name: text})


def test_a_list_is_for_openmp_alone(tmp_path: Path):
    with pytest.raises(InputError, match="STEPNET_NUM_THREADS is '2,1'"):
        least(str(tmp_path), {"STEPNET_NUM_THREADS": "2,1"})


# ---- processes ---------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys
import numpy as np
import stepnet as sn
from stepnet.compiler.targets.threads import threads, threads_limit
from stepnet.errors import InputError
rnn = sn.RNN(lambda x, h, p: (h + x @ p, h), np.ones((2, 2), "f4"), memory=2)
try:
    rnn(np.ones((3, 2, 2), "f4"))
    found = [threads(), threads_limit().why]
except InputError as error:
    found = [str(error)]
    sn.set_threads(1)
    rnn(np.ones((3, 2, 2), "f4"))
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
before = threads()
if not (child := os.fork()):
    os.environ.pop("STEPNET_NUM_THREADS", None)
    print(json.dumps([*found, before, threads()]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def ran(**variables: str) -> list[object]:
    """The output of a process with these environment variables, about its threads."""
    kept = {name: text for name, text in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, capture_output=True, text=True, env=kept | variables, timeout=240, check=True
    )
    return json.loads(done.stdout)


@LINUX
@pytest.mark.skipif(HERE == 1, reason="a second processor is missing")
def test_a_process_reads_its_limits_once_and_again_after_a_fork():
    why = f"this process may run on {HERE} processors"
    assert ran(OMP_NUM_THREADS=str(HERE + 1)) == [HERE, why, HERE, 1]


@LINUX
def test_a_process_with_a_variable_that_is_no_number():
    """The first call says so, and `set_threads` helps."""
    text, *counts = ran(STEPNET_NUM_THREADS="many")
    assert text == (
        "the environment variable STEPNET_NUM_THREADS is 'many', but a number of threads is a whole number "
        "from 1 on; set it to one, or unset it"
    )
    assert counts == [1, 1]
