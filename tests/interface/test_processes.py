"""Real processes: forks, pools, interrupts and limits. What each does is a script in tests/processes.

They end with code 0 if all was right, under a fault handler. `make test-long` runs each at its full length.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "processes"

SOME = pytest.mark.long(every=2, of="processes")
"""Of these `make test` runs the first, the third and so on."""

# The script, its arguments in every run, and in a long one.
CASES: list[Any] = [
    ("fork.py", ["10"], ["400"]),
    ("fork_while_compiling.py", ["10"], ["400"]),
    pytest.param("fork_while_running.py", ["10"], ["400"], marks=SOME),
    ("pool.py", ["10"], ["2000"]),
    pytest.param("data_loader.py", ["8"], ["2000"], marks=SOME),
    pytest.param("distributed.py", ["2", "fork"], ["100", "spawn"], marks=SOME),
    ("layers_in_workers.py", ["3", "0"], ["200", "2"]),
    pytest.param("interrupts.py", ["50", "2"], ["5000", "2"], marks=SOME),
    pytest.param("interrupts.py", ["50", "3"], ["5000", "3"], marks=SOME),
    pytest.param("interrupts.py", ["50", "3", "1e-5"], ["5000", "3", "1e-5"], marks=SOME),
    pytest.param("interrupts.py", ["50", "4"], ["5000", "4"], marks=SOME),
    ("interrupted_compiles.py", ["10"], ["500"]),
    pytest.param("interrupted_streams.py", ["500"], ["20000"], marks=SOME),
    pytest.param("interrupted_rows.py", ["100"], ["10000"], marks=SOME),
    pytest.param("interrupted_beams.py", ["25"], ["5000"], marks=SOME),
    pytest.param("first_calls.py", ["8"], ["16"], marks=SOME),
    pytest.param("first_calls.py", ["2"], ["2"], marks=SOME),
    pytest.param("fork_while_importing.py", ["0.02"], ["0.02"], marks=SOME),
    pytest.param("fork_while_importing.py", ["0.1"], ["0.1"], marks=SOME),
    *(
        ("fork_in_late_import.py", [name], [name])
        for name in (
            "stepnet.explain.plan",
            "stepnet.cells.at_test_time",
            "stepnet.torch.patches.transformers.patch",
            "numpy.random",
        )
    ),
    ("import_beside_first_call.py", [], []),
    ("control_c.py", ["1"], ["5"]),
    ("no_threads.py", ["10"], ["400"]),
    ("small_stacks.py", [], []),
    ("little_memory.py", ["50", "30"], [str(megabytes) for megabytes in range(52, 4, -3)]),
]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="Linux is missing, whose processes these are about")
@pytest.mark.parametrize(("script", "short", "full"), CASES, ids=lambda value: str(value))
def test_processes(script: str, short: list[str], full: list[str], request: pytest.FixtureRequest):
    long = request.config.getoption("--long")
    command = [sys.executable, "-X", "faulthandler", str(SCRIPTS / script), *(full if long else short)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800 if long else 240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip(), done.stderr
