"""PyTorch's own tests of recurrent modules, run with stepnet's classes in the place of torch.nn's.

    python -m tests.torch.pytorchs_own pytorch/test

The folder is `test` of PyTorch's repository at the tag of the installed version; nothing of it is kept here.
Each file runs twice, with torch.nn and with stepnet.torch, and each test whose outcome differs is to have a
row in `DIFFERENT`. Of a file, the tests run whose code or name has a recurrent module. This file is also the
plugin of pytest that chooses them, replaces the classes, and writes the outcomes.
"""

import argparse
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
LAYERS, CELLS = ("RNN", "GRU", "LSTM"), ("RNNCell", "GRUCell", "LSTMCell")
OUTCOMES, PACKAGE = "TORCHS_OWN_OUTCOMES", "TORCHS_OWN_PACKAGE"
"""The variables of the environment that tell the plugin where to write, and whose classes to run."""
PLUGIN = "tests.torch.pytorchs_own"
FILES = (
    "test_nn.py",
    "test_modules.py",
    "test_expanded_weights.py",
    "nn/test_load_state_dict.py",
    "nn/test_pruning.py",
)
"""The files that run by default: those whose tests are about modules, recurrent ones among them."""
DIFFERENT: Mapping[str, str] = {}
"""The tests whose outcome differs from torch.nn's, each with the reason why it is to differ."""


# ---- the plugin of pytest ----------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Replaces the classes before PyTorch's files are imported, whose tables hold them."""
    package = importlib.import_module(os.environ[PACKAGE])
    for name in (*LAYERS, *CELLS):
        for module in (torch.nn, torch.nn.modules, torch.nn.modules.rnn):
            setattr(module, name, getattr(package, name))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    items[:] = [item for item in items if has_recurrent_module(item)]


def has_recurrent_module(item: Any) -> bool:
    """Tells whether the name or the code of a test has a layer or cell of torch.nn."""
    text = item.name + inspect.getsource(inspect.unwrap(item.obj))
    return re.search(r"(?<![A-Za-z])(RNN|GRU|LSTM)|rnn_", text) is not None


def pytest_runtest_logreport(report: Any) -> None:
    """Appends the outcome of a test to the file of outcomes; of its phases, what is not passed counts."""
    if report.when == "call" or report.outcome != "passed":
        outcome = "expected failure" if hasattr(report, "wasxfail") else report.outcome
        lines = str(report.longrepr).strip().splitlines() if outcome == "failed" else [""]
        with open(os.environ[OUTCOMES], "a") as file:
            file.write(json.dumps([report.nodeid, outcome, lines[-1]]) + "\n")


# ---- the comparison ----------------------------------------------------------------------------------------


def outcomes(file: Path, package: str) -> dict[str, tuple[str, str]]:
    """Runs a file of tests in a process of its own, with the classes of a package; returns the outcome of
    each test and the last line of its failure, by name.
    """
    with TemporaryDirectory() as folder:
        written = Path(folder, "outcomes")
        written.touch()
        command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "--noconftest", "-W", "ignore"]
        command += ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(file.parent), str(file)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, OUTCOMES: str(written), PACKAGE: package}
        done = subprocess.run(command, cwd=file.parent, env=environment, capture_output=True, text=True)
        if done.returncode not in (0, 1, 5):  # passed, some failed, none chosen
            sys.exit(
                f"{file}: pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        rows = [json.loads(line) for line in written.read_text().splitlines()]
    return {name: (outcome, line) for name, outcome, line in rows}


def compared(file: Path) -> tuple[Counter[str], dict[str, str]]:
    """Runs a file with torch.nn and with stepnet; returns how many tests have each outcome with both, and how
    the others differ, by name.
    """
    theirs, ours = (outcomes(file, package) for package in ("torch.nn", "stepnet.torch"))
    counts, different = Counter[str](), dict[str, str]()
    for test in sorted(theirs.keys() | ours.keys()):
        (right, _), (found, line) = theirs.get(test, ("missing", "")), ours.get(test, ("missing", ""))
        if right == found:
            counts[right] += 1
        else:
            different[test] = f"{right} with torch.nn, {found} with stepnet: {line}"
    return counts, different


def main() -> None:
    """Compares the outcomes of all files, and ends with an error for a difference that has no row, and for a
    row without a difference.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="`test` of PyTorch's repository, at the tag of this version"
    )
    parser.add_argument(
        "files", nargs="*", default=FILES, help="some of its files; those of FILES by default"
    )
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    counts, different = Counter[str](), dict[str, str]()
    for name in given.files:
        if not (folder / name).exists():
            sys.exit(f"{folder} has no {name}: give the folder `test` of PyTorch {torch.__version__}")
        of_file, apart = compared(folder / name)
        counts += of_file
        different |= {f"{name}::{test.rpartition('.py::')[2]}": text for test, text in apart.items()}
        print(f"{name}: {dict(of_file)}, {len(apart)} differ", flush=True)
    for test, text in different.items():
        print(f"{test}: {text}\n    {DIFFERENT.get(test, 'NO REASON IS KNOWN')}")
    gone = {test for test in DIFFERENT.keys() - different.keys() if test.partition("::")[0] in given.files}
    for test in sorted(gone):
        print(f"{test} no longer differs")
    print(f"the same with stepnet: {dict(counts)}; different: {len(different)}")
    sys.exit(bool(gone or different.keys() - DIFFERENT.keys()))


if __name__ == "__main__":
    main()
