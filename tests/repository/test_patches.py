"""Tests replace fewer parts of modules as time goes on.

A test that replaces a function of a module knows more than the interface. Constants, such as the limit that a
small case reaches, are set with the fixture `constants`.
"""

import re
from pathlib import Path

import pytest
from constants import Constants

from stepnet.model import masks

TESTS = Path(__file__).parents[1]
MOST = 161
"""The most calls of `monkeypatch.setattr`: lower it with each that goes."""


def test_tests_replace_fewer_parts_of_modules():
    texts = [path.read_text("utf-8") for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__)]
    count = sum(len(re.findall(r"\bmonkeypatch\.setattr\b", text)) for text in texts)
    print(f"{count} calls of monkeypatch.setattr")
    assert count <= MOST


def test_constants_are_set_until_the_end():
    before, seen = masks.IN_CACHE, list[int]()
    with pytest.MonkeyPatch.context() as patch:
        for value, module in enumerate((masks, "stepnet.model.masks")):
            Constants(patch)(module, IN_CACHE=value)
            seen.append(masks.IN_CACHE)
    assert [*seen, masks.IN_CACHE] == [0, 1, before]


def test_only_constants_are_set(constants: Constants):
    with pytest.raises(KeyError, match="IN_NO_CACHE"):
        constants(masks, IN_NO_CACHE=1)
    with pytest.raises(AssertionError, match="uniform is no constant"):
        constants(masks, uniform=masks.uniform)
    with pytest.raises(AssertionError, match=r"IN_CACHE of stepnet\.model\.masks is .*, not '1'"):
        constants(masks, IN_CACHE="1")
