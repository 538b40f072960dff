"""`stepnet.arrow` in Spark's workers: the example, in the environment of pyspark: `make test-peers`."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import stepnet
from stepnet import arrow, cells
from tests.peers.environments import ROOT, python

FILES, ROWS, IN, H = 4, 200, 2, 3


@pytest.fixture
def spark() -> Path:
    """The interpreter that has pyspark; skips where it or Java is missing."""
    path = python(".peers/spark")
    if not path.exists():
        pytest.skip(".peers/spark is missing: make peers")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Java is missing, which Spark runs on: install 17 or later")
    return path


def table(file: int) -> Any:
    """Some rows, numbered through all files: sequences of any length, and nulls."""
    random = np.random.default_rng(file)
    rows = [random.standard_normal((size, IN)).tolist() for size in random.integers(0, 9, ROWS)]
    frames = pa.array([None if number % 7 == 3 else row for number, row in enumerate(rows)])
    kind = pa.list_(pa.list_(pa.float32()))
    return pa.table({"id": np.arange(ROWS) + file * ROWS, "frames": frames.cast(kind)})


def test_a_file_is_run_by_two_workers_of_spark_to_the_same_bits(spark: Path, tmp_path: Path):
    source, target = tmp_path / "calls", tmp_path / "scores"
    source.mkdir()
    for file in range(FILES):
        parquet.write_table(table(file), source / f"{file}.parquet")
    done = subprocess.run(
        [spark, ROOT / "examples" / "spark_predict.py", source, target, "--master", "local[2]"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(stepnet.__file__).parents[1]), "NO_COLOR": "1"},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parts = [part for part in sorted(target.glob("*.parquet")) if parquet.read_metadata(part).num_rows]
    assert len(parts) == 2, "each worker writes a part"
    found = pa.concat_tables(map(parquet.read_table, parts)).sort_by("id")
    gru = cells.rnn("gru", cells.CELLS["gru"].parameters(IN, H))
    expected = arrow.predict(pa.concat_tables(map(table, range(FILES))), gru).read_all()
    assert found.cast(expected.schema).combine_chunks().equals(expected.combine_chunks())
