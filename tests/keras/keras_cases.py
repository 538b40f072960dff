"""Layers of Keras and ours with the same weights, what they are given, and what they answer."""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import torch
from tolerance import distance, tolerance

import stepnet.keras

keras: Any = import_module("keras")  # few of its types are known
ops: Any = keras.ops
Array = np.ndarray
BATCH, STEPS, INPUTS, UNITS = 4, 6, 3, 5
LENGTHS = np.array([6, 3, 0, 1])
MASKS: dict[str, Array | None] = {
    "none": None,
    "all": np.ones((BATCH, STEPS), bool),
    "right": np.arange(STEPS) < LENGTHS[:, None],
    "left": np.arange(STEPS) >= STEPS - LENGTHS[:, None],
    "gaps": np.array([[1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0], [0] * 6, [1, 1, 1, 0, 0, 1]], bool),
}
STATES = {"SimpleRNN": 1, "GRU": 1, "LSTM": 2}


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Some numbers."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def same_weights(theirs: Any, ours: Any, shape: tuple[int, ...] = (BATCH, STEPS, INPUTS)) -> None:
    """Builds both layers, with weights that are no zeros."""
    for layer in (theirs, ours):
        if not layer.built:
            layer.build(shape)
    weights = [numbers(*weight.shape, seed=place) / 2 for place, weight in enumerate(theirs.get_weights())]
    for layer in (theirs, ours):
        layer.set_weights(weights)


@dataclass(frozen=True)
class Call:
    """The arguments of a layer's call. begin: True if it begins with states of the caller."""

    mask: str = "none"
    training: bool = False
    begin: bool = False
    dtype: str = "float32"
    shape: tuple[int, ...] = (BATCH, STEPS, INPUTS)
    further: dict[str, Any] = field(default_factory=dict[str, Any])

    def answers(self, layer: Any) -> dict[str, Array]:
        """The results of a layer, and the gradients of everything that has one, by name."""
        x = torch.tensor(numbers(*self.shape, dtype=self.dtype), requires_grad=True)
        sizes = list(layer.state_size) if self.begin else []
        states = [
            torch.tensor(numbers(self.shape[0], size, seed=7 + place, dtype=self.dtype), requires_grad=True)
            for place, size in enumerate(sizes)
        ]
        mask = MASKS[self.mask]
        given = layer(
            x,
            initial_state=states or None,
            mask=None if mask is None else torch.tensor(mask),
            training=self.training,
            **self.further,
        )
        results = list(keras.tree.flatten(given))
        weights = {weight.path.rpartition("/")[2]: weight.value for weight in layer.trainable_weights}
        inputs = {"x": x, **weights, **{f"state {place}": state for place, state in enumerate(states)}}
        total: Any = sum(
            (one * torch.cos(torch.arange(one.numel())).reshape(one.shape)).sum() for one in results
        )
        gradients = torch.autograd.grad(total, list(inputs.values()), allow_unused=True)
        named = {f"d {name}": one for name, one in zip(inputs, gradients, strict=True) if one is not None}
        named |= {f"result {place}": one for place, one in enumerate(results)}
        return {name: one.detach().numpy() for name, one in named.items()}


def assert_same(ours: dict[str, Array], theirs: dict[str, Array], steps: int = STEPS) -> None:
    """Asserts that answers agree but for rounding: each may be off by the tolerance."""
    assert ours.keys() == theirs.keys()
    for name, right in theirs.items():
        assert (ours[name].shape, ours[name].dtype) == (right.shape, right.dtype), name
        away, most = distance(ours[name], right), 2 * tolerance(right.dtype, steps, UNITS)
        assert away <= most, f"{name} is {away:.3g} away, where {most:.3g} is allowed"


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """A layer of Keras and ours, with the same weights."""
    theirs, ours = (getattr(where, kind)(UNITS, **options) for where in (keras.layers, stepnet.keras))
    same_weights(theirs, ours)
    return theirs, ours


class Counted:
    """A context that says how many calls in it ran compiled, and by Keras' own loop."""

    def __enter__(self) -> "Counted":
        self.before = stepnet.keras.counters()
        return self

    def __exit__(self, *_: object) -> None:
        after = stepnet.keras.counters()
        self.fast, self.slow = after.fast - self.before.fast, after.slow - self.before.slow
