"""Random models, each written twice: for `sn.Graph`, and in NumPy for one sequence at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import stepnet as sn

Array = np.ndarray
WORDS = 7
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "exp": lambda x: np.exp(-x * x),
}
MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "concat": lambda a, b: np.concatenate([a, b], axis=-1),
    "sum": lambda a, b: a + b,
}
REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda h: h.sum(axis=0),
    "mean": lambda h: h.mean(axis=0) if len(h) else h.sum(axis=0),
    "max": lambda h: h.max(axis=0) if len(h) else h.sum(axis=0),
    "last": lambda h: h[-1] if len(h) else np.zeros(h.shape[1:]),
    "first": lambda h: h[0] if len(h) else np.zeros(h.shape[1:]),
}


SIZE, DILATIONS = 3, {"causal": 2, "same": 1}
"""The kernel of convolutions, and their dilations."""


def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
    """A leaky unit with an output of its own."""
    h = 0.5 * h + 0.5 * np.tanh(x @ params["W"] + h @ params["R"])
    return np.tanh(h @ params["V"]), h


@dataclass(frozen=True)
class Layer:
    """A layer of a model, by its kind: what it does, and its parameters."""

    kind: str
    how: str
    width: int

    def params(self, random: np.random.Generator, inputs: int) -> Any:
        """Parameters for so many inputs."""

        def matrix(*shape: int) -> Array:
            return random.normal(size=shape) / np.sqrt(shape[0])

        if self.kind == "dense":
            return {"W": matrix(inputs, self.width), "b": random.normal(size=self.width)}
        if self.kind == "recurrence":
            count = 2 if self.how in MERGES else 1
            sizes = {"W": (inputs, self.width), "R": (self.width, self.width), "V": (self.width, self.width)}
            return [{name: matrix(*size) for name, size in sizes.items()} for _ in range(count)]
        if self.kind in ("convolution", "resampled"):
            return matrix(self.width, inputs, SIZE)
        return None

    def outputs(self, inputs: int) -> int:
        """The number of features of the outputs."""
        if self.kind in ("dense", "recurrence"):
            return self.width * (2 if self.how == "concat" else 1)
        if self.kind == "convolution" or (self.kind == "resampled" and self.how != "maxima"):
            return self.width
        return inputs * 2 if self.kind == "doubled" else inputs

    def traced(self, x: Any, params: Any) -> Any:
        """The layer in a model."""
        if self.kind == "recurrence":
            ways = [False, True] if self.how in MERGES else [self.how == "backward"]
            made = [
                sn.RNN(step, own, memory=self.width, reverse=way)(x)[0]
                for own, way in zip(params, ways, strict=True)
            ]
            return MERGES[self.how](*made) if self.how in MERGES else made[0]
        if self.kind == "centred":
            return x - sn.expand(sn.reduce(x, self.how), x)
        if self.kind == "convolution":
            return sn.conv1d(x, params, padding=self.how, dilation=DILATIONS[self.how])
        if self.kind == "resampled":
            return RESAMPLED[self.how](x, params)
        return self.of_steps(x, params)

    def of_steps(self, x: Any, params: Any) -> Any:
        """A layer of single steps."""
        if self.kind == "dense":
            return x @ params["W"] + params["b"]
        if self.kind == "doubled":
            return np.concatenate([x, x * x], axis=-1)
        return ACTIVATIONS[self.how](x)

    def plain(self, x: Array, params: Any) -> Array:
        """The layer of one sequence, [steps, features]."""
        if self.kind == "recurrence":
            ways = [False, True] if self.how in MERGES else [self.how == "backward"]
            made = [loop(x, own, way) for own, way in zip(params, ways, strict=True)]
            return MERGES[self.how](*made) if self.how in MERGES else made[0]
        if self.kind == "centred":
            return x - REDUCTIONS[self.how](x)
        if self.kind == "convolution":
            reach = (SIZE - 1) * DILATIONS[self.how]
            before = reach if self.how == "causal" else reach // 2
            wide = np.concatenate([np.zeros((before, x.shape[1])), x, np.zeros((reach - before, x.shape[1]))])
            starts = range(0, reach + 1, DILATIONS[self.how])
            return sum(
                (wide[start : start + len(x)] @ params[..., n].T for n, start in enumerate(starts)),
                np.zeros((len(x), self.width)),
            )
        if self.kind == "resampled":
            return ALONE[self.how](x, params)
        return self.of_steps(x, params)


def strided(x: Array, params: Array, stride: int, before: int) -> Array:
    """A convolution of one sequence with as many zeros behind it as ahead; empty for an empty sequence."""
    wide = np.concatenate([np.zeros((before, x.shape[1])), x, np.zeros((before, x.shape[1]))])
    firsts = range(0, len(wide) - SIZE + 1, stride) if len(x) else ()
    made = [sum(wide[first + n] @ params[..., n].T for n in range(SIZE)) for first in firsts]
    return np.array(made).reshape(len(made), len(params))


def largest(x: Array, params: Array) -> Array:
    """The larger one of every two steps of one sequence, and the last step where their number is odd."""
    return np.array([x[first : first + 2].max(axis=0) for first in range(0, len(x), 2)]).reshape(
        -1, x.shape[1]
    )


def more(x: Array, params: Array) -> Array:
    """A transposed convolution of one sequence."""
    made = np.zeros((2 * len(x) + 1 if len(x) else 0, len(params)))
    for step, values in enumerate(x):
        for n in range(SIZE):
            made[2 * step + n] += params[..., n] @ values
    return made


RESAMPLED: dict[str, Callable[[Any, Any], Any]] = {
    "strided": lambda x, params: sn.conv1d(x, params, stride=2, padding=1),
    "valid": lambda x, params: sn.conv1d(x, params, padding="valid"),
    "maxima": lambda x, params: sn.max_pool1d(x, 2, padding=(0, 1)),
    "transposed": lambda x, params: sn.conv_transpose1d(x, np.transpose(params, (1, 0, 2)), stride=2),
}
ALONE: dict[str, Callable[[Array, Array], Array]] = {
    "strided": lambda x, params: strided(x, params, 2, 1),
    "valid": lambda x, params: strided(x, params, 1, 0),
    "maxima": largest,
    "transposed": more,
}
"""The layers after which there are other numbers of steps, in models and of one sequence."""


def loop(x: Array, params: Any, reverse: bool) -> Array:
    """The leaky unit over one sequence."""
    h, outputs = np.zeros((1, len(params["R"]))), np.zeros((len(x), len(params["R"])))
    for at in reversed(range(len(x))) if reverse else range(len(x)):
        outputs[at : at + 1], h = step(x[at : at + 1], h, params)
    return outputs


@dataclass(frozen=True)
class RandomModel:
    """Layers one after the other, some of which read the layer before the last too, and their outputs.

    skips: the layers behind which the input of the layer is joined to its output. ends: the reductions of the
    last layer that are outputs, besides its values of each step where `steps` is true.
    """

    layers: tuple[Layer, ...]
    skips: tuple[bool, ...]
    ends: tuple[str, ...]
    steps: bool
    params: tuple[Any, ...]
    table: Array

    @property
    def structure(self) -> Any:
        """Its parameters as a graph takes them."""
        return {"table": self.table, "layers": self.params}

    def __call__(self, words: Any, params: Any) -> Any:
        """The model, for `sn.Graph`."""
        x = params["table"][words]
        for layer, skip, own in zip(self.layers, self.skips, params["layers"], strict=True):
            y = layer.traced(x, own)
            x = np.concatenate([x, y], axis=-1) if skip else y
        outputs = {how: sn.reduce(x, how) for how in self.ends}
        return outputs | ({"steps": x} if self.steps else {})

    def plain(self, words: Array) -> dict[str, Array]:
        """The outputs for one sequence, in NumPy."""
        x = self.table[words]
        for layer, skip, own in zip(self.layers, self.skips, self.params, strict=True):
            y = layer.plain(x, own)
            x = np.concatenate([x, y], axis=-1) if skip else y
        outputs = {how: REDUCTIONS[how](x) for how in self.ends}
        return outputs | ({"steps": x} if self.steps else {})


KINDS = {
    "dense": ("",),
    "activation": tuple(ACTIVATIONS),
    "doubled": ("",),
    "centred": ("mean", "last", "first"),
    "convolution": ("causal", "same"),
    "resampled": tuple(RESAMPLED),
    "recurrence": ("forward", "backward", *MERGES),
}


@st.composite
def random_models(draw: st.DrawFn, convolutions: bool = True) -> RandomModel:
    """Models of one to five layers, at least one of which is a recurrence.

    convolutions: whether some may be convolutions.
    """
    count = draw(st.integers(1, 5))
    some = [kind for kind in KINDS if convolutions or kind not in ("convolution", "resampled")]
    kinds = [draw(st.sampled_from([*some, "recurrence"])) for _ in range(count)]
    kinds[draw(st.integers(0, count - 1))] = "recurrence"
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers, skips, params = list[Layer](), list[bool](), list[Any]()
    inputs = first = draw(st.integers(1, 4))
    for kind in kinds:
        layer = Layer(kind, draw(st.sampled_from(KINDS[kind])), draw(st.integers(1, 5)))
        params.append(layer.params(random, inputs))
        layers.append(layer)
        skips.append(draw(st.booleans()) and kind != "resampled")
        inputs = layer.outputs(inputs) + (inputs if skips[-1] else 0)
    ends = draw(st.lists(st.sampled_from([*REDUCTIONS]), unique=True, max_size=3))
    steps = draw(st.booleans()) or not ends
    table = random.normal(size=(WORDS, first))
    return RandomModel(tuple(layers), tuple(skips), tuple(ends), steps, tuple(params), table)
