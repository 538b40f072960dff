"""The results of Paddle for its fused operators and its saved programs, run in its environment now.

`make test-peers` runs this.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tolerance import assert_close

from tests.peers.environments import HERE, python


@pytest.mark.parametrize(("script", "part"), [("paddle_fused", ""), ("paddle_programs", "/outputs/")])
def test_paddle_gives_what_it_gave(tmp_path: Path, script: str, part: str):
    interpreter = python(".peers/paddle")
    if not interpreter.exists():
        pytest.skip(".peers/paddle is missing: make peers")
    out, kept = tmp_path / "new.npz", HERE / "saved" / f"{script}.npz"
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [interpreter, HERE / f"{script}.py", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=alone)
    assert done.returncode == 0, done.stderr[-2000:]
    new, old = np.load(out), np.load(kept)
    assert sorted(new.files) == sorted(old.files)
    compared = [name for name in old.files if name != "about" and part in name]
    assert compared
    for name in compared:
        assert_close(new[name], old[name], 6, 12)
