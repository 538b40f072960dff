"""Steps written with PyTorch where PyTorch is not installed, and what importing stepnet imports."""

import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = "import sys; sys.modules['torch'] = None\n"


def run(code: str) -> str:
    """The output of a fresh Python."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_torch_its_steps_say_how_to_get_it_each_time() -> None:
    code = """
import stepnet
for _ in range(2):
    try:
        import stepnet.torch
    except stepnet.StepnetError as error:
        print(type(error).__name__, error)
"""
    said = 'InputError steps written with PyTorch need torch: pip install "stepnet[torch]"\n'
    assert run(HIDDEN + code) == 2 * said


@pytest.mark.parametrize("kind", ["ImportError", "OSError"])
def test_a_torch_that_cannot_be_imported_is_said_with_the_reason(tmp_path: Path, kind: str) -> None:
    (tmp_path / "torch.py").write_text(f"raise {kind}('libtorch_cpu.so: cannot open shared object file')")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import stepnet
try:
    import stepnet.torch
except stepnet.StepnetError as error:
    print(error)
"""
    reason = "libtorch_cpu.so: cannot open shared object file"
    assert run(code) == f"torch is installed, and torch cannot be imported: {reason}; reinstall it\n"


def test_without_torch_everything_else_runs() -> None:
    code = """
import numpy as np, stepnet as sn
rnn = sn.RNN(lambda x, h, _: (h + x, h + x), memory=1)
print(rnn(np.ones((1, 3, 1)))[0].ravel().tolist())
"""
    assert run(HIDDEN + code) == "[1.0, 2.0, 3.0]\n"


def test_stepnet_imports_no_torch() -> None:
    assert run("import sys, stepnet; print('torch' in sys.modules)") == "False\n"
