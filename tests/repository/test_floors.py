"""The lowest versions that stepnet needs: the same for pip, for messages and for tests."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stepnet.compiler.values.packages import PACKAGES, Package, numbers

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_TESTED = {"torch"}


def floors(requirements: list[str]) -> dict[str, str]:
    """The lowest version of each package of requirements that have one."""
    pattern = re.compile(r"([a-z0-9-]+)(?:\[[a-z]+\])?>=([0-9.]+)")
    matches = [pattern.fullmatch(text) for text in requirements if "==" not in text]
    assert all(matches)
    return {match[1]: match[2] for match in matches if match}


def declared() -> dict[tuple[str, str | None], str]:
    """The floors in pyproject.toml, by package and extra."""
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    lists: list[tuple[str | None, list[str]]] = [(None, PROJECT["project"]["dependencies"]), *extras.items()]
    return {(name, extra): floor for extra, texts in lists for name, floor in floors(texts).items()}


def test_the_table_says_what_pip_is_told():
    table = {(package.name, package.extra): package.floor for package in PACKAGES}
    assert table.items() <= declared().items()
    again = {(name, floor) for (name, _), floor in declared().items()}
    assert again == {(package.name, package.floor) for package in PACKAGES}  # whatever extra says it again


def test_environments_of_peers_have_what_stepnet_needs():
    needed = {package.name: package.floor for package in PACKAGES if package.extra is None}
    assert floors(PROJECT["dependency-groups"]["peer-stepnet"]) == needed
    for name in ("peer-spark", "bench"):
        found: list[Any] = PROJECT["dependency-groups"][name]
        assert "pyarrow>=" + next(p.floor for p in PACKAGES if p.name == "pyarrow") in found


def test_the_lowest_versions_are_tested():
    lines = [line for line in (ROOT / "tests" / "lowest.txt").read_text().splitlines() if line[0] != "#"]
    tested = dict(line.split("==") for line in lines)
    assert tested.keys() == {package.name for package in PACKAGES} - NOT_TESTED
    for package in PACKAGES:
        if package.name not in NOT_TESTED:
            assert numbers(tested[package.name]) == numbers(package.floor), package.name


@pytest.mark.parametrize(
    ("version", "older"),
    [
        ("0.15.3", True),
        ("0.15.4", False),
        ("0.15.4rc1", False),
        ("0.15", True),
        ("0.16.0+local", False),
        ("1", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, older: bool):
    assert Package("typer", "0.15.4").older(version) == older
