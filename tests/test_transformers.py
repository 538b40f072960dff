"""Models of transformers on stepnet, beside themselves as they are: in an environment with transformers.

All checks run in one process there, family by family, and each is a test here.
"""

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from peers.environments import HERE, python

import stepnet

ENVIRONMENT = ".peers/transformers"
SCRIPT = HERE / "transformers_models.py"
TEXT = SCRIPT.read_text(encoding="utf-8")
FAMILIES = re.findall(r'^    "(\w+)": Family\(', TEXT, re.M)
OF_FAMILIES = re.findall(r"^@check\ndef (\w+)", TEXT, re.M)
ALONE = re.findall(r"^@alone\ndef (\w+)", TEXT, re.M)
CHECKS = [*(f"{family} {check}" for family in FAMILIES for check in OF_FAMILIES), *ALONE]


@cache
def said(out: Path) -> dict[str, str]:
    """What each check says: nothing where it holds."""
    path = python(ENVIRONMENT)
    if not path.exists():
        pytest.skip(f"{ENVIRONMENT} is missing: make test")
    places = {"PYTHONPATH": str(Path(stepnet.__file__).parents[1]), "STEPNET_NUM_THREADS": "1"}
    done = subprocess.run(
        [path, SCRIPT, out],
        capture_output=True,
        text=True,
        env={**os.environ, **places},
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text(encoding="utf-8"))


def test_every_check_is_a_test(tmp_path_factory: pytest.TempPathFactory):
    assert sorted(said(tmp_path_factory.getbasetemp() / "transformers.json")) == sorted(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_models_of_transformers(check: str, tmp_path_factory: pytest.TempPathFactory):
    assert not said(tmp_path_factory.getbasetemp() / "transformers.json")[check]
