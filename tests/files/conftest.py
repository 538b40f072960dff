"""What tests of files share."""

from collections.abc import Generator

import pytest

from tests.files.readers import Reading, readers


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Generator[Reading]:
    """What reads files in processes of their own, started once for all tests of a module."""
    with readers(tmp_path_factory.mktemp("reading")) as reading:
        yield reading
