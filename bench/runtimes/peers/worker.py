"""The process that a runtime is timed in: one JSON object a line, in and out.

    {"do": "hello", "threads": 2, "options": {}} -> {"versions": {"torch": "2.13.0"}} or {"missing": why}
    {"do": "prepare", "case": {...}, "arrays": FILE, "outputs": FILE}
                                                 -> {"seconds": of preparing} or {"refused": why}
    {"do": "run", "count": 5}                    -> {"seconds": [of each run]}

The outputs of one run are left in the file named, [steps, outputs] with the sequences end to end. For
training that are the gradients of the inputs, [steps, inputs], and of all weights, by name. Anything else is
a defect: the process ends, with the traceback on stderr. It ends quietly at the end of its input.

A module of this folder is a runtime: it has `start(threads, options) -> versions`, and a function for each
mode that it has: `prepare(work) -> Prepared` for forward, `prepare_training`, `prepare_stream`. One that runs
elsewhere than on the processor names where in `DEVICES`.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, TextIO

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A case that a runtime has prepared: `run` is timed; `outputs` makes [steps, outputs] of what it
    returned, or for training the gradients by name.
    """

    run: Callable[[], Any]
    outputs: Callable[[Any], "Array | dict[str, Array]"]


@dataclass(frozen=True)
class Work:
    """A case as a runtime gets it: the fields of `cases.Case`, its arrays, and threads and options."""

    case: dict[str, Any]
    arrays: dict[str, Array]
    threads: int
    options: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        """Returns a field of the case, such as `hidden`."""
        return self.case[name]

    @property
    def ragged(self) -> bool:
        """True if the sequences differ in length."""
        return self.case["lengths"] != "dense"

    @property
    def device(self) -> str:
        """Where the case is run: "cpu", "cuda", or "cuda-emulated" to try it without a GPU."""
        return self.case.get("device", "cpu")

    @property
    def lengths(self) -> Array:
        """The steps of each sequence of the case."""
        return self.arrays["lengths"]

    @property
    def is_one(self) -> bool:
        """True if the case is one recurrence: one layer in one direction."""
        return self.case.get("layers", 1) == self.case.get("directions", 1) == 1

    @property
    def weights(self) -> dict[str, Array]:
        """The parameters alone, by the names of the case."""
        others = ("values", "lengths", "cotangents")
        return {name: array for name, array in self.arrays.items() if name not in others}

    @property
    def recurrences(self) -> list[list[dict[str, Array]]]:
        """The parameters of each layer and in it of each direction, by the names of the cell."""
        if self.is_one:
            return [[self.weights]]
        found = [[dict[str, Array]() for _ in range(self.directions)] for _ in range(self.layers)]
        for key, array in self.weights.items():
            layer, direction, name = key.split(".")
            found[int(layer)][int(direction)][name] = array
        return found

    def named(self, found: list[list[dict[str, Array]]]) -> dict[str, Array]:
        """Converts arrays by layer and direction to the case's names; the reverse of `recurrences`."""
        if self.is_one:
            return found[0][0]
        return {
            f"{layer}.{direction}.{name}": array
            for layer, directions in enumerate(found)
            for direction, arrays in enumerate(directions)
            for name, array in arrays.items()
        }

    def needs(self, cells: Iterable[str], who: str) -> None:
        """Raises `Refused` if the case's cell is not among those that a runtime (`who`) has."""
        if self.cell not in cells:
            raise Refused(f"{who} has no {self.cell} cell")

    def padded(self, time_major: bool, name: str = "values") -> Array:
        """Returns an array of the case, padded by zeros: [time, batch, ...] or [batch, time, ...]."""
        lengths, values = self.lengths, self.arrays[name]
        padded = np.zeros((len(lengths), int(lengths.max()), values.shape[1]), values.dtype)
        padded[self._inside()] = values
        return np.ascontiguousarray(padded.swapaxes(0, 1)) if time_major else padded

    def end_to_end(self, padded: Array, time_major: bool) -> Array:
        """Removes padding: returns [steps, features], sequences end to end."""
        inside = (padded.swapaxes(0, 1) if time_major else padded)[self._inside()]
        return inside.reshape(len(inside), -1)

    def turned(self) -> Array:
        """Returns which step to read at each to reverse sequences, [time, batch]; padding stays in place."""
        at, lengths = np.arange(int(self.lengths.max()))[:, None], self.lengths[None]
        return np.where(at < lengths, lengths - 1 - at, at)

    def _inside(self) -> Array:
        """Returns the mask [batch, time] of steps that are no padding."""
        return np.arange(int(self.lengths.max())) < self.lengths[:, None]


def streamed(work: Work, start: Callable[[], Callable[[Any], Any]], form: Callable[[Array], Any]) -> Prepared:
    """Runs a stream step by step. `start` begins a stream: it returns a function from one step's inputs
    [batch, inputs], in the form that `form` gives them, to its outputs [batch, hidden].
    """
    given = [form(x) for x in work.padded(time_major=True)]
    step = start()

    def run() -> None:
        """Runs all steps of one stream, to be timed."""
        for x in given:
            step(x)

    def outputs(_: None) -> Array:
        """Runs a new stream over the same steps; returns its outputs, sequences end to end."""
        anew = start()
        made = [np.array(anew(x), work.dtype).reshape(work.batch, -1) for x in given]
        return work.end_to_end(np.stack(made), time_major=True)

    return Prepared(run, outputs)


class Refused(Exception):  # noqa: N818 - no error: an answer
    """Raised by a runtime for a case that it does not have, with the reason."""


class Missing(Exception):  # noqa: N818 - no error: an answer
    """Raised by a runtime that cannot run at all, with what to do."""


def serve(peer: ModuleType, requests: TextIO, replies: TextIO) -> None:
    """Answers requests, one JSON object a line, by the runtime `peer`, until they end."""
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
                prepared = None  # frees its memory before the next case takes some
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
    """Starts a runtime with so many threads; returns {"versions": ...}, or {"missing": what to do}."""
    try:
        return {"versions": peer.start(threads, options)}
    except Missing as error:
        return {"missing": str(error)}


def made_ready(peer: ModuleType, work: Work, outputs: str) -> tuple[Prepared | None, dict[str, Any]]:
    """Prepares a case by a runtime and writes outputs of a run to a file; returns it and the reply."""
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


# The function of a runtime's module for each mode of a case, and why a case is refused where it has none.
FUNCTIONS = {
    "forward": ("prepare", "it runs no whole sequences"),
    "start": ("prepare", "it runs no whole sequences"),
    "cold start": ("prepare", "it runs no whole sequences"),
    "training": ("prepare_training", "it computes no gradients"),
    "stream": ("prepare_stream", "it does not carry on from step to step"),
}


def prepared_by(peer: ModuleType, work: Work) -> Prepared:
    """Calls the function of a runtime's module for the case's mode; raises `Refused` without one."""
    name, reason = FUNCTIONS[work.case.get("mode", "forward")]
    prepare = getattr(peer, name, None)
    if prepare is None:
        raise Refused(reason)
    if work.device not in getattr(peer, "DEVICES", ("cpu",)):
        raise Refused(f"it does not run on {work.device}")
    return prepare(work)


def timed(run: Callable[[], Any], count: int) -> list[float]:
    """Returns the seconds of `count` runs, after one that only wakes threads and fills caches."""
    run()
    seconds: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds


def use_processors(count: int) -> None:
    """Restricts this process to so many processors, if the system lets it choose."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def imported(name: str, remedy: str) -> Any:
    """Imports a module; raises `Missing` with the remedy if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise Missing(f"{error}; {remedy}") from error


def main(name: str) -> None:
    """Serves the runtime whose module has this name, on stdin and stdout."""
    # Libraries may print; what they print must not get among the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(import_module(f"{__package__}.{name}"), sys.stdin, replies)
