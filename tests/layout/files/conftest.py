"""Fixtures of tests of files."""

from collections.abc import Generator

import pytest

from tests.layout.files.readers import Reading, readers


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Generator[Reading]:
    """Processes that read files, started once for all tests of a module."""
    pytest.importorskip("resource", reason="the module resource is missing: no process can be limited")
    with readers(tmp_path_factory.mktemp("reading")) as reading:
        yield reading
