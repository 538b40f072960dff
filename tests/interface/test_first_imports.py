"""Imports ahead of the first result of a process: no library that it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest
from zoo import rnn_of

from stepnet.onnx import save

RUN = """
import sys
from stepnet.cli.commands import app
app(["run", *sys.argv[1:]], standalone_mode=False)
assert not {"pandas", "pyarrow.compute", "torch"} & sys.modules.keys()
"""


def run(script: str, *arguments: str) -> None:
    """Runs a script in a new process."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_run_over_files_needs_no_pandas(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = pyarrow.array(
        [[[1.0, 2.0, 3.0]] * 4, [[4.0, 5.0, 6.0]]], pyarrow.list_(pyarrow.list_(pyarrow.float32()))
    )
    parquet.write_table(pyarrow.table({"x": rows}), tmp_path / "x.parquet")
    save(rnn_of("gru", 3, 4, seed=0), str(tmp_path / "m.onnx"))
    run(RUN, *(str(tmp_path / name) for name in ("m.onnx", "x.parquet")), "-o", str(tmp_path / "y.parquet"))
    assert parquet.read_table(tmp_path / "y.parquet").num_rows == 2


ONNX = """
import sys
import numpy as np
import stepnet as sn
x = np.ones((2, 5, 3), "float32")
model = sn.load(sys.argv[1])
assert not {"onnx", "importlib.metadata"} & sys.modules.keys()
import onnx
from stepnet.onnx import Backend
onnx.checker.check_model(sys.argv[1])
assert len(Backend.prepare(onnx.load(sys.argv[1])).run([x])) == 2
sn.load(sys.argv[1], axes={"x": "NT"})
"""


def test_a_file_is_read_by_the_messages_of_onnx_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPNET_CACHE", "0")
    save(rnn_of("gru", 3, 4, seed=0), str(tmp_path / "m.onnx"))
    run(ONNX, str(tmp_path / "m.onnx"))


REFUSED = """
import sys
import stepnet as sn
class Refusing:
    def find_spec(self, name, *others):
        if name == "onnx":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refusing())
try:
    sn.load(sys.argv[1])
except sn.StepnetError as error:
    assert "needs onnx" in str(error)
"""


def test_a_file_says_that_it_needs_onnx_where_a_finder_refuses_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPNET_CACHE", "0")
    save(rnn_of("gru", 3, 4, seed=0), str(tmp_path / "m.onnx"))
    run(REFUSED, str(tmp_path / "m.onnx"))
