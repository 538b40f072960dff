"""What stepnet promises of its speed, and whether a run kept it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.runtimes.cases import Case
from bench.runtimes.results import Result, Run
from stepnet.errors import StepnetError


@dataclass(frozen=True)
class Target:
    """One promise: what was found (None: not measured), and the bound to be over (`least`) or under."""

    name: str
    found: float | None
    bound: float
    least: bool
    unit: str

    @property
    def kept(self) -> bool | None:
        """Whether the bound holds; None where nothing was measured."""
        if self.found is None:
            return None
        return self.found >= self.bound if self.least else self.found <= self.bound


# Of the prototype's time; and how many times as fast as torch, by batch and hidden.
SHARE_OF_PROTOTYPE = 1.15
TIMES_TORCH = {(16, 256): 3.0, (64, 256): 2.1}
TIMES_TORCH_VOWELS = 1.8
SECONDS = {"importing stepnet": 0.3, "cold compile of a GRU": 0.5}


def targets(run: Run) -> list[Target]:
    """Every promise, with what the run found of it."""
    found: list[Target] = []
    for result in run.results:
        case = result.case
        if "prototype" in result.timings:
            share = result.ratio("prototype")
            inverse = None if share is None else 1 / share
            found.append(Target(f"{case}, time of the prototype's", inverse, SHARE_OF_PROTOTYPE, False, "x"))
        if times := TIMES_TORCH.get((case.batch, case.hidden)) if promised(case) else None:
            found.append(Target(f"{case}, torch's time of ours", result.ratio("torch"), times, True, "x"))
        if case.data == "vowels":
            name = f"{case}, torch's time of ours, packed or padded"
            found.append(Target(name, better_of_torch(result), TIMES_TORCH_VOWELS, True, "x"))
    for name, bound in SECONDS.items():
        found.append(Target(name, run.facts.get(name), bound, False, "s"))
    return found


def promised(case: Case) -> bool:
    """Whether it is a case of the sizes that something is promised for."""
    return case == Case("gru", case.batch, 100, case.hidden, case.hidden)


def better_of_torch(result: Result) -> float | None:
    """How many times as long as ours the better of torch's two forms takes; None unless both were timed."""
    ratios = [result.ratio(name) for name in ("torch", "torch packed")]
    known = [ratio for ratio in ratios if ratio is not None]
    return min(known) if len(known) == len(ratios) else None


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
    """The seconds of importing and of a first call, each in new processes with nothing compiled before."""
    programs = {"importing stepnet": IMPORT, "cold compile of a GRU": COMPILE}
    return {
        name: median(seconds(program, [engine]) for _ in range(rounds)) for name, program in programs.items()
    }


def seconds(program: str, arguments: Sequence[str]) -> float:
    """What a program prints, run with a cache folder that is empty."""
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
