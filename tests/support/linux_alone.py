"""Libraries for C, which run on Linux alone, where they are built for the processor at hand."""

import sys
from collections.abc import Sequence

import pytest

PLACES = (
    *("tests/build/", "tests/compiler/targets/cpu/library/", "src/stepnet/build/"),
    *("docs/building.md", "docs/deploy.md"),
)
"""Folders of tests, and pages and docstrings with examples, whose libraries run."""
REASON = "libraries for C are built for this processor, and run, on Linux alone"


def skip_elsewhere() -> None:
    """Skips a test in which a library runs, on a system other than Linux."""
    if sys.platform != "linux":
        pytest.skip(REASON)


def skip_libraries(items: Sequence[pytest.Item], system: str = sys.platform) -> None:
    """Skips the tests and examples in `PLACES` on a system other than Linux, and says so."""
    for item in items if system != "linux" else ():
        if any(f"/{place}" in item.path.as_posix() for place in PLACES):
            item.add_marker(pytest.mark.skip(reason=REASON))
