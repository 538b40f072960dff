"""Models that are built for one frame, with frames for them: each kind of operation and of memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.build import DeviceBuild, build

Array = np.ndarray
FRAMES = 9


@dataclass
class Numbers:
    """Parameters of a dtype: the same numbers in each. bits: the dtype of which they are numbers."""

    dtype: Any
    bits: Any = "f4"
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(39))

    def __call__(self, *shape: int, scale: float = 0.4) -> Array:
        """Random numbers, rounded to the dtype of bits."""
        return (self.random.normal(size=shape) * scale).astype(self.bits).astype(self.dtype)

    def rnn(self, name: str, inputs: int, hidden: int) -> sn.RNN:
        """The recurrence of a known cell."""
        params = sn.cells.CELLS[name].parameters(inputs, hidden)
        return sn.cells.rnn(name, {name: self(*value.shape) for name, value in params.items()})


def custom_step(x: Any, h: Any, params: Any) -> Any:
    """A cell that no library has, with a norm of layers."""
    h = np.maximum(x @ params["W"] + h @ params["R"] + params["b"], 0) * 0.5 + np.exp(-np.abs(h))
    return sn.layer_norm(h) * params["g"], h


def custom(numbers: Numbers) -> sn.RNN:
    """A recurrence of that cell."""
    params = {"W": numbers(6, 10), "R": numbers(10, 10, scale=0.1), "b": numbers(10), "g": numbers(10)}
    return sn.RNN(custom_step, params, memory=10, inputs=6)


def many_operations(x: Any, h: Any, params: Any) -> Any:
    """Operations of every kind: views, prefix sums, choices, rounding, tables and elementary functions."""
    shifted = np.concatenate([x[..., :3], h[..., 2:5]], -1)
    chosen, kept = np.argmax(x, -1), np.where(shifted > 0, shifted, -shifted * 0.1)
    blocks = np.swapaxes(np.reshape(x, (*x.shape[:-1], 2, 3)), -1, -2) @ params["U"]
    rounded = np.floor(x) + np.ceil(x) * np.rint(x * 3) + np.sign(x)
    curved = np.log1p(np.abs(x)) + np.sinh(x) * np.cosh(x) + np.arctan(x) + sn.erf(x)
    h = np.tanh(h * 0.5 + x[..., ::-1] + np.cumsum(x, -1) * 0.1 + kept + params["T"][chosen])
    powers = np.power(np.abs(x) + 0.1, 1.7) + np.sqrt(np.abs(x))
    zeros = np.cumsum(x * -0.0, -1)
    outputs = (
        h,
        rounded + curved,
        blocks.max(-1),
        chosen,
        powers,
        x[..., [0, 3, 1]],
        (x > 0) & (h > 0),
    )
    return (*outputs, zeros), h


def turned(x: Any, h: Any, params: Any) -> Any:
    """Angles of several sizes, and remainders."""
    h = np.sin(x * 32) * np.cos(x * 2.0**20) * params["a"] + h * 0.5
    return (h, np.tan(x) % 0.75, x // -0.5), h


def divided(x: Any, h: Any, params: Any) -> Any:
    """Remainders and whole quotients of float64."""
    h = x % params["a"] + h * 0.5
    return (h, x // params["a"], (x * 1e300) % 0.3), h


def swapped(x: Any, memory: Any, params: Any) -> Any:
    """Memories that take the places of others, and values that are read from last to first, also after the
    loop that computes what they become.
    """
    first, second, earlier, total = memory
    total = np.tanh(total[:, 0] + x)
    made = np.tanh(first + x)
    turned = made[..., ::-1] * second[..., ::-1]
    return first - second + earlier * params["a"] + turned + made + total, (second, made, x, total[:, None])


def sound(numbers: Numbers) -> sn.Graph:
    """A causal convolution, a recurrent layer and a classifier, as for words or noise."""
    gru = numbers.rnn("gru", 6, 10)

    def model(x: Any, params: Any) -> Any:
        """The model function."""
        y = np.tanh(sn.conv1d(x, params["w"], padding="causal", dilation=2) + params["b"])
        return sn.softmax(gru(y)[0] @ params["D"])

    return sn.Graph(model, {"w": numbers(6, 6, 3), "b": numbers(6), "D": numbers(10, 7)}, inputs=6)


def embedded(index: Any, params: Any) -> Any:
    """Words as indices of a table, whose negative ones count from the end."""
    return sn.layer_norm(params["T"][index] @ params["W"])


def looked_up(word: Any, h: Any, params: Any) -> tuple[Any, Any]:
    """A step that reads rows of a table and adds up products of them; its parameters may be float16."""
    h = np.tanh(params["T"][word] @ params["W"] + params["b"]) - h * 0.5
    return h, h


def tables(numbers: Numbers) -> sn.RNN:
    """A recurrence of that step, with a table and a matrix that are float16 unless it is in float64."""
    half = Numbers("f8" if numbers.dtype == "f8" else "f2", "f2")
    return sn.RNN(looked_up, {"T": half(9, 4), "W": half(4, 5), "b": numbers(5)}, memory=5)


def quantized(numbers: Numbers) -> sn.Stack:
    """Two layers with products of int8."""
    samples = [frames_of("quantized")[None].astype(numbers.dtype)]
    return sn.quantize(sn.Stack([numbers.rnn("gru", 6, 10), numbers.rnn("lstm", 10, 9)]), samples, "int8")


def halved(name: str, numbers: Numbers) -> tuple[Any, Any]:
    """One of `MODELS` whose parameters are numbers of float16, quantized to it where it is in float32."""
    model, inputs = MODELS[name](Numbers(numbers.dtype, "f2"))
    if numbers.dtype == "f8":
        return model, inputs
    return sn.quantize(model, [frames_of(name)[None]], "float16"), inputs


def pruned(numbers: Numbers) -> sn.RNN:
    """A GRU with an input's weights in blocks of 4x1 and recurrent ones of 16x1, of which most are zeros."""
    params = dict(numbers.rnn("gru", 6, 16).params)
    kept = np.random.default_rng(41).random((22, 12)) < 0.12
    params["W"] = params["W"] * np.repeat(kept[:6], 4, axis=1)
    params["R"] = params["R"] * np.repeat(kept[6:, :3], 16, axis=1)
    return sn.cells.rnn("gru", params)


MODELS: dict[str, Callable[[Numbers], tuple[Any, Any]]] = {
    "gru": lambda numbers: (numbers.rnn("gru", 3, 12), 3),
    "lstm": lambda numbers: (numbers.rnn("lstm", 5, 13), 5),
    "stack": lambda numbers: (sn.Stack([numbers.rnn("gru", 6, 10), numbers.rnn("lstm", 10, 9)]), 6),
    "quantized": lambda numbers: (quantized(numbers), 6),
    "pruned": lambda numbers: (pruned(numbers), 6),
    "pruned_int8": lambda numbers: (
        sn.quantize(pruned(numbers), [frames_of("pruned")[None].astype(numbers.dtype)], "int8"),
        6,
    ),
    "half": lambda numbers: halved("stack", numbers),
    "half_pruned": lambda numbers: halved("pruned", numbers),
    "half_tables": lambda numbers: (tables(numbers), sn.Spec((), "int32")),
    "bfloat16": lambda numbers: (
        sn.quantize(MODELS["stack"](numbers)[0], [frames_of("stack")[None]], "bfloat16"),
        6,
    ),
    "sound": lambda numbers: (sound(numbers), 6),
    "custom": lambda numbers: (custom(numbers), 6),
    "operations": lambda numbers: (
        sn.RNN(many_operations, {"T": numbers(6, 6), "U": numbers(2, 4)}, memory=6),
        6,
    ),
    "turned": lambda numbers: (sn.RNN(turned, {"a": numbers(6)}, memory=6), 6),
    "divided": lambda numbers: (
        sn.RNN(divided, {"a": numbers(6).astype("f8")}, memory=6),
        sn.Spec(6, "float64"),
    ),
    "swapped": lambda numbers: (sn.RNN(swapped, {"a": numbers(4)}, memory=[4, 4, 4, (1, 4)]), 4),
    "embedded": lambda numbers: (
        sn.Graph(embedded, {"T": numbers(9, 4), "W": numbers(4, 5)}),
        sn.Spec((), "int32"),
    ),
}
"""For each model: it, and the features of its inputs."""


INPUTS = {"gru": 3, "lstm": 5, "swapped": 4}
"""The features of inputs that are not 6."""


def frames_of(name: str) -> Array:
    """Frames for a model."""
    random = np.random.default_rng(40)
    if name in ("embedded", "half_tables"):
        return random.integers(-9, 9, FRAMES).astype("i4")
    dtype = "f8" if name == "divided" else "f4"
    return random.normal(size=(FRAMES, INPUTS.get(name, 6))).astype(dtype)


def built(name: str, folder: Path, target: str = "c", **options: Any) -> tuple[DeviceBuild, Array]:
    """A model that is built with the name m, and frames for it: one of `MODELS`, or a GRU in integers alone,
    whose name is the dtype of its inputs.
    """
    if name in MODELS:
        model, inputs = MODELS[name](Numbers("f4"))
        made = build(model, folder, name="m", target=target, inputs=inputs, **options)
        assert isinstance(made, DeviceBuild)
        return made, frames_of(name)
    frames = frames_of(name)
    model = sn.quantize(Numbers("f4").rnn("gru", 6, 10), [frames[None]], "int8", activations=name)
    made = build(model, folder, name="m", target=target, inputs=6, **options)
    assert isinstance(made, DeviceBuild)
    (given,) = made.program.of("input")
    assert given.scale is not None
    most = np.iinfo(given.dtype).max
    return made, np.clip(np.rint(frames / given.scale), -most, most).astype(given.dtype)
