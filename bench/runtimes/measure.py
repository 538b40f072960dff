"""The timing itself: peers in turns, one at a time, each checked first to compute what stepnet computes."""

import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.runtimes.cases import Case
from bench.runtimes.machine import Peak, peak
from bench.runtimes.results import REFUSED, Result, Timing
from bench.runtimes.runner import OURS, Peer, Worker, WorkerError
from stepnet.net.tolerance import tolerance

Array = np.ndarray
Answers = dict[str, Array]
"""The outputs of a run, or its gradients, by name."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to time: `rounds` turns for each peer, each of about `turn` seconds, `pause` seconds between turns.

    The pause is for the peer before: its threads may spin for a while after they are done.
    """

    threads: int
    rounds: int = 5
    turn: float = 0.1
    pause: float = 0.03
    most_calls: int = 200


@contextmanager
def workers(peers: Sequence[Peer], threads: int, engine: str) -> Generator[list[Worker]]:
    """The processes of these peers, ended at the end."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(Worker(peer, threads, {"engine": engine} if peer.name == OURS else None))
            for peer in peers
        ]


def measure(
    case: Case, peers: Sequence[Worker], settings: Settings, told: Progress = lambda _: None
) -> Result:
    """The timings of one case. A peer that refuses it, ends, or computes something else is in `failures`."""
    arrays = case.arrays()
    failures: dict[str, str] = {}
    ready: dict[Worker, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "case.npz"
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType] an array is no allow_pickle
        ours: Answers | None = None
        for worker in peers:
            told(worker.peer.name)
            outputs = Path(folder) / "outputs.npz"
            why, reply = prepared(worker, case, file, outputs)
            if why is None:
                with np.load(outputs) as saved:
                    answers = dict(saved)
                ours = answers if worker.peer.name == OURS else ours
                why = wrong(answers, ours, case)
            if why is None:
                ready[worker] = reply
            elif worker.missing is None:
                failures[worker.peer.name] = why
    rounds, calls, most = alternated(ready, case, settings, failures, told)
    timings = {
        worker.peer.name: Timing(tuple(rounds[worker]), calls[worker], reply["seconds"])
        for worker, reply in ready.items()
        if worker.peer.name not in failures
    }
    return Result(case, timings, failures, most)


def prepared(worker: Worker, case: Case, arrays: Path, outputs: Path) -> tuple[str | None, dict[str, Any]]:
    """Why the peer cannot do the case, or None; and its answer."""
    if worker.missing is not None:
        return worker.missing, {}
    try:
        if not worker.running:  # an earlier case ended it
            worker.start()
        reply = worker.ask(do="prepare", case=case.record, arrays=str(arrays), outputs=str(outputs))
    except WorkerError as error:
        return str(error), {}
    return (REFUSED + reply["refused"] if "refused" in reply else None), reply


def wrong(answers: Answers, ours: Answers | None, case: Case) -> str | None:
    """How outputs or gradients differ from ours, or None if they are the same but for rounding."""
    shapes = {name: array.shape for name, array in answers.items()}
    if shapes != case.answers:
        return f"wrong: the shapes are {shapes}, not {case.answers}"
    if not all(np.isfinite(array).all() for array in answers.values()):
        return f"wrong: {' and '.join(answers)} are not finite"
    if ours is None:
        return None
    for name, array in answers.items():
        # A gradient is a sum over all steps: its largest numbers say how large the terms were.
        scale = np.max(np.abs(ours[name])) if case.training else np.abs(ours[name])
        away, allowed = float(np.max(np.abs(array - ours[name]) / np.maximum(1, scale))), rounding(case)
        if away > allowed:
            return f"wrong: {name} {away:.1e} away from stepnet, where {allowed:.1e} is rounding"
    return None


def rounding(case: Case) -> float:
    """How far two right results may be from each other: each as far from the truth as the tests allow."""
    length = case.steps if case.training else case.time
    return 2 * tolerance(case.dtype, length, case.inputs + case.hidden)


def alternated(
    ready: dict[Worker, dict[str, Any]],
    case: Case,
    settings: Settings,
    failures: dict[str, str],
    told: Progress,
) -> tuple[dict[Worker, list[float]], dict[Worker, int], Peak]:
    """The median seconds of each peer in each round, the calls each is the median of, and the machine's peak.

    A round is one turn of each peer, and one measurement of the machine.
    """
    calls: dict[Worker, int] = {}
    rounds: dict[Worker, list[float]] = {worker: [] for worker in ready}
    peaks: list[Peak] = []
    for number in range(-1, settings.rounds):  # the first is to learn how many calls fill a turn
        for worker in ready:
            if worker.peer.name in failures:
                continue
            told(f"{worker.peer.name}, round {number + 1} of {settings.rounds}")
            time.sleep(settings.pause)
            try:
                seconds = median(worker.ask(do="run", count=calls.get(worker, 1))["seconds"])
            except WorkerError as error:
                failures[worker.peer.name] = str(error)
                continue
            if number < 0:
                calls[worker] = max(1, min(settings.most_calls, round(settings.turn / seconds)))
            else:
                rounds[worker].append(seconds)
        if number >= 0:
            time.sleep(settings.pause)
            peaks.append(peak(case.dtype, case.weight_bytes, settings.threads))
    return rounds, calls, Peak.of(peaks)
