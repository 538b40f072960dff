"""Models that are quantized to integers alone, and their inputs."""

from typing import Any

import numpy as np

import stepnet as sn
from stepnet.compiler.targets.frame import FrameProgram, codes_of


def codes(program: FrameProgram, sequences: list[np.ndarray]) -> list[np.ndarray]:
    """Sequences as the integers that a program of one input takes."""
    (end,) = program.of("input")
    return [codes_of(end, each) for each in sequences]


def many(layer: sn.RNN) -> sn.Graph:
    """A model of all operations that have a form in integers."""

    def model(x: Any, params: Any) -> Any:
        """The model function."""
        y = layer(x)[0]
        z = sn.softmax(y @ params["w"] + params["b"])
        kept = np.maximum(-y, x[..., [0, 1, 2, 3, 3, 2, 1, 0]]) * 0.5
        both = np.concatenate([y[..., ::-1], x], -1)
        rates = np.abs(y) / (np.exp(y) + 1)
        chosen = np.where((y > 0.1) & ~(x[..., [0, 0, 1, 1, 2, 2, 3, 3]] > y), np.sign(y), y * (y < 0))
        curved = sn.softplus(x) + sn.gelu(x) - sn.silu(x) + sn.hard_sigmoid(x) * sn.elu(x)
        rooted = np.log1p(np.sqrt(np.abs(y) + 0.1)) - np.log(np.abs(x[..., :1]) + 0.5) + np.expm1(y)
        whole = (x * 3).astype(np.int32)
        outputs = z, kept, both, rates, np.argmax(z, -1), y.sum(-1) - np.minimum(y, 0.1).max(-1)
        return (*outputs, chosen, curved, rooted, whole, y > 0, whole[..., 0].astype(np.float32) * 0.5)

    random = np.random.default_rng(1)
    params = {"w": random.normal(size=(8, 5)).astype("f4"), "b": random.normal(size=5).astype("f4")}
    return sn.Graph(model, params, inputs=4)


def gru() -> sn.RNN:
    """A layer."""
    random = np.random.default_rng(2)
    params = sn.cells.CELLS["gru"].parameters(inputs=4, hidden=8)
    own = {name: (random.normal(size=each.shape) * 0.4).astype("f4") for name, each in params.items()}
    return sn.cells.rnn("gru", own)


FRAMES = np.random.default_rng(3).normal(size=(2, 25, 4)).astype("f4")
