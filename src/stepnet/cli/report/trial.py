"""Tests an engine: compiles and runs a small recurrence, and compares it with the interpreter in float64.

It runs in a process of its own, because a broken library may end the process that calls it, and without the
cache on disk, so that code is compiled.
"""

import os
import signal
import subprocess
import sys

import numpy as np

from stepnet.compiler.targets import engine_named
from stepnet.errors import StepnetError
from stepnet.model.recurrence import RNN
from stepnet.ragged import Ragged

UNITS = 4
LENGTHS = (5, 0, 9)
MOST = 1e-5
"""The largest difference allowed: some hundred roundings of float32, of outputs up to 1."""
PATIENCE = 300
"""The seconds that a trial may take."""
START = "import sys; sys.path[:] = {path!r}; from stepnet.cli.report.trial import main; main({name!r})"
"""The code that the process runs, with the import path of this process: so it tests this stepnet."""

Array = np.ndarray


def try_engine(name: str) -> str | None:
    """Tests the engine of a name in a process of its own, for `stepnet doctor`.

    Returns why it does not run a small recurrence, or None if it does.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", START.format(path=sys.path, name=name)],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env={**os.environ, "STEPNET_CACHE": "0"},
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return f"a small recurrence took longer than {PATIENCE} seconds"
    if done.returncode:
        return describe_exit(done.returncode, done.stderr)
    return done.stdout.strip() or None


CRASHES = {
    0xC0000005: "an access violation",
    0xC000001D: "an illegal instruction",
    0xC00000FD: "a stack overflow",
}
"""Names of the codes with which Windows ends a process."""


def describe_exit(code: int, stderr: str) -> str:
    r"""Describes how the process that tests an engine ended early. code: its exit code.

    >>> describe_exit(-4, "")
    'a small recurrence ended its process by SIGILL'
    >>> describe_exit(1, "Traceback ...\nRuntimeError: expected type\n")
    'a small recurrence ended its process with code 1: RuntimeError: expected type'
    >>> describe_exit(0xC000001D, "")
    'a small recurrence ended its process by an illegal instruction (code 0xC000001D)'
    """
    if code in CRASHES:
        return f"a small recurrence ended its process by {CRASHES[code]} (code 0x{code:X})"
    if code < 0:
        return f"a small recurrence ended its process by {signal.Signals(-code).name}"
    last = stderr.strip().rpartition("\n")[2]
    return f"a small recurrence ended its process with code {code}{': ' * bool(last)}{last}"


def main(name: str) -> None:
    """Tests the engine of a name in this process, for `try_engine`; prints why it fails, or nothing."""
    try:
        reason = refusal(name)
    except (StepnetError, MemoryError) as error:
        reason = str(error)
    print(reason or "")


def refusal(name: str) -> str | None:
    """Returns why an engine refuses a small recurrence, or how far its results in float32 are off those of
    the interpreter in float64; None if it works.
    """
    reason = engine_named(name).refuse(recurrence(np.float32).program.schedule_for(name))
    if reason is not None:
        return reason
    random = np.random.default_rng(0)
    inputs = [random.normal(0, 1, (length, UNITS)) for length in LENGTHS]
    expected, results = (
        recurrence(dtype)(Ragged.from_list([sequence.astype(dtype) for sequence in inputs]), engine=engine)
        for dtype, engine in ((np.float64, "interpret"), (np.float32, name))
    )
    expected_values, values = (
        np.concatenate([outputs.values, final]) for outputs, final in (expected, results)
    )
    difference = float(np.abs(expected_values - values).max())
    if difference <= MOST:
        return None
    return f"the results of a small recurrence are {difference:.2g} off, and {MOST:g} is the most"


def recurrence(dtype: type[np.floating]) -> RNN:
    """Makes the small recurrence that tests an engine, a simple RNN with fixed weights of `dtype`."""
    random = np.random.default_rng(1)
    params = {name: random.normal(0, 0.5, (UNITS, UNITS)).astype(dtype) for name in ("W", "R")}
    return RNN(simple_step, params, memory=UNITS, inputs=UNITS)


def simple_step(x: Array, h: Array, params: dict[str, Array]) -> tuple[Array, Array]:
    """Computes a step of a simple RNN: returns (output, next memory), which are equal."""
    h = np.tanh(x @ params["W"] + h @ params["R"])
    return h, h
