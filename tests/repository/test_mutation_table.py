"""Each file that `make test-mutants` is about has tests listed, and these are there."""

import hunt_changes
import pytest

FOLDERS = [
    f"compiler/{name}" for name in ("disk", "targets/cpu", "targets/cpu/*", "plan", "plan/passes", "grad")
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_has_tests(folder: str):
    files = [
        path for path in sorted(hunt_changes.SOURCE.glob(f"{folder}/*.py")) if path.name != "__init__.py"
    ]
    assert files
    for path in files:
        assert all((hunt_changes.ROOT / one).exists() for one in hunt_changes.tests_of(path)), path
