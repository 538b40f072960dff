"""The frameworks themselves, each run in its own environment now: `make test-peers`."""

import subprocess
from pathlib import Path

import pytest

from tests.layout.test_saved_peers import check
from tests.peers.case import load
from tests.peers.environments import HERE, SCRIPTS, python, saved


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_framework_gives_what_its_layouts_say(script: str, tmp_path: Path, request: pytest.FixtureRequest):
    interpreter = python(SCRIPTS[script])
    if not interpreter.exists():
        pytest.skip(f"{SCRIPTS[script]} is missing: make peers")
    out = tmp_path / "cases.npz"
    command = [interpreter, HERE / f"{script}.py", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    cases, versions = load(out)
    assert len(cases) == len(load(saved(script))[0])
    for case in cases:
        check(case)
    if request.config.getoption("--save"):
        out.replace(saved(script))
    print(versions)
