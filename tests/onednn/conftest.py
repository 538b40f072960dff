"""All tests of oneDNN: skipped by name where it is not installed; one thread, unless a test asks for more."""

from collections.abc import Iterator

import pytest
from installed_onednn import missing_onednn

import stepnet as sn
from stepnet import onednn
from stepnet.compiler.targets.onednn import OneDnnLibrary
from stepnet.compiler.targets.onednn.library import library


@pytest.fixture(autouse=True)
def alone_with_its_caches() -> Iterator[None]:
    """Each test begins with empty caches, and with one thread: OpenMP's wait for those of other processes."""
    sn.set_threads(1)
    onednn.clear()
    yield
    sn.set_threads(None)


@pytest.fixture(scope="session")
def dnnl() -> OneDnnLibrary:
    """The library."""
    if reason := missing_onednn():
        pytest.skip(reason)
    return library()
