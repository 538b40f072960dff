"""What all tests share: each engine, and hypothesis that draws the same examples in every run, so that a
failure is seen again.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is first imported

import pytest
from hypothesis import settings

settings.register_profile("same every time", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("same every time")


@pytest.fixture(params=["interpret", "llvm"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that runs every net."""
    return request.param


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test-peers ARGS=--save` keeps what frameworks gave, `make pictures` what the browser showed;
    `make test-long` runs some tests at their full length.
    """
    parser.addoption("--long", action="store_true", help="run what has a full length at that")
    parser.addoption("--save", action="store_true", help="keep what frameworks gave and browsers showed")
