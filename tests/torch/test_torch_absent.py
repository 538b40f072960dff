"""Steps written with PyTorch where PyTorch is not installed, and what importing stepnet imports."""

import subprocess
import sys

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
    said = "InputError steps written with PyTorch need torch: pip install stepnet[torch]\n"
    assert run(HIDDEN + code) == 2 * said


def test_without_torch_everything_else_runs() -> None:
    code = """
import numpy as np, stepnet as sn
rnn = sn.RNN(lambda x, h, _: (h + x, h + x), memory=1)
print(rnn(np.ones((1, 3, 1)))[0].ravel().tolist())
"""
    assert run(HIDDEN + code) == "[1.0, 2.0, 3.0]\n"


def test_stepnet_imports_no_torch() -> None:
    assert run("import sys, stepnet; print('torch' in sys.modules)") == "False\n"
