"""Random steps as layers, on top of one another and in two directions: each reads what is below it."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from random_steps import RandomStep

import stepnet as sn
from stepnet.compiler.values import leaves

Array = np.ndarray
WAYS = ("forward", "backward", "both")


@dataclass(frozen=True)
class VectorStep:
    """A random step that reads a vector and writes one, made of its float memories and outputs."""

    step: RandomStep

    def params(self, width: int, dtype: Any) -> dict[str, Any]:
        """Its own, and matrices that make its inputs of a vector of this width."""
        random = np.random.default_rng(width)
        reading = {
            name: (random.uniform(-1, 1, (width, prod(spec.shape))) / width).astype(dtype)
            for name, spec in self.step.inputs.items()
        }
        own = {name: array.astype(dtype) for name, array in self.step.params.items()}
        return {"reading": reading, "own": own}

    def __call__(self, x: Any, memory: Any, params: Any, statics: Any, index: Any) -> Any:
        inputs = {
            name: np.tanh(x @ params["reading"][name]).reshape(-1, *spec.shape)
            for name, spec in self.step.inputs.items()
        }
        output, after = self.step.function(inputs, memory, params["own"], statics=statics, index=index)
        shown = [*leaves(output), *(after[name] for name in self.step.memory if name != "count")]
        flat = [one.reshape(-1, prod(one.shape[1:])) for one in shown]
        return np.concatenate(flat, axis=-1), after

    def rnn(self, width: int, dtype: Any, reverse: bool) -> sn.RNN:
        """The recurrence over vectors of this width."""
        statics = self.step.statics and {
            name: sn.Spec(spec.shape, dtype) for name, spec in self.step.statics.items()
        }
        params = self.params(width, dtype)
        inputs = sn.Spec(width, dtype)
        return sn.RNN(self, params, memory=self.step.memory, inputs=inputs, statics=statics, reverse=reverse)


def layer_of(step: RandomStep, way: str, width: int, dtype: Any) -> sn.RNN | sn.Bidirectional:
    """A layer of a random step, in one direction or in both."""
    forward, backward = (VectorStep(step).rnn(width, dtype, reverse) for reverse in (False, True))
    return {"forward": forward, "backward": backward, "both": sn.Bidirectional(forward, backward)}[way]


def stack_of(steps: list[RandomStep], ways: list[str], width: int, dtype: Any) -> sn.Stack:
    """Layers of random steps on vectors of this width, each as wide as what is below it gives."""
    layers: list[sn.RNN | sn.Bidirectional] = []
    for step, way in zip(steps, ways, strict=True):
        layers.append(layer_of(step, way, width, dtype))
        statics = per_way(way, numbers_of(step.statics, 1, dtype, np.random.default_rng(0)))
        shown, _ = layers[-1](np.ones((1, 1, width), dtype), statics=statics, engine="interpret")
        width = np.shape(shown)[-1]
    return sn.Stack(layers)


def per_way(way: str, numbers: Any) -> Any:
    """The same numbers for a layer of one direction, or for both directions."""
    return {"forward": numbers, "backward": numbers} if way == "both" and numbers is not None else numbers


def numbers_of(specs: Any, count: int, dtype: Any, random: np.random.Generator) -> Any:
    """Arrays for memories or statics of so many sequences; whole numbers for a counter."""
    if specs is None:
        return None
    return {
        name: random.integers(0, 4, (count, *spec.shape)).astype(spec.dtype)
        if spec.dtype is not None
        else random.uniform(-1, 1, (count, *spec.shape)).astype(dtype)
        for name, spec in specs.items()
    }
