"""Runs all measurements on the machine with the GPU, each stage in a process of its own.

A wrong address ends the CUDA context of its process, and blocks that wait for ever end at the stage's limit:
other stages do not notice. Results are written after every number, so that a stage that was stopped keeps
what it had.
"""

import json
import os
import platform
import shutil
import signal
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

EXCHANGES = ("block", "grid", "tagged", "cluster")
Rows = Iterator[tuple[str, Any]]
QUERY = "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu"


@dataclass(frozen=True)
class Stage:
    """A part of the measurements: a function of a module, which yields names with values.

    seconds: its limit. tool: a command that runs it and watches it. arguments: what the function takes
        besides the bundle.
    """

    module: str
    function: str
    seconds: int
    tool: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def rows(self, bundle: Bundle) -> Rows:
        """Runs the stage in this process."""
        function: Callable[..., Rows] = getattr(import_module(f"bench.gpu.{self.module}"), self.function)
        return function(bundle, *self.arguments)


STAGES = {
    **{f"checks, {each}": Stage("checks", "checks", 40, arguments=(each,)) for each in EXCHANGES},
    "exchanges": Stage("exchanges", "exchanges", 45),
    "arithmetic": Stage("arithmetic", "arithmetic", 30),
    "loading": Stage("loading", "loading", 45),
    "loading again": Stage("loading", "loading", 30),
    **{f"steps, {each}": Stage("steps", "steps", 60, arguments=(each,)) for each in EXCHANGES},
    "large batches": Stage("steps", "large_batches", 45),
    "modules": Stage("peers", "modules", 60),
    "modules, large batches": Stage("peers", "large_batches", 45),
    "packed": Stage("peers", "packed", 30),
    "products": Stage("peers", "products", 30),
    "loops": Stage("peers", "loops", 60),
    "compiled": Stage("peers", "compiled", 75),
    "memcheck": Stage("checks", "few_checks", 45, ("compute-sanitizer", "--tool", "memcheck")),
    "racecheck": Stage("checks", "few_checks", 45, ("compute-sanitizer", "--tool", "racecheck")),
    "racecheck without a barrier": Stage(
        "checks", "few_checks", 45, ("compute-sanitizer", "--tool", "racecheck"), ("barrier",)
    ),
}


def run_stage(name: str, folder: Path, result: Path) -> None:
    """Runs one stage, and writes what it yields to a file of JSON, after every value."""
    found = dict[str, Any]()
    for key, value in STAGES[name].rows(Bundle.read(folder)):
        found[key] = value
        result.write_text(json.dumps(found))


def in_process(name: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Runs one stage in a process of its own; returns its results, and why it ended if not well."""
    stage = STAGES[name]
    if stage.tool and shutil.which(stage.tool[0]) is None:
        return {"seconds": 0.0, "ended": f"{stage.tool[0]} is not here", "rows": {}}
    with tempfile.TemporaryDirectory() as own:
        result = Path(own, "result.json")
        command = [*stage.tool, sys.executable, "-m", "bench.gpu", "stage", name, str(folder), str(result)]
        begun = time.monotonic()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        try:
            said, errors = process.communicate(timeout=stage.seconds)
            ended = (
                ""
                if process.returncode == 0
                else f"it ended with {process.returncode}: {errors.strip()[-400:]}"
            )
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started itself
            said, _ = process.communicate()
            ended = f"it was stopped after {stage.seconds} seconds"
        rows = json.loads(result.read_text()) if result.exists() else {}
    facts = {"seconds": round(time.monotonic() - begun, 1), "ended": ended, "clocks": clocks()}
    return {**facts, "said": said.strip()[-400:], "rows": rows}


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
            print(
                f"{name}: {len(found['rows'])} rows in {found['seconds']} s {found['ended'][-200:]}",
                flush=True,
            )
