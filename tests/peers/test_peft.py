"""Adapters of PEFT on what stepnet runs, in the environment of PEFT: `make test-peers`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import stepnet
from tests.peers.environments import HERE, python


def test_adapters_of_peft(tmp_path: Path):
    interpreter, out = python(".peers/peft"), tmp_path / "said.json"
    if not interpreter.exists():
        pytest.skip(".peers/peft is missing: make peers")
    done = subprocess.run(
        [interpreter, HERE / "peft_adapters.py", out],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(stepnet.__file__).parents[1])},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(out.read_text(encoding="utf-8"))
    assert len(said) > 5
    assert not {check: text for check, text in said.items() if text}
