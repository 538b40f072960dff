"""The worked diffs of the documentation: each applies to the sources, and does what its text says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet.onnx
from stepnet.errors import ModelError

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
helper: Any = onnx.helper
ROOT = Path(__file__).parents[2]


def diff_of(page: str, heading: str) -> str:
    """The diff on a page under a heading."""
    text = (ROOT / page).read_text("utf-8").partition(f"\n### {heading}\n")[2]
    return text.partition("```diff\n")[2].partition("```")[0]


def apply(diff: str, root: Path) -> None:
    """Applies a diff to the files in a folder. The lines that a hunk keeps or removes occur exactly once."""
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        name, *hunks = re.split(r"^@@\n", part, flags=re.MULTILINE)
        path = root / name.strip()
        text = path.read_text("utf-8")
        for hunk in hunks:
            lines = [(line[0], line[1:]) for line in hunk.splitlines(keepends=True)]
            old = "".join(line for sign, line in lines if sign in " -")
            assert text.count(old) == 1, f"{name.strip()} has these lines {text.count(old)} times:\n{old}"
            text = text.replace(old, "".join(line for sign, line in lines if sign in " +"))
        path.write_text(text, "utf-8")


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A copy of the sources that a test may change."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def mish_model() -> Any:
    """A model that is one Mish."""
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "time", 8]) for name in "xy"
    )
    return helper.make_model(helper.make_graph([helper.make_node("Mish", ["x"], ["y"])], "mish", [x], [y]))


RUN = """
import sys
import numpy as np
import stepnet.onnx
np.save(sys.argv[3], stepnet.onnx.load(sys.argv[1])(np.load(sys.argv[2])))
"""


def test_the_worked_diff_adds_an_operator_of_onnx(changed: Path) -> None:
    model, given, made = (changed / name for name in ("mish.onnx", "x.npy", "y.npy"))
    onnx.save(mish_model(), model)
    x = np.linspace(-20, 20, 48, dtype="float32").reshape(2, 3, 8)
    np.save(given, x)
    with pytest.raises(ModelError, match="Mish not supported"):
        stepnet.onnx.load(model)
    apply(diff_of("docs/design.md", "Adding an operator"), changed)
    paths = {"PYTHONPATH": str(changed / "src"), "STEPNET_CACHE": "0"}
    subprocess.run([sys.executable, "-c", RUN, model, given, made], check=True, env=os.environ | paths)
    exact = x.astype("float64")
    assert_close(np.load(made), exact * np.tanh(np.log1p(np.exp(exact))))
