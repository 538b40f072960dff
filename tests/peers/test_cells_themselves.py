"""Cells beside the functions of other libraries, run in their own environment now: `make test-peers`."""

import subprocess
from pathlib import Path

import cell_cases
import numpy as np
import pytest

from stepnet.cells import FORMS
from tests.cells.test_cell_functions import check
from tests.peers.environments import CELL_SCRIPTS, HERE, python, saved

ROWS, STEPS = 2, 7


def cases() -> dict[str, np.ndarray]:
    """Inputs, memories and parameters of every cell, by cell|part|name."""
    found: dict[str, np.ndarray] = {}
    for cell in FORMS:
        parts = {
            "x": cell_cases.inputs(cell, ROWS, STEPS, "float32"),
            "memory": cell_cases.initial(cell, ROWS, "float32"),
            "params": cell_cases.parameters(cell, "float32") or {},
        }
        for part, value in parts.items():
            arrays = value if isinstance(value, dict) else {"": value}
            found |= {f"{cell}|{part}|{name}": array for name, array in arrays.items()}
    return found


@pytest.mark.parametrize("script", CELL_SCRIPTS)
def test_cells_are_the_functions_of_other_libraries(
    script: str, tmp_path: Path, request: pytest.FixtureRequest
):
    interpreter = python(CELL_SCRIPTS[script])
    if not interpreter.exists():
        pytest.skip(f"{CELL_SCRIPTS[script]} is missing: make peers")
    given, out = tmp_path / "given.npz", tmp_path / "out.npz"
    np.savez(given, **cases())
    command = [interpreter, HERE / f"{script}.py", given, out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for cell in FORMS:
        print(f"{cell:20} {check(out, cell, 'llvm', 'float32'):.1e}")
    if request.config.getoption("--save"):
        out.replace(saved(script))
