"""Each file that `make test-mutants` is about has tests listed, and these are there."""

import pytest
from hunt_changes import ROOT, SOURCE, tests_of


@pytest.mark.parametrize("folder", ["engines/llvm", "plan", "plan/passes", "grad"])
def test_every_file_has_tests(folder: str):
    files = [path for path in sorted((SOURCE / folder).glob("*.py")) if path.name != "__init__.py"]
    assert files
    for path in files:
        assert all((ROOT / one).exists() for one in tests_of(path)), path
