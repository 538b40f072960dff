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


PAGE = ROOT / "docs" / "design" / "extending.md"


def diff_of(heading: str) -> str:
    """The diff of the page under a heading."""
    text = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2]
    return text.partition("```diff\n")[2].partition("```")[0]


def apply(diff: str, root: Path) -> None:
    """Applies a diff to the files in a folder. The lines that a hunk keeps or removes occur exactly once; a
    new file has none.
    """
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        name, *hunks = re.split(r"^@@\n", part, flags=re.MULTILINE)
        path = root / name.strip()
        path.parent.mkdir(exist_ok=True)
        text = path.read_text("utf-8") if path.exists() else ""
        for hunk in hunks:
            lines = [(line[0], line[1:]) for line in hunk.splitlines(keepends=True)]
            old = "".join(line for sign, line in lines if sign in " -")
            assert text.count(old) == 1 or not text, (
                f"{name.strip()} has these lines {text.count(old)} times:\n{old}"
            )
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
    apply(diff_of("An operator of a format"), changed)
    paths = {"PYTHONPATH": str(changed / "src"), "STEPNET_CACHE": "0"}
    subprocess.run([sys.executable, "-c", RUN, model, given, made], check=True, env=os.environ | paths)
    exact = x.astype("float64")
    assert_close(np.load(made), exact * np.tanh(np.log1p(np.exp(exact))))


# For each heading, what the changed sources do.
CHANGES = {
    "An operation": """
rnn = sn.RNN(lambda x, h, p: (np.trunc(x), h), memory=1)
outputs, _ = rnn(np.float32([[[-1.5], [2.5]]]), engine="llvm")
assert outputs.tolist() == [[[-1.0], [2.0]]]
""",
    "A pass": """
rnn = sn.RNN(lambda x, h, p: (-(-x) * h, h), memory=1, inputs=sn.Spec(1, "float32"))
assert "negative" not in str(rnn.plan.net)
assert rnn(np.float32([[[3]]]), initial=np.float32([[2]]))[0].tolist() == [[[6.0]]]
""",
    "A target": """
from stepnet.errors import RefusedError

x, weights = np.float32([[[1], [2]]]), np.float32([3])
rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), weights, memory=1)
for run in (rnn, sn.Stack([rnn, rnn])):
    assert np.array_equal(run(x, engine="toy")[0], run(x, engine="interpret")[0])
logarithm = sn.RNN(lambda x, h, p: (np.log1p(x), h), memory=1)
try:
    logarithm(x, engine="toy")
except RefusedError as error:
    assert "it has no log1p" in str(error)
else:
    raise AssertionError("it was not refused")
""",
}


@pytest.mark.parametrize("heading", CHANGES)
def test_a_worked_diff_applies_and_runs(heading: str, changed: Path) -> None:
    apply(diff_of(heading), changed)
    package = changed / "toy"
    if package.exists():  # as an installer would leave it
        information = package / "toy_target-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-target\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("[stepnet.targets]\ntoy = toy_target:ToyTarget\n")
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (changed / "src", package))), "STEPNET_CACHE": "0"}
    code = "import numpy as np\nimport stepnet as sn\n" + CHANGES[heading]
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | paths)
