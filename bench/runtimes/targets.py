"""The promises on stepnet's speed, and whether a run kept them."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.runtimes.cases import Case
from bench.runtimes.groups import TARGET_SIZES
from bench.runtimes.results import Compared
from bench.runtimes.runner import ONE_THREAD
from stepnet.errors import StepnetError


@dataclass(frozen=True)
class Target:
    """A promise with the value found (None: not measured); the bound is the least or the most allowed."""

    name: str
    found: float | None
    bound: float
    least: bool
    unit: str

    @property
    def kept(self) -> bool | None:
        """True if the value is within the bound; None if nothing was measured."""
        if self.found is None:
            return None
        return self.found >= self.bound if self.least else self.found <= self.bound


@dataclass(frozen=True)
class Promise:
    """A promise: the least ratio of the fastest of some peers to stepnet, in the cases that `holds` chooses.
    `needs`: whether all of these peers must have been timed.
    """

    name: str
    peers: tuple[str, ...]
    least: float
    holds: Callable[[Case], bool]
    needs: bool = False


def of_size(cell: str, *sizes: tuple[int, int]) -> Callable[[Case], bool]:
    """Returns a test for dense forward cases of a cell at these sizes, batch by hidden, 100 steps."""

    def holds(case: Case) -> bool:
        """Returns True for a dense forward case of the cell at one of the sizes."""
        size = case.batch, case.hidden
        return size in sizes and case == Case(cell, size[0], 100, size[1], size[1])

    return holds


def streams(cell: str) -> Callable[[Case], bool]:
    """Returns a test for cases that are streams of a cell, of one row and up to 256 units."""
    return lambda case: (case.mode, case.cell, case.batch) == ("stream", cell, 1) and case.hidden <= 256


SMALL = tuple((batch, hidden) for batch in (1, 2, 4) for hidden in (64, 128))
PROMISES = (
    Promise("the prototype", ("prototype",), 1 / 1.15, of_size("gru", *TARGET_SIZES)),
    Promise("torch", ("torch",), 3.0, of_size("gru", (16, 256))),
    Promise("torch", ("torch",), 2.1, of_size("gru", (64, 256))),
    Promise(
        "torch, packed or padded",
        ("torch", "torch packed"),
        1.8,
        lambda case: (
            case.lengths == "vowels" and (case.cell, case.hidden, case.mode) == ("gru", 256, "forward")
        ),
        needs=True,
    ),
    Promise("onnxruntime", ("onnxruntime",), 1.0, of_size("gru", *SMALL)),
    Promise("onnxruntime", ("onnxruntime",), 0.85, of_size("lstm", *SMALL)),
    Promise("onnxruntime", ("onnxruntime", "onnxruntime bound"), 2.0, streams("gru")),
    Promise(
        ONE_THREAD,
        (ONE_THREAD,),
        1 / 1.2,
        lambda case: case.busy > 0 and case.batch == 1 and case.cell == "gru",
    ),
    Promise(
        ONE_THREAD,
        (ONE_THREAD,),
        1.6,
        lambda case: (
            not case.busy and case.layers * case.directions == 2 and (case.batch, case.hidden) == (1, 512)
        ),
    ),
)
SECONDS = {"importing stepnet": 0.3, "cold compile of a GRU": 0.5}


def targets(results: Iterable[Compared], seconds: Mapping[str, float]) -> list[Target]:
    """Returns the promises that results are about, with values; seconds: of importing and compiling."""
    found: list[Target] = []
    for result in results:
        for promise in PROMISES:
            ratios = [result.ratio(name) for name in promise.peers]
            known = [ratio for ratio in ratios if ratio is not None]
            if not promise.holds(result.case) or not known:
                continue
            ratio = min(known) if len(known) == len(ratios) or not promise.needs else None
            title = f"{result.case}: {promise.name}, times our time"
            found.append(Target(title, ratio, promise.least, True, "x"))
    return found + [
        Target(name, seconds.get(name), bound, False, "s") for name, bound in SECONDS.items() if seconds
    ]


IMPORT = """
import time
begin = time.perf_counter()
import stepnet
print(time.perf_counter() - begin)
"""

COMPILE = """
import sys, time
import numpy as np
import stepnet as sn

def gru(x, h, p):
    H = h.shape[-1]
    a, u = x @ p["W"] + p["b"], h @ p["R"] + p["d"]
    r, z = sn.sigmoid(a[:, :H] + u[:, :H]), sn.sigmoid(a[:, H:2*H] + u[:, H:2*H])
    n = np.tanh(a[:, 2*H:] + r * u[:, 2*H:])
    h = n + z * (h - n)
    return h, h

shapes = {"W": (256, 768), "R": (256, 768), "b": (768,), "d": (768,)}
params = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
x = np.zeros((1, 1, 256), np.float32)
begin = time.perf_counter()
sn.RNN(gru, params, memory=256)(x, engine=sys.argv[1])
print(time.perf_counter() - begin)
"""


def facts(engine: str, rounds: int) -> dict[str, float]:
    """Times importing and a first call, in new processes without a cache; returns median seconds."""
    programs = {"importing stepnet": IMPORT, "cold compile of a GRU": COMPILE}
    return {
        name: median(seconds(program, [engine]) for _ in range(rounds)) for name, program in programs.items()
    }


def seconds(program: str, arguments: Sequence[str]) -> float:
    """Runs a program with an empty cache folder; returns the number that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "STEPNET_CACHE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    if done.returncode:
        raise StepnetError(f"a program to be timed failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)
