"""The right results of a case, in float64: its equations in NumPy, and gradients by PyTorch's autograd
through them.

case, arrays -> outputs [steps, outputs], or the gradients of inputs and weights by name
"""

from typing import Any

import numpy as np

from bench.runtimes.cases import Case
from bench.runtimes.peers import torch as torch_peer
from bench.runtimes.peers.equations import CELLS, Functions, functions_like_numpy
from bench.runtimes.peers.worker import Work
from stepnet.compiler.net.tolerance import tolerance

Array = np.ndarray
Answers = dict[str, Array]
"""The outputs of a run, or its gradients, by name."""


def sigmoid(x: Array) -> Array:
    """Computes 1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


FUNCTIONS: Functions = functions_like_numpy(np, sigmoid)


def expected(case: Case, arrays: dict[str, Array]) -> Answers:
    """Computes the right results of a case in float64, to check those of runtimes: outputs, or gradients."""
    wide = {name: array if name == "lengths" else array.astype(np.float64) for name, array in arrays.items()}
    work = Work({**case.record, "dtype": "float64", "device": "cpu"}, wide, 1, {"form": "loop"})
    if not case.training:
        return {"outputs": outputs(work)}
    prepared = torch_peer.prepare_training(work)
    found = prepared.outputs(prepared.run())
    assert isinstance(found, dict)
    return found


def outputs(work: Work) -> Array:
    """Computes the outputs [steps, outputs] of a case: sequences side by side, step by step, by layers."""
    turned = work.turned()[..., None]
    x = work.padded(time_major=True)
    for both in work.recurrences:
        made = [recurrence(work, both[0], x)]
        if len(both) > 1:
            there = recurrence(work, both[1], np.take_along_axis(x, turned, 0))
            made.append(np.take_along_axis(there, turned, 0))
        x = np.concatenate(made, -1)
    return work.end_to_end(x, time_major=True)


def recurrence(work: Work, p: dict[str, Array], x: Array) -> Array:
    """Computes the outputs [time, batch, hidden] of one recurrence with parameters p, on padded x."""
    cell, found = CELLS[work.cell], list[Array]()
    memory: Any = cell.begin(work.hidden, lambda shape: np.zeros((x.shape[1], *shape)))
    for inputs in x:
        output, memory = cell.step(cell.ahead(inputs, p, FUNCTIONS), memory, p, FUNCTIONS)
        found.append(output.reshape(len(output), -1))
    return np.stack(found)


def wrong(answers: Answers, right: Answers, case: Case, digits: str = "") -> str | None:
    """Returns how a peer's outputs or gradients differ from the right ones; None if only by rounding.

    digits: a dtype with as many digits as the numbers that it multiplies; "" for the case's own.
    """
    shapes = {name: array.shape for name, array in answers.items()}
    if shapes != case.answers:
        return f"wrong: the shapes are {shapes}, not {case.answers}"
    if not all(np.isfinite(array).all() for array in answers.values()):
        return f"wrong: {' and '.join(answers)} are not finite"
    allowed = rounding(case, digits)
    for name, array in answers.items():
        # A gradient is a sum over all steps: its largest numbers say how large the terms were.
        scale = np.max(np.abs(right[name])) if case.training else np.abs(right[name])
        away = float(np.max(np.abs(array - right[name]) / np.maximum(1, scale)))
        if away > allowed:
            return f"wrong: {name} {away:.1e} away from float64, where {allowed:.1e} is rounding"
    return None


def rounding(case: Case, digits: str = "") -> float:
    """Returns the largest difference that rounding explains: that of the tests, for each layer."""
    length = case.steps if case.training else case.time
    return case.layers * tolerance(digits or case.dtype, length, case.inputs + case.hidden)
