"""Times the peers (runtimes) of a case in alternating turns, each checked first to compute its equations.

case --oracle--> right answers;  peer --prepare--> answers, compared;  rounds of turns --> Timing of each
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.runtimes.cases import Case
from bench.runtimes.machine import Peak, peak
from bench.runtimes.oracle import Answers, expected, wrong
from bench.runtimes.results import REFUSED, Result, Timing
from bench.runtimes.runner import OURS, Peer, Worker, WorkerError

Progress = Callable[[str], None]
# Folders that runtimes keep compiled code in: empty for each process of a "cold start".
CACHES = ("STEPNET_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")


@dataclass(frozen=True)
class Settings:
    """Settings of timing: `rounds` turns for each peer, of about `turn` seconds, `pause` seconds apart.

    The pause is for the peer before, whose threads may spin after they are done: it lasts until they had no
    processor for as long again, `most_pause` seconds at most (Intel's OpenMP spins for 0.2).
    """

    threads: int
    rounds: int = 5
    turn: float = 0.05
    pause: float = 0.03
    most_pause: float = 0.5
    most_calls: int = 200


@dataclass
class Turns:
    """The state of the rounds of one case: seconds and calls of each peer so far, and the machine's peaks."""

    case: Case
    rounds: dict[Worker, list[float]]
    calls: dict[Worker, int] = field(default_factory=dict[Worker, int])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    peaks: list[Peak] = field(default_factory=list[Peak])


@contextmanager
def workers(peers: Sequence[Peer], threads: int, engine: str) -> Generator[list[Worker]]:
    """Starts the processes of these peers, all at once; they end with the block."""

    def started(peer: Peer) -> Worker:
        """Starts the process of one peer, which imports its library."""
        return Worker(peer, threads, {"engine": engine} if peer.module == OURS else None)

    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        made = list(pool.map(started, peers))
    with ExitStack() as stack:
        yield [stack.enter_context(worker) for worker in made]


@contextmanager
def counting(processes: int) -> Generator[None]:
    """Keeps so many processors busy within the block, by processes that loop: the load of a `busy` case."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(
    case: Case, peers: Sequence[Worker], settings: Settings, progress: Progress = lambda _: None
) -> Result:
    """Times one case. A peer that refuses it, ends, or computes something else is in the result's `failures`.

    peers: their processes. progress: is told what is being done.
    """
    arrays = case.arrays()
    ready: dict[Worker, float] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        file, outputs = Path(folder) / "case.npz", Path(folder) / "outputs.npz"
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType] an array is no allow_pickle
        right: Answers | None = None
        for worker in peers:
            progress(worker.peer.name)
            why, seconds = prepared(worker, case, file, outputs)
            if why is None:
                progress("the right answers")
                right = expected(case, arrays) if right is None else right
                with np.load(outputs) as saved:
                    why = wrong(dict(saved), right, case, worker.peer.options.get("digits", ""))
            if why is None:
                ready[worker] = seconds
            elif worker.missing is None:
                failures[worker.peer.name] = why
        turns = Turns(case, {worker: [] for worker in ready}, failures=failures)
        with counting(case.busy):
            alternate(turns, settings, progress, (file, outputs))
    timings = {
        worker.peer.name: Timing(tuple(turns.rounds[worker]), turns.calls[worker], seconds)
        for worker, seconds in ready.items()
        if worker.peer.name not in failures
    }
    return Result(case, timings, failures, Peak.of(turns.peaks))


def prepared(worker: Worker, case: Case, arrays: Path, outputs: Path) -> tuple[str | None, float]:
    """Asks a peer's process to prepare a case; returns (the reason why it cannot, or None; seconds it took).

    arrays, outputs: the files with the case's arrays, and for the peer's results.
    """
    if worker.missing is not None:
        return worker.missing, 0.0
    try:
        if not worker.running:  # an earlier case ended it
            worker.start()
        reply = worker.ask(do="prepare", case=case.record, arrays=str(arrays), outputs=str(outputs))
    except WorkerError as error:
        return str(error), 0.0
    return (REFUSED + reply["refused"], 0.0) if "refused" in reply else (None, reply["seconds"])


def alternate(turns: Turns, settings: Settings, progress: Progress, files: tuple[Path, Path]) -> None:
    """Runs the rounds, and adds to `turns`. A round is a turn of each peer, and a measurement of the machine;
    the first is not counted: it tells how many calls fill a turn. files: of arrays and of outputs.
    """
    for number in range(-1, settings.rounds):
        for worker, seconds in turns.rounds.items():
            if worker.peer.name in turns.failures:
                continue
            progress(f"{worker.peer.name}, round {number + 1} of {settings.rounds}")
            try:
                took = turn(worker, turns.case, turns.calls.get(worker, 1), files)
            except WorkerError as error:
                turns.failures[worker.peer.name] = str(error)
                continue
            settle(worker, settings)
            if number < 0:
                turns.calls[worker] = calls_of(turns.case, took, settings)
            else:
                seconds.append(float(f"{took:.5g}"))
        if number >= 0:
            turns.peaks.append(peak(turns.case.dtype, turns.case.weight_bytes, settings.threads))


def settle(worker: Worker, settings: Settings) -> None:
    """Waits until the threads of a peer's process rest, so that they do not disturb the next peer's turn."""
    end = time.monotonic() + settings.most_pause
    before, now = None, worker.processor_seconds
    while before != now and time.monotonic() < end:
        time.sleep(settings.pause)
        before, now = now, worker.processor_seconds
    time.sleep(settings.pause)


def calls_of(case: Case, seconds: float, settings: Settings) -> int:
    """Returns the number of calls of a case that fill a turn, from the seconds of one call."""
    return 1 if case.starts else max(1, min(settings.most_calls, round(settings.turn / seconds)))


def turn(worker: Worker, case: Case, calls: int, files: tuple[Path, Path]) -> float:
    """Runs one turn: returns the median seconds of a call; of a start, the seconds of one process. Raises
    `WorkerError`. files: of arrays and of outputs.
    """
    if not case.starts:
        return median(worker.ask(do="run", count=calls)["seconds"])
    with tempfile.TemporaryDirectory() as folder:
        empty = {name: str(Path(folder) / name) for name in CACHES} if case.mode == "cold start" else {}
        worker.stop()
        begun = time.perf_counter()
        worker.start(empty)
        reply: dict[str, Any] = worker.ask(
            do="prepare", case=case.record, arrays=str(files[0]), outputs=str(files[1])
        )
        took = time.perf_counter() - begun
    if "seconds" not in reply:
        raise WorkerError(f"its process gave no result: {reply}")
    return took
