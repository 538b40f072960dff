"""Machines and Pythons that stepnet does not run on say so."""

import platform
import sys

import pytest

from stepnet.compiler.values import check_lock, has_lock
from stepnet.compiler.values.packages import LLVMLITE, Package
from stepnet.errors import LibraryError


def test_python_without_its_lock_is_refused() -> None:
    assert has_lock()
    check_lock(True)
    message = r"^stepnet does not run on free-threaded Python without its lock: start Python with -X gil=1 or"
    with pytest.raises(LibraryError, match=message):
        check_lock(False)


def test_where_no_version_works_no_command_installs_it() -> None:
    kind = sys.platform, platform.machine()
    assert Package("one", "1", nowhere=(kind, "use another")).command == "use another"
    assert (
        Package("one", "1", nowhere=((sys.platform, "vax"), "use another")).command == 'pip install "one>=1"'
    )
    assert LLVMLITE.nowhere is not None
    assert LLVMLITE.nowhere[0] == ("darwin", "x86_64")
    assert LLVMLITE.nowhere[1].startswith(
        "the package index has no later one for Macs with Intel processors;"
    )
