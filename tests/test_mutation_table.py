"""Each file that `make test-mutants` is about has tests listed, and these are there."""

import hunt_changes
import pytest


@pytest.mark.parametrize("folder", ["disk", "engines/llvm", "engines/llvm/*", "plan", "plan/passes", "grad"])
def test_every_file_has_tests(folder: str):
    files = [
        path for path in sorted(hunt_changes.SOURCE.glob(f"{folder}/*.py")) if path.name != "__init__.py"
    ]
    assert files
    for path in files:
        assert all((hunt_changes.ROOT / one).exists() for one in hunt_changes.tests_of(path)), path
