"""Models of transformers on stepnet, beside themselves as they are.

All checks run in one process there, family by family.
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

SCRIPT = HERE / "transformers_models.py"
TEXT = SCRIPT.read_text(encoding="utf-8")
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


def said_by(script: Path, out: Path, *arguments: str) -> dict[str, Any]:
    """The JSON that a script writes, in a process of its own."""
    places = {"PYTHONPATH": str(Path(stepnet.__file__).parents[1]), "STEPNET_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, out, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **places},
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.long
def test_models_of_transformers(tmp_path: Path, pytestconfig: pytest.Config):
    every = 1 if pytestconfig.option.long else 12
    said = said_by(SCRIPT, tmp_path / "said.json", str(every))
    assert sorted(said) == sorted(checks(every))
    assert not {check: text for check, text in said.items() if text}


@pytest.mark.long
def test_gradients_of_decays_of_models_are_as_near_as_those_of_loops(
    tmp_path: Path, pytestconfig: pytest.Config
):
    models = ["Kimi", "Mamba-2", "OLMo", "Qwen3.5", "xLSTM"] if pytestconfig.option.long else ["Mamba-2"]
    said = said_by(HERE / "transformers_decays.py", tmp_path / "said.json", *models)
    assert sorted(said) == models
    assert not {model: errors for model, errors in said.items() if not errors[0] <= 2 * errors[1]}
