"""Ray for the tests that use it: started before the first of them, and ended behind the last.

To start Ray takes seconds, so there is one for all: these tests are put first, where they run in one process
one after the other, as the processes of a run begin at different tests and take from each other's ends.
"""

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("tests/ray/", "src/stepnet/ray/", "docs/ray.md")


def uses_ray(item: pytest.Item) -> bool:
    """True if a test or an example runs on Ray."""
    return item.path.relative_to(ROOT).as_posix().startswith(PLACES)


class RaySession:
    """The plugin that starts and ends Ray."""

    def __init__(self) -> None:
        self.folder: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Starts Ray, if it is needed and not there."""
        if self.folder is None and uses_ray(item):
            folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the paths of sockets are short
            start(folder)
            self.folder = folder

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Ends Ray, if the next test does not need it."""
        if self.folder is not None and (nextitem is None or not uses_ray(nextitem)):
            import ray

            ray.shutdown()
            shutil.rmtree(self.folder)
            self.folder = None


def start(folder: str) -> None:
    """Starts Ray with two processors, whose workers import what tests do."""
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests" / "support", ROOT)))
    import ray
    import ray.data

    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=2, object_store_memory=200 << 20, _temp_dir=folder, **options)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
