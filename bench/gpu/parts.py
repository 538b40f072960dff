"""The parts of the report on a GPU, each run in a process of its own with a limit, the most valuable first.

    part -> rows (name, value)    written to the file of results as they come

A wrong address ends the CUDA context of its process, and blocks that wait for ever end at the part's limit:
other parts do not notice, and a part that was stopped keeps the rows that it had.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.gpu.place import EMULATED, GPU, Place, Rows
from bench.runtimes import saved

QUERY = "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
SHORTEST = 5.0
"""The seconds that must be left for a part to begin."""
LAST = 400
"""The characters that are kept of what a process said."""


@dataclass(frozen=True)
class Part:
    """A part of the measurements: a function of a module of this folder, which yields names with values.

    seconds: its limit. tool: a command that runs it and watches it.
    """

    module: str
    function: str
    seconds: int
    tool: tuple[str, ...] = ()

    def rows(self, place: Place) -> Rows:
        """Runs the part in this process."""
        function: Callable[[Place], Rows] = getattr(import_module(f"bench.gpu.{self.module}"), self.function)
        return function(place)

    def command(self, name: str, engine: str, result: Path) -> list[str]:
        """Returns the command that runs it in a process, which writes the rows to a file."""
        arguments = ["part", name, "--result", str(result), *(["--emulated"] if engine == EMULATED else [])]
        return [*self.tool, sys.executable, "-m", "bench.gpu", *arguments]

    def read(self, result: Path) -> dict[str, Any]:
        """Reads the rows from the file that its process wrote."""
        return json.loads(result.read_text("utf-8"))

    def keep(self, result: Path, report: Path) -> None:
        """Keeps what else its process wrote, beside the file of the report: nothing."""


@dataclass(frozen=True)
class Beside(Part):
    """A part that times stepnet beside other runtimes: some cases of the group gpu of `python -m bench`.

    arguments: those that choose the cases.
    """

    arguments: tuple[str, ...] = ()

    def command(self, name: str, engine: str, result: Path) -> list[str]:
        """Returns the command of the benchmark, which ends by itself before the limit."""
        command = [
            sys.executable,
            "-m",
            "bench",
            "--save",
            str(result),
            "--limit",
            str(int(self.seconds * 0.7)),
        ]
        if engine != EMULATED:
            return [*command, "--group", "gpu", *self.arguments, "--rounds", "3"]
        sizes = ["--cell", "gru", "--time", "4", "--batch", "2", "--hidden", "16", "--ragged", "dense"]
        return [
            *command,
            "--device",
            EMULATED,
            *sizes,
            "--peers",
            "torch,torch loop",
            "--quick",
            "--rounds",
            "1",
        ]

    def read(self, result: Path) -> dict[str, Any]:
        """Reads a row for each case, with the medians in seconds."""
        return {
            str(each.case): {
                **{name: timing.seconds for name, timing in each.timings.items()},
                "ratio": each.ratio(each.best),
                "failures": each.failures,
            }
            for each in saved.load(result).results
        }

    def keep(self, result: Path, report: Path) -> None:
        """Merges the whole run into the file of the benchmark beside that of the report."""
        for run in saved.load(result).runs:
            saved.save(run, report.with_name(f"{report.stem}-beside.json"))


def sanitizer(tool: str) -> Part:
    """Returns the part in which a tool of compute-sanitizer watches a kernel of each kind."""
    return Part("sanitized", "sanitized", 90, ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9"))


PARTS = {
    "selfcheck": Part("selfcheck", "selfcheck", 60),
    "kernels": Part("sanitized", "sanitized", 30),
    "engine": Part("engine_times", "engine_times", 90),
    "beside": Beside("", "", 180, (), ("--batch", "16", "--hidden", "256")),
    "schedules": Part("schedules", "schedule_times", 120),
    "memcheck": sanitizer("memcheck"),
    "racecheck": sanitizer("racecheck"),
    "synccheck": sanitizer("synccheck"),
    "beside, other widths": Beside("", "", 150, (), ("--batch", "16", "--hidden", "64,512,1024")),
    "exchanges": Part("exchanges", "exchanges", 45),
    "torch checks": Part("selfcheck_torch", "torch_checks", 45),
    "torch times": Part("selfcheck_torch", "torch_times", 60),
    "arithmetic": Part("arithmetic", "arithmetic", 30),
    "products": Part("memory_rates", "product_rates", 40),
    "memory": Part("memory_rates", "memory_rates", 30),
    "cudnn": Part("peers", "module_times", 45),
    "gradients of products": Part("memory_rates", "contract_rates", 30),
    "tiles": Part("memory_rates", "tile_rates", 30),
    "without products": Part("schedules", "without_times", 30),
    "beside, other batches": Beside("", "", 240, (), ("--batch", "1,64")),
    "cudnn, large batches": Part("peers", "large_batch_times", 45),
}
"""All parts, in their order: a GPU may be there for minutes."""


def run_part(name: str, place: Place, result: Path | None = None) -> bool:
    """Runs one part in this process; prints its rows, and writes them to a file of JSON after every one.
    Returns whether none is wrong.
    """
    found = dict[str, Any]()
    for key, value in PARTS[name].rows(place):
        found[key] = value
        print(f"{key}: {value}", flush=True)
        if result is not None:
            result.write_text(json.dumps(found))
    return not wrong_rows(found)


def wrong_rows(rows: dict[str, Any]) -> list[str]:
    """Lists the names of rows that say that something is not right."""
    return [name for name, row in rows.items() if isinstance(row, dict) and row.get("right") is False]


def in_process(name: str, engine: str, limit: float, report: Path) -> dict[str, Any]:
    """Runs one part in a process of its own; returns its rows, and why it ended if not well. report: the file
    of all results, beside which more may be kept.
    """
    part = PARTS[name]
    if part.tool and shutil.which(part.tool[0]) is None:
        return {"seconds": 0.0, "ended": f"{part.tool[0]} is not here", "rows": {}}
    with tempfile.TemporaryDirectory() as own:
        result, said = Path(own, "result.json"), Path(own, "said.txt")
        begun = time.monotonic()
        with said.open("w") as file:
            process = subprocess.Popen(
                part.command(name, engine, result), stdout=file, stderr=file, start_new_session=True
            )
            try:
                code = process.wait(min(limit, part.seconds))
                ended = "" if code == 0 else f"it ended with {code}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started itself
                process.wait()
                ended = f"it was stopped after {min(limit, part.seconds):.0f} seconds"
        rows = dict[str, Any]()
        if result.exists():
            rows = part.read(result)
            part.keep(result, report)
        last = said.read_text(errors="replace").strip()[-LAST:]
    facts = {"seconds": round(time.monotonic() - begun, 1), "ended": ended, "clocks": clocks()}
    return {**facts, "said": last if ended or part.tool else "", "rows": rows}


def clocks() -> str:
    """Returns the clocks and the temperature of the GPU, as its own tool tells them."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError as error:
        return f"unknown: {error}"


def report(path: Path, names: list[str], seconds: float, engine: str = GPU) -> bool:
    """Runs parts, and writes all results to a file of JSON after each. Returns whether all ended well.

    seconds: for all of them; parts that do not begin in time say so.
    """
    place = Place(engine)  # or it says why there is no GPU
    end, facts = time.monotonic() + seconds, place.device.facts
    told: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": facts.name,
        "clocks_fields": QUERY,
        "clocks": clocks(),
        "parts": {},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        left = end - time.monotonic()
        not_begun = {"seconds": 0.0, "ended": "no time was left", "rows": {}}
        found = in_process(name, engine, left, path) if left > SHORTEST else not_begun
        told["parts"][name] = {**found, "wrong": wrong_rows(found["rows"])}
        path.write_text(json.dumps(told, indent=1))
        print(summary(name, told["parts"][name]), flush=True)
    return not any(part["ended"] or part["wrong"] for part in told["parts"].values())


def summary(name: str, part: dict[str, Any]) -> str:
    """Returns a line on a part: its rows, its time, and what is wrong."""
    wrong = f"; WRONG: {', '.join(part['wrong'])}" if part["wrong"] else ""
    ended = f"; {part['ended']}" if part["ended"] else ""
    return f"{name}: {len(part['rows'])} rows in {part['seconds']} s{ended}{wrong}"
