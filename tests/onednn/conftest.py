"""All tests of oneDNN: skipped by name where it is not installed; one thread, unless a test asks for more."""

from collections.abc import Iterator

import pytest

import stepnet as sn
from stepnet import onednn
from stepnet.engines.onednn.library import Library, library
from stepnet.errors import LibraryError


@pytest.fixture(autouse=True)
def alone_with_its_caches() -> Iterator[None]:
    """Each test begins with empty caches, and with one thread: OpenMP's wait for those of other processes."""
    sn.set_threads(1)
    onednn.clear()
    yield
    sn.set_threads(None)


@pytest.fixture(scope="session")
def dnnl() -> Library:
    """The library."""
    try:
        return library()
    except LibraryError as error:
        pytest.skip(str(error))
