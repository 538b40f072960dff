"""`stepnet.jax`, and models with arrays of JAX, beside JAX itself in its environment: `make test-peers`."""

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

import stepnet
from tests.peers.environments import HERE, python

ENVIRONMENT = ".peers/jax"
CHECKS = re.findall(r"^@check\ndef (\w+)", (HERE / "jax_scan.py").read_text(encoding="utf-8"), re.M)


@cache
def said(out: Path) -> dict[str, str]:
    """The message of each check: empty where it holds. They run in one process."""
    done = subprocess.run(
        [python(ENVIRONMENT), "-W", "ignore", HERE / "jax_scan.py", out],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(stepnet.__file__).parents[1]), "JAX_PLATFORMS": "cpu"},
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", CHECKS)
def test_beside_jax_itself(check: str, tmp_path_factory: pytest.TempPathFactory):
    if not python(ENVIRONMENT).exists():
        pytest.skip(f"{ENVIRONMENT} is missing: make peers")
    assert not said(tmp_path_factory.getbasetemp() / "jax.json")[check]
