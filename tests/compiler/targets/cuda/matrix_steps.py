"""Steps whose memory is a matrix, with inputs as models have them: keys of length 1, and rates below 1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.compiler.plan import Plan, Planning
from stepnet.compiler.targets.cuda import COSTS, CudaEngine

Array = np.ndarray
RAGGED = 40, 0, 1, 33, 64
"""Lengths of sequences: chunks of 16, 32 and 64 steps that are full, and that are not."""


@dataclass(frozen=True)
class MatrixStep:
    """A step with its memory and the shapes of its inputs.

    unit: the inputs that are vectors of length 1. rates: those between 0 and 1. decays: those below 0.
    """

    step: Callable[..., Any]
    memory: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]
    params: Any = None
    unit: str = ""
    rates: str = ""
    decays: str = ""

    def rnn(self, **options: Any) -> sn.RNN:
        """The recurrence."""
        return sn.RNN(self.step, self.params, memory=self.memory, **options)

    def values(self, count: int, dtype: str = "float32") -> dict[str, Array]:
        """The inputs of some steps."""
        chance, found = np.random.default_rng(0), dict[str, Array]()
        for name, shape in self.shapes.items():
            x = chance.normal(size=(count, *shape)) / np.sqrt(shape[-1] if len(shape) > 1 else 1)
            x = x / np.sqrt((x * x).sum(-1, keepdims=True)) if name in self.unit.split() else x
            x = 1 / (1 + np.exp(-x)) if name in self.rates.split() else x
            found[name] = (-np.abs(x) / 4 if name in self.decays.split() else x).astype(dtype)
        return found

    def sequences(self, lengths: tuple[int, ...] = RAGGED) -> dict[str, sn.Ragged]:
        """The inputs of sequences of these lengths."""
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        return {name: sn.Ragged(x, (offsets,)) for name, x in self.values(sum(lengths)).items()}

    def initial(self, count: int = len(RAGGED)) -> Array:
        """The memories that sequences begin with."""
        return np.random.default_rng(1).normal(size=(count, *self.memory)).astype("f4")

    def plan(self) -> Plan:
        """The plan of the step for a GPU."""
        rnn = self.rnn()
        rnn({name: x[None] for name, x in self.values(2).items()})
        return rnn.plan.planned(Planning(CudaEngine.pipeline, COSTS))


def heads(count: int, keys: int, values: int, *names: str) -> dict[str, tuple[int, ...]]:
    """The shapes of q, k and v of some heads, and of further numbers for each head."""
    vectors = {"q": (count, keys), "k": (count, keys), "v": (count, values)}
    return {**vectors, **dict.fromkeys(names, (count,))}


def gated_delta(count: int = 2, keys: int = 16, values: int = 32) -> MatrixStep:
    """A gated delta rule."""
    shapes = heads(count, keys, values, "g", "beta")
    return MatrixStep(
        sn.cells.gated_delta_rule, (count, keys, values), shapes, unit="k", rates="beta", decays="g"
    )


def delta_product() -> MatrixStep:
    """A delta rule with three corrections in each step."""
    shapes = {"q": (2, 16), "k": (3, 2, 16), "v": (3, 2, 32), "g": (2,), "beta": (3, 2)}
    return MatrixStep(sn.cells.gated_delta_product, (2, 16, 32), shapes, unit="k", rates="beta", decays="g")


def linear(count: int = 2, keys: int = 16, values: int = 32) -> MatrixStep:
    """Linear attention, whose memory does not decay."""
    return MatrixStep(sn.cells.linear_attention, (count, keys, values), heads(count, keys, values))


def mamba2(count: int = 2, states: int = 16, features: int = 32) -> MatrixStep:
    """Mamba-2, whose matrix has its keys last."""
    shapes = {"x": (count, features), "dt": (count,), "B": (1, states), "C": (1, states)}
    params = {"A": -np.ones(count, "f4"), "D": np.ones(count, "f4")}
    return MatrixStep(sn.cells.mamba2, (count, features, states), shapes, params, rates="dt")


def bounded() -> MatrixStep:
    """A delta rule whose corrections are bounded, so that what is written is not linear in what is read; it
    has no heads, and its outputs read what was written and what was read.
    """

    def step(x: Any, S: Any, p: Any) -> Any:
        """Computes a step."""
        seen = (S * x["k"][:, :, None]).sum(1)
        wrong = np.tanh(seen - x["v"]) * x["beta"]
        S = S * x["keep"][:, :, None] - x["k"][:, :, None] * wrong[:, None, :]
        return (S * x["q"][:, :, None]).sum(1) * p["scale"] + seen, S

    shapes = {"q": (16,), "k": (16,), "v": (48,), "beta": (1,), "keep": (1,)}
    params = {"scale": np.float32(0.5) * np.ones(48, "f4")}
    return MatrixStep(step, (16, 48), shapes, params, unit="k", rates="beta keep")


def decaying_values() -> MatrixStep:
    """A delta rule each value of which decays by itself; outputs show what was written."""

    def step(x: Any, S: Any, p: Any) -> Any:
        """Computes a step."""
        wrong = (x["v"] - (S * x["k"][:, :, None]).sum(1)) * x["beta"]
        S = S * x["keep"][:, None, :] + x["k"][:, :, None] * wrong[:, None, :]
        return (S * x["q"][:, :, None]).sum(1) + wrong, S

    shapes = {"q": (16,), "k": (16,), "v": (32,), "beta": (1,), "keep": (32,)}
    return MatrixStep(step, (16, 32), shapes, unit="k", rates="beta keep")


def mamba(channels: int = 96, states: int = 16) -> MatrixStep:
    """Mamba, each state of which decays by itself."""
    shapes = {"x": (channels,), "dt": (channels,), "B": (states,), "C": (states,)}
    params = {"A": -np.ones((channels, states), "f4"), "D": np.ones(channels, "f4")}
    return MatrixStep(sn.cells.mamba, (channels, states), shapes, params, rates="dt")


def kda(keys: int = 16, values: int = 32, count: int = 2) -> MatrixStep:
    """A delta rule after a decay of each key."""
    shapes = {**heads(count, keys, values, "beta"), "g": (count, keys)}
    return MatrixStep(sn.cells.kda, (count, keys, values), shapes, unit="k", rates="beta", decays="g")


def gla(count: int = 2, keys: int = 16, values: int = 32) -> MatrixStep:
    """Gated linear attention, each key of which decays by itself."""
    shapes = {**heads(count, keys, values), "g": (count, keys)}
    return MatrixStep(sn.cells.gla, (count, keys, values), shapes, decays="g")


def rwkv7() -> MatrixStep:
    """RWKV-7, which reads and writes two vectors in each step."""
    shapes = {**dict.fromkeys("rkwab", (2, 32)), "v": (2, 16)}
    return MatrixStep(sn.cells.rwkv7, (2, 32, 16), shapes, unit="a b k", decays="w")
