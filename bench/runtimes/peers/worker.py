"""The process that a runtime is timed in: one JSON object a line, in and out.

    {"do": "hello", "threads": 2, "options": {}} -> {"versions": {"torch": "2.13.0"}} or {"missing": why}
    {"do": "prepare", "case": {...}, "arrays": FILE, "outputs": FILE}
                                                 -> {"seconds": of preparing} or {"refused": why}
    {"do": "run", "count": 5}                    -> {"seconds": [of each run]}

The outputs of one run are left in the file named, [steps, hidden] with the sequences end to end. For
training that are the gradients of the inputs, [steps, inputs], and of all weights, by name. Anything else is
a defect: the process ends, with the traceback on stderr. It ends quietly at the end of its input.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, TextIO

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A case made ready: `run` is timed; `outputs` makes [steps, hidden] of what it returned, or for training
    the gradients by name.
    """

    run: Callable[[], Any]
    outputs: Callable[[Any], "Array | dict[str, Array]"]


@dataclass(frozen=True)
class Work:
    """A case as a runtime gets it: its record (see cases.Case), its arrays, and the threads to use."""

    case: dict[str, Any]
    arrays: dict[str, Array]
    threads: int
    options: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.case[name]

    @property
    def weights(self) -> dict[str, Array]:
        """The parameters alone."""
        others = ("values", "lengths", "cotangents")
        return {name: array for name, array in self.arrays.items() if name not in others}

    def padded(self, time_major: bool, name: str = "values") -> Array:
        """An array that has a row for each step with zeros after each sequence: [time, batch, features] or
        [batch, time, features].
        """
        lengths, values = self.arrays["lengths"], self.arrays[name]
        padded = np.zeros((len(lengths), int(lengths.max()), values.shape[1]), values.dtype)
        padded[self._inside()] = values
        return np.ascontiguousarray(padded.swapaxes(0, 1)) if time_major else padded

    def end_to_end(self, padded: Array, time_major: bool) -> Array:
        """[steps, hidden] of outputs that are padded."""
        return (padded.swapaxes(0, 1) if time_major else padded)[self._inside()]

    def _inside(self) -> Array:
        lengths = self.arrays["lengths"]
        return np.arange(int(lengths.max())) < lengths[:, None]


class Refused(Exception):  # noqa: N818 - no error: an answer
    """What a runtime raises for a case that it does not have, with the reason."""


class Missing(Exception):  # noqa: N818 - no error: an answer
    """What a runtime raises where it cannot run at all, with what to do."""


def serve(peer: ModuleType, requests: TextIO, replies: TextIO) -> None:
    """Answer requests until they end. The module has `start(threads, options) -> versions`,
    `prepare(work) -> Prepared`, and `prepare_training(work) -> Prepared` if it computes gradients.
    """
    threads, options = 1, dict[str, Any]()
    prepared: Prepared | None = None
    for line in requests:
        request = json.loads(line)
        match request["do"]:
            case "hello":
                threads, options = request["threads"], request["options"]
                use_processors(threads)
                reply = started(peer, threads, options)
            case "prepare":
                prepared = None  # its memory goes before the next takes some
                with np.load(request["arrays"]) as file:
                    work = Work(request["case"], dict(file), threads, options)
                prepared, reply = made_ready(peer, work, request["outputs"])
            case "run" if prepared:
                reply = {"seconds": timed(prepared.run, request["count"])}
            case other:
                raise ValueError(f"{other!r} is not to be done now")
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def started(peer: ModuleType, threads: int, options: dict[str, Any]) -> dict[str, Any]:
    """The versions of the runtime, or what it misses."""
    try:
        return {"versions": peer.start(threads, options)}
    except Missing as error:
        return {"missing": str(error)}


def made_ready(peer: ModuleType, work: Work, outputs: str) -> tuple[Prepared | None, dict[str, Any]]:
    """The case made ready, its outputs in the file; or why the runtime refuses it."""
    begin = time.perf_counter()
    try:
        prepared = prepared_by(peer, work)
        result = prepared.run()
    except Refused as error:
        return None, {"refused": str(error)}
    seconds = time.perf_counter() - begin
    answers = prepared.outputs(result)
    answers = answers if isinstance(answers, dict) else {"outputs": answers}
    np.savez(outputs, **answers)  # pyright: ignore[reportArgumentType] an array is no allow_pickle
    return prepared, {"seconds": seconds}


def prepared_by(peer: ModuleType, work: Work) -> Prepared:
    """The case made ready by a runtime."""
    if not work.case.get("training"):
        return peer.prepare(work)
    if not hasattr(peer, "prepare_training"):
        raise Refused("it computes no gradients")
    return peer.prepare_training(work)


def timed(run: Callable[[], Any], count: int) -> list[float]:
    """The seconds of `count` runs, after one that is not counted: it wakes threads and fills caches."""
    run()
    seconds: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds


def use_processors(count: int) -> None:
    """Stay on this many processors, where the system lets a process choose."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def imported(name: str, remedy: str) -> Any:
    """The module, or `Missing` with the remedy."""
    try:
        return import_module(name)
    except ImportError as error:
        raise Missing(f"{error}; {remedy}") from error


def main(name: str) -> None:
    """Serve the runtime whose module has this name, on stdin and stdout."""
    # Libraries may print; what they print must not get among the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(import_module(f"{__package__}.{name}"), sys.stdin, replies)
