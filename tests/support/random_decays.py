"""Recurrences with decays of random numbers, weak and strong, and how far their gradients are from those in
float64: of stepnet's functions, and of plain loops in float32.

The heads of a call are independent of one another, so each of them is a draw. Its error is the median of what
is away, as a few places, where an mLSTM divides by nearly nothing, have many times that and are away by
chance. The error of all draws is their geometric mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import decay_loops
import hypothesis.strategies as st
import numpy as np
import torch

from stepnet.torch.patches.transformers.delta_rule import torch_chunk_gated_delta_rule
from stepnet.torch.patches.transformers.mamba import mamba2_chunk_scan
from stepnet.torch.patches.transformers.xlstm import mlstm

TIMES = 2
"""The factor by which an error may be larger than that of the loop."""
LEAST = 2.0**-28
"""Added to errors, of which some are zero: less than the last rounding of what they are relative to."""
WEAKEST, TINY = -1e-6, 1e-300
LAYER = SimpleNamespace(config=SimpleNamespace(eps=1e-6, mode="inference", return_last_states=True))
Numbers = dict[str, torch.Tensor]
Case = tuple[str, float]
"""One of `DECAYS` and a scale of all other numbers."""


@dataclass(frozen=True)
class Rule:
    """A recurrence with decays. ours, loop: its outputs of tensors by name. drawn: random numbers for a
    logarithm of decays [steps, heads] or, `by_key`, [steps, heads, SIZE], and a scale. heads: their axis.
    """

    ours: Callable[..., Any]
    loop: Callable[..., Any]
    drawn: Callable[[Any, np.ndarray, float], dict[str, np.ndarray]]
    heads: int = 2
    by_key: bool = False


SIZE = 8


def of_delta(random: Any, g: np.ndarray, scale: float) -> dict[str, np.ndarray]:
    """Queries, normed keys, values, and fractions from 0 to 1."""
    q, k, v = random.standard_normal((3, *g.shape[:2], SIZE))
    beta = 1 / (1 + np.exp(-scale * random.standard_normal(g.shape[:2])))
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    return {"query": scale * q, "key": k, "value": scale * v, "g": g, "beta": beta}


def of_mamba2(random: Any, g: np.ndarray, scale: float) -> dict[str, np.ndarray]:
    """Step sizes that A = -1 makes the decays of."""
    x, B, C = scale * random.standard_normal((3, *g.shape, SIZE))
    return {"hidden_states": x, "dt": -g, "A": -np.ones(g.shape[1]), "B": B, "C": C}


def of_mlstm(random: Any, g: np.ndarray, scale: float) -> dict[str, np.ndarray]:
    """Gates whose sigmoid is the decay."""
    q, k, v = scale * random.standard_normal((3, *g.shape, SIZE))
    i, f = scale * random.standard_normal(g.shape), g - np.log(-np.expm1(g))
    return {name: x.swapaxes(0, 1) for name, x in zip("qkvif", (q, k, v, i, f), strict=True)}


def first(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of which the first result counts."""
    return lambda **x: function(**x)[0]


def of_gates(function: Callable[..., Any]) -> Callable[..., Any]:
    """The outputs of an mLSTM of x by one letter each."""
    return lambda **x: function(LAYER, *x.values())[0]


DELTA = first(torch_chunk_gated_delta_rule), first(decay_loops.delta)
RULES = {
    "gated delta rule": Rule(*DELTA, of_delta),
    "kimi": Rule(*DELTA, of_delta, by_key=True),
    "mamba2": Rule(lambda **x: mamba2_chunk_scan(**x, chunk_size=64), decay_loops.mamba2, of_mamba2),
    "mlstm": Rule(of_gates(mlstm), of_gates(decay_loops.mlstm), of_mlstm, heads=1),
}


def constant(decay: float) -> Callable[[Any, tuple[int, ...]], np.ndarray]:
    """Logarithms near a number."""
    return lambda random, shape: np.minimum(decay * random.uniform(0.9, 1, shape), WEAKEST)


DECAYS: dict[str, Callable[[Any, tuple[int, ...]], np.ndarray]] = {
    **{str(decay): constant(decay) for decay in (0, -0.001, -0.1, -1, -4, -8, -20)},
    "from -20 to 0": lambda random, shape: np.minimum(-20 * random.uniform(0, 1, shape), WEAKEST),
    "seldom -20": lambda random, shape: np.where(
        random.uniform(0, 1, shape) < 0.02, -20, -0.01 - 0.01 * random.uniform(0, 1, shape)
    ),
}
"""Logarithms of decays of a shape, by name."""
CASES = list(product(DECAYS, (1.0, 3.0)))


def decaying(data: st.DataObject) -> None:
    """Gradients of recurrences with decays, weak and strong ones side by side, beside those of loops."""
    rule, steps = data.draw(st.sampled_from(list(RULES))), data.draw(st.sampled_from([65, 300, 1024]))
    cases = data.draw(st.lists(st.sampled_from(CASES), min_size=1, max_size=3, unique=True))
    assert_as_near_as_a_loop(RULES[rule], cases, steps, 16, data.draw(st.integers(0, 99)))


def numbers(rule: Rule, cases: Sequence[Case], steps: int, draws: int, seed: int) -> Numbers:
    """The arguments of a rule: one row of float32, with so many heads for each case."""
    random = np.random.default_rng(seed)
    shape = (steps, draws, SIZE) if rule.by_key else (steps, draws)
    drawn = [rule.drawn(random, DECAYS[decays](random, shape), scale) for decays, scale in cases]
    whole = {name: [one[name] for one in drawn] for name in drawn[0]}
    return {
        name: torch.from_numpy(
            np.concatenate(x) if x[0].ndim == 1 else np.concatenate(x, rule.heads - 1)[None]
        ).float()
        for name, x in whole.items()
    }


def gradients(function: Callable[..., Any], x: Numbers, dtype: Any, seed: int) -> Numbers:
    """The gradients of all that a function takes, for random cotangents."""
    own = {name: tensor.to(dtype).requires_grad_() for name, tensor in x.items()}
    outputs = function(**own)
    cotangents = torch.from_numpy(np.random.default_rng(seed).standard_normal(tuple(outputs.shape)))
    found = torch.autograd.grad((outputs * cotangents.to(dtype)).sum(), list(own.values()))
    return dict(zip(own, found, strict=True))


def errors(found: torch.Tensor, right: torch.Tensor, heads: int) -> np.ndarray:
    """The medians of what is away, relative to the largest number of the gradient, along an axis of heads;
    parameters have one number for each of them.
    """
    axis = heads if right.dim() > 1 else 0
    a, r = (
        x.double().movedim(axis, 0).flatten(1) if x.dim() > 1 else x.double()[:, None] for x in (found, right)
    )
    return ((a - r).abs().median(1).values / r.abs().amax(1).clamp_min(TINY)).numpy()


def means(values: np.ndarray, cases: int) -> np.ndarray:
    """The geometric mean of each case."""
    return np.exp(np.log(values + LEAST).reshape(cases, -1).mean(1))


def assert_as_near_as_a_loop(
    rule: Rule, cases: Sequence[Case], steps: int, draws: int, seed: int
) -> dict[str, np.ndarray]:
    """Asserts that our errors are at most twice those of the loop in float32, case by case."""
    x = numbers(rule, cases, steps, draws, seed)
    right = gradients(rule.loop, x, torch.float64, seed)
    ours, loop = (gradients(function, x, torch.float32, seed) for function in (rule.ours, rule.loop))
    ratios = dict[str, np.ndarray]()
    for name, wide in right.items():
        own, other = (means(errors(found[name], wide, rule.heads), len(cases)) for found in (ours, loop))
        for case, away, least in zip(cases, own, other, strict=True):
            text = f"the gradient of {name} for {case} and {steps} steps"
            assert away <= TIMES * least, f"{text} is {away:.2g} away, where a loop is {least:.2g}"
        ratios[name] = own / other
    return ratios
