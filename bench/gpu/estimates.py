"""Estimates of the time of a step on an H100 beside what was measured there, and the time to compile a loop.

    python -m bench.gpu estimates     cells beside cuDNN's layers of the same width, per operation
    python -m bench.gpu compiling     processor time until the PTX of a loop is there

Neither needs a GPU. What was measured is in `bench/saved/`: whole calls of the target's first version, and
cuDNN in float32, the faster of with and without TF32.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.gpu.cells import recurrence
from stepnet.compiler.targets.cuda import CudaKernel, CudaMemory, EmulatedDevice

SAVED = Path(__file__).parents[1] / "saved"
MATRICES = {"minimal_gated_unit": 2, "slstm": 4, "layer_normed": 3, "gru": 3, "lstm": 4}
"""The square matrices of a step, each of which takes two operations for each of its numbers."""
LIKE = {"gru": "gru", "lstm": "lstm"}
"""The layer of cuDNN that a cell is compared with: its own; the LSTM for cells that cuDNN lacks."""
WIDTHS, BATCHES = (64, 128, 256, 512, 1024), (16, 64)
COLUMNS = "estimate", "measured", "cuDNN", "per flop"
COLD = """
import sys, time
import numpy as np  # not timed
from bench.gpu.cells import inputs_of, recurrence
from bench.gpu.idle import begin
import stepnet.cells.gated
begin(compiled=False)
cell, units, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rnn = recurrence(cell, units, known=what == "ptx")
x = np.zeros((16, 100, inputs_of(cell, units)), "f4")
for _ in range(2):
    begun = time.process_time()
    if what == "ptx":
        import stepnet.cuda
        stepnet.cuda.ptx(rnn)
    else:
        rnn(x, engine="cuda")
    print(time.process_time() - begun)
print("llvmlite.binding" in sys.modules)
"""
"""The work of a new process, done twice: the PTX of a cell, or its call with a driver that does nothing."""
COMPILED = ("gru", 256), ("lstm", 1024), ("minimal_gated_unit", 512), ("slstm", 256), ("layer_normed", 256)


@cache
def cudnn() -> dict[str, dict[str, float]]:
    """Returns the microseconds of a step of cuDNN's layers, by "lstm 64, float32" and the sequences."""
    stages: Any = json.loads((SAVED / "gpu-h100.json").read_text("utf-8"))["stages"]
    return stages["modules"]["rows"]


@cache
def loops() -> dict[str, dict[str, Any]]:
    """Returns what was measured of the target's loops and calls, by "gru-64 x 16"."""
    result: Any = json.loads((SAVED / "gpu-target-h100.json").read_text("utf-8"))
    return {row["case"]: row for row in result["loops"]}


@cache
def kernel_of(cell: str, units: int) -> CudaKernel:
    """Returns the kernel of a cell, for the device that is assumed where there is none."""
    (plan,) = recurrence(cell, units).program.schedule_for("cuda-emulated").plans
    return CudaKernel(plan, CudaMemory(EmulatedDevice()))


def of_cudnn(cell: str, units: int, rows: int) -> float:
    """Returns the microseconds of a step of cuDNN's layer beside a cell, in float32."""
    name = f"{LIKE.get(cell, 'lstm')} {units}, float32"
    return min(cudnn()[each][str(rows)] for each in (name, f"{name}, TF32 allowed"))


def per_flop(cell: str, time: float, units: int, rows: int) -> float:
    """Returns the time of a floating-point operation of a cell, by that of cuDNN's layer beside it."""
    other = MATRICES[LIKE.get(cell, "lstm")]
    return (time / MATRICES[cell]) / (of_cudnn(cell, units, rows) / other)


def table(cells: Sequence[str] = (*MATRICES,), widths: Sequence[int] = WIDTHS) -> Iterator[str]:
    """Yields the lines of the table of estimates: for 16 and for 64 sequences the estimate of a step, that of
    a whole call as it was measured, cuDNN's layer, and the time of an operation by that of cuDNN's.
    """
    yield "| " + " | ".join(["", *(f"{name}, {count}" for count in BATCHES for name in COLUMNS)]) + " |"
    yield "| " + " | ".join(["---", *["---:"] * (len(BATCHES) * len(COLUMNS))]) + " |"
    for cell in cells:
        for units in widths:
            row = [f"{cell.replace('_', ' ')} {units}"]
            for count in BATCHES:
                time, known = kernel_of(cell, units).loop(count).microseconds, measured(cell, units, count)
                row += [f"{time:.2f}", known, f"{of_cudnn(cell, units, count):.2f}"]
                row.append(f"{per_flop(cell, time, units, count):.2f}")
            yield "| " + " | ".join(row) + " |"


def measured(cell: str, units: int, rows: int) -> str:
    """Returns the microseconds of a step of a whole call as it was measured; "" if it was not."""
    found = loops().get(f"{cell}-{units} x {rows}")
    return "" if found is None else f"{found['call_us']:.2f}"


@dataclass(frozen=True)
class CompileTimes:
    """Processor seconds of new processes, besides those of importing stepnet and tracing the cell.

    cold, warm: until the PTX of the kernels is there: compiled, and from the cache on disk. again: the second
    time in a process. call: a first call from the cache, by a driver that does nothing.
    loads_llvm: whether the processes that found all in the cache imported LLVM.
    """

    cold: float
    warm: float
    again: float
    call: float
    loads_llvm: bool


def compile_times(
    cases: Sequence[tuple[str, int]] = COMPILED, rounds: int = 5
) -> Iterator[tuple[str, CompileTimes]]:
    """Yields a name and the times of each cell. Those from the cache are the least of some rounds."""
    for cell, units in cases:
        with tempfile.TemporaryDirectory() as folder:

            def process(what: str, environment: dict[str, str], *arguments: str) -> list[float]:
                """Returns what a new process prints."""
                command = [sys.executable, "-c", COLD, *arguments, what]
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                *times, loads = done.stdout.split()
                return [*map(float, times), float(loads == "True")]

            given = {**os.environ, "STEPNET_CACHE": "1", "STEPNET_CACHE_DIR": folder}, cell, str(units)
            (cold, *_), _ = process("ptx", *given), process("call", *given)
            ptx, call = ([process(what, *given) for _ in range(rounds)] for what in ("ptx", "call"))
            least = min(one[0] for one in ptx), min(one[1] for one in ptx), min(one[0] for one in call)
            yield (
                f"{cell.replace('_', ' ')} {units}",
                CompileTimes(cold, *least, any(o[2] for o in (*ptx, *call))),
            )
