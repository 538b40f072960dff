"""Times whole processes from their start to a first result, beside onnxruntime.

    python bench/first.py
    python bench/first.py --rounds 21 --json
    python bench/first.py --only "gru file" --only "gru onnxruntime"

Each process imports NumPy and a library, makes a model of 64 inputs and 64 units, from an ONNX file or from
equations, and runs it on two sequences of 20 steps, float32. `layers` are two layers of LSTMs, in both
directions. They take turns, and a figure is the median.
Processor time is that of all threads. It and the time on the clock are taken from the start of the process to
its result, and `to the end` is the processor time of the whole process, which has only that for a command
line. `cold` is with an empty folder for compiled code, `modules` the number of Python modules in the end.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from pyarrow import parquet
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from stepnet.onnx import save

ROOT = Path(__file__).resolve().parents[1]
CELLS = ("gru", "lstm")
NUMPY = "import sys, time, numpy; x = numpy.zeros(({rows}, 20, 64), 'float32')"
END = "print(time.process_time(), time.monotonic(), len(sys.modules))"
EQUATIONS = """
import stepnet as sn
sn.cells.rnn({cell!r}, sn.cells.CELLS[{cell!r}].parameters(64, 64, seed=0))(x)
"""
FILE = "import stepnet as sn; sn.load({path!r})(x)"
SESSION = """
import onnxruntime
session = onnxruntime.InferenceSession({path!r}, providers=["CPUExecutionProvider"])
session.run(None, {{session.get_inputs()[0].name: x}})
"""


@dataclass(frozen=True)
class Way:
    """A way to a first result.

    code: what a process runs after NumPy is imported. is_cold: whether its cache is empty. arguments: of the
    command line of stepnet, instead of code.
    """

    code: str = ""
    is_cold: bool = False
    arguments: tuple[str, ...] = ()

    def command(self, rows: int = 2) -> list[str]:
        """Returns the command that starts a process."""
        if self.arguments:
            return [sys.executable, "-m", "stepnet", *self.arguments]
        return [sys.executable, "-c", "\n".join((NUMPY.format(rows=rows), self.code, END))]


@dataclass(frozen=True)
class Sample:
    """Measures of one process.

    processor, clock: the seconds to its result, of processors and on the clock. whole: those of processors
    to its end. modules: its Python modules; 0 for a command line.
    """

    processor: float
    clock: float
    whole: float
    modules: int


def ways(folder: Path) -> dict[str, Way]:
    """Writes the models and the inputs to a folder, and returns the ways to results of them by name."""
    rows = pa.array([np.zeros((20, 64), "float32").tolist()] * 2, pa.list_(pa.list_(pa.float32())))
    parquet.write_table(pa.table({"x": rows}), folder / "x.parquet")
    made = {"numpy alone": Way()}
    models: dict[str, sn.Model] = {cell: layer(cell) for cell in CELLS}
    models["layers"] = sn.Stack(
        [sn.Bidirectional(layer("lstm", n), layer("lstm", n, True)) for n in (64, 128)]
    )
    for name, model in models.items():
        path = str(folder / f"{name}.onnx")
        save(model, path)
        run = ("run", path, str(folder / "x.parquet"), "-o", str(folder / f"{name}.parquet"), "--force")
        made |= {
            f"{name} onnxruntime": Way(SESSION.format(path=path)),
            f"{name} file": Way(FILE.format(path=path)),
            f"{name} file cold": Way(FILE.format(path=path), is_cold=True),
            f"{name} command": Way(arguments=run),
        }
    for cell in CELLS:
        made |= {
            f"{cell} equations": Way(EQUATIONS.format(cell=cell)),
            f"{cell} equations cold": Way(EQUATIONS.format(cell=cell), is_cold=True),
        }
    return made


def layer(cell: str, inputs: int = 64, reverse: bool = False) -> sn.RNN:
    """Returns a layer of a cell, of 64 units."""
    return sn.cells.rnn(cell, sn.cells.CELLS[cell].parameters(inputs, 64, seed=0), reverse=reverse)


def sample(way: Way, folder: Path, number: int) -> Sample:
    """Runs one process, and returns what it took. number: of the round, for the name of an empty cache.

    Python's bytecode is kept, as it is where stepnet is installed, also if this process keeps none.
    """
    cache = folder / (f"cache {number}" if way.is_cold else "cache")
    environment = {**os.environ, "STEPNET_CACHE": "1", "STEPNET_CACHE_DIR": str(cache)}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.monotonic()
    process = subprocess.Popen(way.command(), stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    ended, whole = time.monotonic(), used.ru_utime + used.ru_stime
    if process.returncode:
        raise SystemExit(f"a process failed: {way}")
    if way.arguments:
        return Sample(whole, ended - begun, whole, 0)
    processor, clock, modules = text.split()
    return Sample(float(processor), float(clock) - begun, whole, int(modules))


def samples(rounds: int, only: list[str], console: Console) -> dict[str, list[Sample]]:
    """Runs all ways in turn so many times after one that is not counted; returns the samples by way."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        chosen = {name: way for name, way in ways(folder).items() if not only or name in only}
        taken = {name: list[Sample]() for name in chosen}
        for number in track(range(rounds + 1), "starting", console=console, transient=True):
            for name, way in chosen.items():
                taken[name].append(sample(way, folder, 1000 * number + list(chosen).index(name)))
    return {name: each[1:] for name, each in taken.items()}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many processes of each way are timed.")] = 9,
    only: Annotated[list[str] | None, typer.Option(help="Ways to time, by name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time processes to their first result, and print a table or JSON."""
    taken = samples(rounds, only or [], Console(stderr=True, quiet=as_json))
    figures = {
        name: {
            "processor": 1000 * median(one.processor for one in each),
            "clock": 1000 * median(one.clock for one in each),
            "whole": 1000 * median(one.whole for one in each),
            "modules": each[-1].modules,
        }
        for name, each in taken.items()
    }
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    table = Table(title="Processes to a first result: milliseconds")
    for title in ("way", "processor time", "on the clock", "to the end", "modules"):
        table.add_column(title, justify="left" if title == "way" else "right")
    for name, each in figures.items():
        times = [f"{each[kind]:.0f}" for kind in ("processor", "clock", "whole")]
        table.add_row(name, *times, str(each["modules"] or ""))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
