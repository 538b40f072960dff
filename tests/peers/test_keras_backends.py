"""`stepnet.keras` on Keras' other backends, each in the environment of its framework: `make test-peers`."""

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

import stepnet
from tests.peers.environments import HERE, python

SOURCE = Path(stepnet.__file__).parents[1]
BACKENDS = {"tensorflow": ".peers/tensorflow", "jax": ".peers/jax"}
NEEDED = ("keras", "h5py", "llvmlite", "jinja2", "safetensors", "typer", "pytest")
CHECKS = re.findall(r"^@check\ndef (\w+)", (HERE / "keras_backend.py").read_text(encoding="utf-8"), re.M)
SUITE = 79
"""The number of tests of recurrent layers of Keras 3.15. Some are skipped: they are for other backends."""

PLUGIN = """
import stepnet.keras

def pytest_configure(config):
    stepnet.keras.accelerate()

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"fast and slow: {tuple(stepnet.keras.counters())}")
"""


def interpreter(backend: str) -> Path:
    """The Python that runs a backend; skips where something is missing."""
    path = python(BACKENDS[backend])
    if not path.exists():
        pytest.skip(f"{BACKENDS[backend]} is missing: make peers")
    looks = f"from importlib.util import find_spec as f; print(*[n for n in {NEEDED} if not f(n)])"
    missing = subprocess.run([path, "-c", looks], capture_output=True, text=True, check=True).stdout.strip()
    if missing:
        pytest.skip(f"{BACKENDS[backend]} lacks {missing}: make peers")
    return path


def environment(backend: str, *paths: Path) -> dict[str, str]:
    """The variables of a process on a backend."""
    places = os.pathsep.join(map(str, (SOURCE, *paths)))
    return {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": places, "TF_CPP_MIN_LOG_LEVEL": "3"}


@cache
def said(path: Path, backend: str, out: Path) -> dict[str, str]:
    """The message of each check: empty where it holds. They run in one process."""
    done = subprocess.run(
        [path, "-W", "ignore", HERE / "keras_backend.py", out],
        capture_output=True,
        text=True,
        env=environment(backend),
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_on_a_backend(backend: str, check: str, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.getbasetemp() / f"{backend}.json"
    assert not said(interpreter(backend), backend, out)[check]


@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_own_tests(backend: str, tmp_path: Path):
    path = interpreter(backend)
    (tmp_path / "accelerated.py").write_text(PLUGIN, encoding="utf-8")
    (tmp_path / "none.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [path, "-m", "pytest", "-q", "-p", "accelerated", "-p", "no:cacheprovider", "-W", "ignore"]
    command += ["-c", tmp_path / "none.ini", "--rootdir", tmp_path, "--pyargs", "keras.src.layers.rnn"]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(backend, tmp_path),
        timeout=1200,
        check=False,
    )
    counted = {name: int(count) for count, name in re.findall(r"(\d+) (passed|skipped)", run.stdout)}
    assert sum(counted.values()) == SUITE, run.stdout[-3000:]
    assert counted["passed"] > 70
    counts = re.search(r"fast and slow: \((\d+), (\d+)\)", run.stdout)
    assert counts is not None
    assert int(counts[1]) > 100
    print(backend, counts[0])
