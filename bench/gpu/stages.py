"""Runs all measurements on the machine with the GPU, each stage in a process of its own.

A wrong address ends the CUDA context of its process, and blocks that wait for ever end at the stage's limit: other
stages do not notice. Results are written after every number, so that a stage that was stopped keeps what it had.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.gpu.bundle import Bundle

Rows = Iterator[tuple[str, Any]]
QUERY = "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu"


@dataclass(frozen=True)
class Stage:
    """A part of the measurements: a function of a module, which yields names with values.

    seconds: its limit.
    """

    module: str
    function: str
    seconds: int

    def rows(self, bundle: Bundle) -> Rows:
        """Runs the stage in this process."""
        function: Callable[[Bundle], Rows] = getattr(import_module(f"bench.gpu.{self.module}"), self.function)
        return function(bundle)


STAGES = {
    "checks": Stage("checks", "checks", 60),
    "exchanges": Stage("exchanges", "exchanges", 45),
    "arithmetic": Stage("arithmetic", "arithmetic", 30),
    "loading": Stage("loading", "loading", 45),
    "loading again": Stage("loading", "loading", 30),
    "steps": Stage("steps", "steps", 90),
    "modules": Stage("peers", "modules", 60),
    "packed": Stage("peers", "packed", 30),
    "products": Stage("peers", "products", 30),
    "loops": Stage("peers", "loops", 60),
    "compiled": Stage("peers", "compiled", 75),
}


def run_stage(name: str, folder: Path, result: Path) -> None:
    """Runs one stage, and writes what it yields to a file of JSON, after every value."""
    found = dict[str, Any]()
    for key, value in STAGES[name].rows(Bundle.read(folder)):
        found[key] = value
        result.write_text(json.dumps(found))


def in_process(name: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Runs one stage in a process of its own. Returns its results, and why it ended if it did not end well."""
    with tempfile.TemporaryDirectory() as own:
        result = Path(own, "result.json")
        command = [sys.executable, "-m", "bench.gpu", "stage", name, str(folder), str(result)]
        begun = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            _, errors = process.communicate(timeout=STAGES[name].seconds)
            ended = "" if process.returncode == 0 else f"it ended with {process.returncode}: {errors.strip()[-400:]}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            ended = f"it was stopped after {STAGES[name].seconds} seconds"
        rows = json.loads(result.read_text()) if result.exists() else {}
        return {"seconds": round(time.monotonic() - begun, 1), "ended": ended, "clocks": clocks(), "rows": rows}


def clocks() -> str:
    """Returns the clocks and the temperature of the GPU, as its own tool tells them."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError as error:
        return f"unknown: {error}"


def measure(folder: Path, result: Path, names: list[str]) -> None:
    """Runs stages, and writes all results to a file of JSON, after every stage."""
    told: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "clocks_fields": QUERY,
        "clocks": clocks(),
        "python": platform.python_version(),
        "stages": {},
    }
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "CUDA_CACHE_PATH": cache, "PYTHONUNBUFFERED": "1"}
        for name in names:
            told["stages"][name] = found = in_process(name, folder, environment)
            result.write_text(json.dumps(told, indent=1))
            print(f"{name}: {len(found['rows'])} rows in {found['seconds']} s {found['ended'][-200:]}", flush=True)
