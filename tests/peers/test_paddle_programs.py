"""Paddle's saved programs, made and run in Paddle's environment now: `make test-peers`."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from peers.environments import HERE, python
from tolerance import assert_close


def test_paddle_gives_what_it_gave(tmp_path: Path, request: pytest.FixtureRequest):
    interpreter = python(".peers/paddle")
    if not interpreter.exists():
        pytest.skip(".peers/paddle is missing: make peers")
    out, kept = tmp_path / "programs.npz", HERE / "saved" / "paddle_programs.npz"
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [interpreter, HERE / "paddle_programs.py", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=alone)
    assert done.returncode == 0, done.stderr[-2000:]
    new, old = np.load(out), np.load(kept)
    assert sorted(new.files) == sorted(old.files)
    for name in old.files:
        if "/outputs/" in name:
            assert_close(new[name], old[name], 6, 12)
    if request.config.getoption("--save"):
        out.replace(kept)
