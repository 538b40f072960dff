"""PaddlePaddle: nn.GRU and nn.LSTM over padded inputs."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .worker import Array, Prepared, Refused, Work, imported, streamed

NAMES = {"weight_ih": "W", "weight_hh": "R", "bias_ih": "b", "bias_hh": "d"}


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Sets the threads, and returns Paddle's version."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    paddle = imported("paddle", "make bench-peers")
    paddle.base.core.set_num_threads(threads)
    return {"paddle": paddle.__version__}


def library(work: Work) -> Any:
    """Makes Paddle's layer with the weights of the case; time before batch."""
    work.needs(("gru", "lstm"), "paddle.nn")
    paddle = imported("paddle", "")
    if work.dtype != "float32":
        raise Refused("paddle.nn's recurrences are timed in float32")
    kind = {"gru": paddle.nn.GRU, "lstm": paddle.nn.LSTM}[work.cell]
    direction = "bidirect" if work.case.get("directions", 1) > 1 else "forward"
    layer = kind(
        work.inputs, work.hidden, num_layers=work.case.get("layers", 1), direction=direction, time_major=True
    )
    arrays: dict[str, Array] = {}
    for place, both in enumerate(work.recurrences):
        for p, suffix in zip(both, ("", "_reverse"), strict=False):
            own = {"W": p["W"].T, "R": p["R"].T, "b": p["b"], "d": p.get("d", np.zeros_like(p["b"]))}
            arrays |= {f"{name}_l{place}{suffix}": own[key] for name, key in NAMES.items()}
    for name, array in arrays.items():
        getattr(layer, name).set_value(np.ascontiguousarray(array))
    return layer


def given(work: Work, name: str = "values") -> Any:
    """Converts an array of the case, with a row for each step, to Paddle's padded tensor."""
    return imported("paddle", "").to_tensor(work.padded(time_major=True, name=name))


def lengths_of(work: Work) -> Any:
    """Returns the lengths of a ragged batch as a tensor; None for a dense one."""
    return imported("paddle", "").to_tensor(work.lengths) if work.ragged else None


def prepare(work: Work) -> Prepared:
    """Makes Paddle's layer for the case: returns the timed call, and the conversion to outputs."""
    paddle = imported("paddle", "")
    layer, x, lengths = library(work), given(work), lengths_of(work)
    layer.eval()

    def run() -> Any:
        """Runs the layer without gradients, to be timed; returns the outputs."""
        with paddle.no_grad():
            return layer(x, sequence_length=lengths)[0]

    return Prepared(run, lambda result: work.end_to_end(result.numpy(), time_major=True))


def prepare_stream(work: Work) -> Prepared:
    """Makes Paddle's layer run single steps, faster than its cells in Python: returns a stream's run."""
    paddle = imported("paddle", "")
    layer = library(work)
    layer.eval()

    def begin() -> Callable[[Any], Any]:
        """Starts a stream from zeros; returns the function of its step."""
        state: Any = None

        def step(x: Any) -> Any:
            """Runs one step of the stream, to be timed, and keeps the state."""
            nonlocal state
            with paddle.no_grad():
                output, state = layer(x, state)
            return output

        return step

    return streamed(work, begin, lambda x: paddle.to_tensor(x[None]))


def prepare_training(work: Work) -> Prepared:
    """Makes forward and backward in Paddle: returns the timed call, and the conversion to gradients."""
    paddle = imported("paddle", "")
    layer, x, cotangents, lengths = library(work), given(work), given(work, "cotangents"), lengths_of(work)
    x.stop_gradient = False
    parameters = dict(layer.named_parameters())

    def run() -> list[Any]:
        """Runs forward and backward, to be timed; returns all gradients."""
        outputs = layer(x, sequence_length=lengths)[0]
        return paddle.grad([outputs], [x, *parameters.values()], [cotangents])

    def answers(result: list[Any]) -> dict[str, Array]:
        """Converts a result of the timed call to gradients by the names of the case."""
        of_inputs, *others = result
        gradients = {name: one.numpy() for name, one in zip(parameters, others, strict=True)}

        def own(place: int, suffix: str) -> dict[str, Array]:
            """Returns the gradients of one layer and direction by the cell's names."""
            found = {key: gradients[f"{name}_l{place}{suffix}"] for name, key in NAMES.items()}
            kept = {"W": found["W"].T, "R": found["R"].T, "b": found["b"]}
            return kept | ({"d": found["d"]} if work.cell == "gru" else {})

        suffixes = ("", "_reverse")[: work.case.get("directions", 1)]
        weights = [[own(place, suffix) for suffix in suffixes] for place in range(work.case.get("layers", 1))]
        return {"values": work.end_to_end(of_inputs.numpy(), time_major=True), **work.named(weights)}

    return Prepared(run, answers)
