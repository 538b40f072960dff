"""PaddlePaddle: nn.GRU and nn.LSTM over padded inputs."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .worker import Array, Prepared, Refused, Work, imported, streamed

NAMES = {"weight_ih": "W", "weight_hh": "R", "bias_ih": "b", "bias_hh": "d"}


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """The version; the threads are set."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    paddle = imported("paddle", "make bench-peers")
    paddle.base.core.set_num_threads(threads)
    return {"paddle": paddle.__version__}


def library(work: Work) -> Any:
    """The layer with the weights of the case; time before batch."""
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
    """An array that has a row for each step as a padded tensor."""
    return imported("paddle", "").to_tensor(work.padded(time_major=True, name=name))


def lengths_of(work: Work) -> Any:
    """The lengths of a ragged batch, else None."""
    return imported("paddle", "").to_tensor(work.lengths) if work.ragged else None


def prepare(work: Work) -> Prepared:
    """The layer without gradients."""
    paddle = imported("paddle", "")
    layer, x, lengths = library(work), given(work), lengths_of(work)
    layer.eval()

    def run() -> Any:
        with paddle.no_grad():
            return layer(x, sequence_length=lengths)[0]

    return Prepared(run, lambda result: work.end_to_end(result.numpy(), time_major=True))


def prepare_stream(work: Work) -> Prepared:
    """The layer over one step, from the memory of the one before: its cells in Python are slower."""
    paddle = imported("paddle", "")
    layer = library(work)
    layer.eval()

    def begin() -> Callable[[Any], Any]:
        state: Any = None

        def step(x: Any) -> Any:
            nonlocal state
            with paddle.no_grad():
                output, state = layer(x, state)
            return output

        return step

    return streamed(work, begin, lambda x: paddle.to_tensor(x[None]))


def prepare_training(work: Work) -> Prepared:
    """Forward and backward, with the gradients of the inputs and of all parameters."""
    paddle = imported("paddle", "")
    layer, x, cotangents, lengths = library(work), given(work), given(work, "cotangents"), lengths_of(work)
    x.stop_gradient = False
    parameters = dict(layer.named_parameters())

    def run() -> list[Any]:
        outputs = layer(x, sequence_length=lengths)[0]
        return paddle.grad([outputs], [x, *parameters.values()], [cotangents])

    def answers(result: list[Any]) -> dict[str, Array]:
        of_inputs, *others = result
        gradients = {name: one.numpy() for name, one in zip(parameters, others, strict=True)}

        def own(place: int, suffix: str) -> dict[str, Array]:
            found = {key: gradients[f"{name}_l{place}{suffix}"] for name, key in NAMES.items()}
            kept = {"W": found["W"].T, "R": found["R"].T, "b": found["b"]}
            return kept | ({"d": found["d"]} if work.cell == "gru" else {})

        suffixes = ("", "_reverse")[: work.case.get("directions", 1)]
        weights = [[own(place, suffix) for suffix in suffixes] for place in range(work.case.get("layers", 1))]
        return {"values": work.end_to_end(of_inputs.numpy(), time_major=True), **work.named(weights)}

    return Prepared(run, answers)
