"""A short hunt for files that a reader breaks on; `make test-fuzz` is the long one."""

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("keras")
pytest.importorskip("msgpack")

COUNT, SEED = 300, 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits of memory are Linux's")
def test_spoilt_files_are_refused_or_read(tmp_path: Path):
    from hunt import hunt

    keep = Path(os.environ.get("MUTANTS", tmp_path))
    failures = hunt(COUNT, SEED, keep, workers=2)
    assert not failures, "\n\n".join(map(str, failures))
