"""Paddle's fused operators as plain loops in float64, one sequence and step at a time, and data for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from zoo import sigmoid

import stepnet as sn

Array = np.ndarray


ACTIVATIONS: dict[str, Any] = {
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0),
    "identity": lambda a: a,
}


@dataclass(frozen=True)
class Case:
    """Arguments of an operator. x: one array [steps, inputs] for each sequence."""

    x: Sequence[Array]
    h0: Any
    weight_x: Array
    weight_h: Array
    bias: Any
    c0: Any = None

    @property
    def ragged(self) -> sn.Ragged:
        return (
            sn.Ragged.from_list(self.x)
            if self.x
            else sn.Ragged.from_padded(np.zeros((0, 1, self.inputs), "f4"))
        )

    @property
    def inputs(self) -> int:
        return len(self.weight_x)

    @property
    def hidden(self) -> int:
        return len(self.weight_h)

    def without(self, *names: str) -> "Case":
        return replace(self, **dict.fromkeys(names))

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of fusion_gru."""
        return self.ragged, self.h0, self.weight_x, self.weight_h, self.bias

    def lstm_arguments(self) -> tuple[Any, ...]:
        """The arguments of fusion_lstm."""
        return self.ragged, self.h0, self.c0, self.weight_x, self.weight_h, self.bias


def case(
    lengths: Sequence[int],
    inputs: int = 3,
    hidden: int = 5,
    gates: int = 3,
    biases: int | None = None,
    seed: int = 0,
) -> Case:
    """Random arguments, of both signs; the weights are the same for all lengths."""
    random = np.random.default_rng(seed)

    def drawn(*shape: int, scale: float = 1.0) -> Array:
        return (scale * random.normal(size=shape)).astype(np.float32)

    scale = 1 / np.sqrt(hidden)
    weights = drawn(inputs, gates * hidden, scale=scale), drawn(hidden, gates * hidden, scale=scale)
    bias = drawn(1, (biases or gates) * hidden)
    x = [drawn(length, inputs) for length in lengths]
    return Case(x, drawn(len(lengths), hidden), *weights, bias, drawn(len(lengths), hidden))


@dataclass(frozen=True)
class Right:
    """The right results: of each sequence the outputs and c of each step, and the last h and c."""

    outputs: list[Array]
    cells: list[Array]
    h: Array
    c: Array


def over(case: Case, reverse: bool, step: Any) -> Right:
    """A step (x, h, c) -> (h, c) over all sequences."""
    outputs, cells, last = [], [], []
    for row, x in enumerate(case.x):
        h = np.zeros(case.hidden) if case.h0 is None else case.h0[row].astype(np.float64)
        c = np.zeros(case.hidden) if case.c0 is None else case.c0[row].astype(np.float64)
        made = np.zeros((2, len(x), case.hidden))
        for t in reversed(range(len(x))) if reverse else range(len(x)):
            h, c = step(x[t].astype(np.float64), h, c)
            made[:, t] = h, c
        outputs.append(made[0])
        cells.append(made[1])
        last.append((h, c))
    both = np.array(last).reshape(-1, 2, case.hidden)
    return Right(outputs, cells, both[:, 0], both[:, 1])


def gru(
    case: Case,
    *,
    is_reverse: bool = False,
    origin_mode: bool = False,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
) -> Right:
    """Paddle's fusion_gru."""
    d = case.hidden
    flat = case.weight_h.astype(np.float64).ravel()
    w_gates, w_candidate = flat[: 2 * d * d].reshape(d, 2 * d), flat[2 * d * d :].reshape(d, d)
    w_x, b = (
        case.weight_x.astype(np.float64),
        0 if case.bias is None else case.bias.ravel().astype(np.float64),
    )
    gate, candidate = ACTIVATIONS[gate_activation], ACTIVATIONS[activation]

    def step(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        a = x @ w_x + b
        u, r = np.split(gate(a[: 2 * d] + h @ w_gates), 2)
        n = candidate(a[2 * d :] + (r * h) @ w_candidate)
        return (u * h + (1 - u) * n if origin_mode else u * n + (1 - u) * h), c

    return over(case, is_reverse, step)


def lstm(
    case: Case,
    *,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
) -> Right:
    """Paddle's fusion_lstm: gates c i f o; peepholes i f o behind the bias."""
    d = case.hidden
    w_x, w_h = case.weight_x.astype(np.float64), case.weight_h.astype(np.float64)
    whole = np.zeros(7 * d)
    if case.bias is not None:
        whole[: case.bias.size] = case.bias.ravel()
    b, (p_i, p_f, p_o) = whole[: 4 * d], np.split(whole[4 * d :], 3)
    gate, output, candidate = (
        ACTIVATIONS[n] for n in (gate_activation, cell_activation, candidate_activation)
    )

    def step(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        g, i, f, o = np.split(x @ w_x + h @ w_h + b, 4)
        c = gate(f + p_f * c) * c + gate(i + p_i * c) * candidate(g)
        return gate(o + p_o * c) * output(c), c

    return over(case, is_reverse, step)


def multi_gru(
    x: Sequence[Array], cases: Sequence[Case], origin_mode: bool = False
) -> tuple[list[Array], list[Array]]:
    """Layers of two directions each: the outputs of the last layer, and all final memories."""
    final: list[Array] = []
    values = [array.astype(np.float64) for array in x]
    for place in range(0, len(cases), 2):
        rights = [
            gru(replace(cases[place + way], x=values, h0=None), is_reverse=bool(way), origin_mode=origin_mode)
            for way in (0, 1)
        ]
        final += [right.h for right in rights]
        values = [np.concatenate(pair, -1) for pair in zip(*(right.outputs for right in rights), strict=True)]
    return values, final
