"""Keras whose backend is not installed, as TensorFlow is where only PyTorch is."""

import os
import subprocess
import sys

CODE = """
import sys
sys.modules["tensorflow"] = None
import stepnet
try:
    import stepnet.keras
except stepnet.StepnetError as error:
    print(type(error).__name__, error)
"""


def test_without_the_backend_it_says_what_to_set() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment |= {"KERAS_HOME": "/nowhere"}  # no settings of the user
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.startswith("InputError Keras is set to a backend that needs tensorflow, which is not")
    assert 'set the environment variable KERAS_BACKEND to "torch"' in done.stdout
