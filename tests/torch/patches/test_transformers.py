"""Models of transformers on stepnet, beside themselves as they are.

All checks run in one process there, which imports transformers once, family by family.
"""

import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import stepnet
from tests.peers.environments import HERE

MODELS, DECAYS = "transformers_models", "transformers_decays"
PROGRAM = f"""
import sys
import {MODELS}, {DECAYS}

out, every, *models = sys.argv[1:]
{MODELS}.main(f"{{out}}/{MODELS}.json", every)
{DECAYS}.main(f"{{out}}/{DECAYS}.json", *models)
"""
TEXT = HERE.joinpath(f"{MODELS}.py").read_text(encoding="utf-8")
FAMILIES = re.findall(r'^    "(\w+)": Family\(', TEXT, re.M)
OF_FAMILIES = re.findall(r"^@check\ndef (\w+)", TEXT, re.M)
ALONE = re.findall(r"^@alone\ndef (\w+)", TEXT, re.M)


def checks(every: int) -> list[str]:
    """The names of the checks: of each family the first, and each such one, beginning with another one."""
    pairs = product(enumerate(FAMILIES), enumerate(OF_FAMILIES))
    return [
        *(
            f"{name} {check}"
            for (row, name), (column, check) in pairs
            if not column or (row + column) % every == 0
        ),
        *ALONE,
    ]


@pytest.fixture(scope="module")
def every(pytestconfig: pytest.Config) -> int:
    """Of which checks of a family one is run."""
    return 1 if pytestconfig.option.long else 12


@pytest.fixture(scope="module")
def models(pytestconfig: pytest.Config) -> list[str]:
    """The models whose gradients are compared with those of loops."""
    return ["Kimi", "Mamba-2", "OLMo", "Qwen3.5", "xLSTM"] if pytestconfig.option.long else ["Mamba-2"]


@pytest.fixture(scope="module")
def said(every: int, models: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON that each script writes, by its name."""
    out = tmp_path_factory.mktemp("said")
    places = os.pathsep.join(map(str, (Path(stepnet.__file__).parents[1], HERE)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, out, str(every), *models],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": places, "STEPNET_NUM_THREADS": "1"},
        timeout=2400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: json.loads((out / f"{name}.json").read_text("utf-8")) for name in (MODELS, DECAYS)}


@pytest.mark.long
def test_models_of_transformers(said: dict[str, Any], every: int):
    assert sorted(said[MODELS]) == sorted(checks(every))
    assert not {check: text for check, text in said[MODELS].items() if text}


@pytest.mark.long
def test_gradients_of_decays_of_models_are_as_near_as_those_of_loops(said: dict[str, Any], models: list[str]):
    assert sorted(said[DECAYS]) == models
    assert not {model: errors for model, errors in said[DECAYS].items() if not errors[0] <= 2 * errors[1]}
