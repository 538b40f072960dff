"""Known cells in many spellings: a `Spelling` says how each part of the equations is written.

A test names only what differs from the plainest way, and hypothesis draws all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.compiler.net import LevelSizes, Recur, interpret, widened
from stepnet.compiler.plan.recognise import Recognised
from stepnet.layout.equations import ACTIVATIONS, step_of
from stepnet.layout.semantics import GATES

Array = np.ndarray
X, H = 3, 4

SIGMOIDS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": sn.sigmoid,
    "by tanh": lambda a: 0.5 * (1 + np.tanh(a / 2)),
    "by tanh, distributed": lambda a: np.tanh(0.5 * a) * 0.5 + 0.5,
    "by exp": lambda a: 1 / (1 + np.exp(-a)),
    "by reciprocal": lambda a: np.reciprocal(np.exp(-a) + 1),
    "by exp of a": lambda a: np.exp(a) / (1 + np.exp(a)),
    "negated": lambda a: 1 - sn.sigmoid(-a),
}
TANHS: dict[str, Callable[[Any], Any]] = {
    "tanh": np.tanh,
    "by sigmoid": lambda a: 2 * sn.sigmoid(2 * a) - 1,
    "by exp": lambda a: (1 - np.exp(-2 * a)) / (1 + np.exp(-2 * a)),
    "by exps": lambda a: (np.exp(a) - np.exp(-a)) / (np.exp(a) + np.exp(-a)),
    "negated": lambda a: -np.tanh(-a),
}
# How z chooses between p, where it is 1, and q.
CHOICES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "z p + (1 - z) q": lambda z, p, q: z * p + (1 - z) * q,
    "q + z (p - q)": lambda z, p, q: q + z * (p - q),
    "p + (1 - z) (q - p)": lambda z, p, q: p + (1 - z) * (q - p),
    "p - (z - 1) (q - p)": lambda z, p, q: p - (z - 1) * (q - p),
    "q - z q + z p": lambda z, p, q: q - z * q + z * p,
    "halves": lambda z, p, q: (p + q) / 2 + (2 * z - 1) * (p - q) * 0.5,
}
MATRICES = ("joined", "apart", "x|h", "h|x", "transposed", "stacked", "interleaved", "halves of x", "scaled")
BIASES = ("none", "one", "two", "number", "vector", "broadcast")


@dataclass(frozen=True)
class Spelling:
    """One way to write a cell."""

    cell: str = "gru"
    reset: str = "after"
    update: str = "keep"
    matrices: str = "joined"
    bias: str = "two"
    sigmoid: str = "sigmoid"
    tanh: str = "tanh"
    choice: str = "z p + (1 - z) q"
    flipped: bool = False
    """True if the update gate of a GRU, or the forget gate, is computed as 1 - sigmoid(-a)."""
    memory: str = "hc"
    peephole: bool = False
    coupled: bool = False
    projected: bool = False
    clip: float = 0.0
    cell_clip: float = 0.0
    gate: str = "sigmoid"
    candidate: str = "tanh"
    output: str = "tanh"

    @property
    def gates(self) -> str:
        """The gates that have parameters."""
        return GATES[self.cell].replace("i", "") if self.coupled else GATES[self.cell]

    @property
    def width(self) -> int:
        """The size of h."""
        return H - 1 if self.projected else H

    def params(self, dtype: Any = np.float64) -> dict[str, Array]:
        """Random parameters, in the shapes of this way to write them."""
        random = np.random.default_rng(len(repr(self)))
        count = len(self.gates)
        shapes: dict[str, tuple[int, ...]] = {
            "joined": {"W": (X, count * H), "R": (self.width, count * H)},
            "transposed": {"W": (count * H, X), "R": (count * H, self.width)},
            "stacked": {"W": (count, X, H), "R": (count, self.width, H)},
            "interleaved": {"W": (X, H, count), "R": (self.width, H, count)},
            "x|h": {"K": (X + self.width, count * H)},
            "h|x": {"K": (self.width + X, count * H)},
            "halves of x": {"W": (X, count * H), "R": (self.width, count * H)},
            "scaled": {"W": (X, count * H), "R": (self.width, count * H), "s": (self.width,), "t": (H,)},
            "apart": {
                f"{name}{gate}": (size, H)
                for name, size in (("W", X), ("R", self.width))
                for gate in self.gates
            },
        }[self.matrices]
        if self.bias in ("one", "two"):
            shapes["b"] = (count * H,)
        if self.bias == "two":
            shapes["d"] = (count * H,)
        if self.bias == "broadcast":
            shapes["b"] = (1,)
        if self.peephole:
            shapes["p"] = (3, H)
        if self.projected:
            shapes["P"] = (H, self.width)
        return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}

    def __str__(self) -> str:
        usual = {field.name: field.default for field in fields(self)}
        return (
            " ".join(f"{name}={value}" for name, value in vars(self).items() if value != usual[name]) or "gru"
        )

    # ---- the equations

    def step(self, x: Any, memory: Any, params: dict[str, Any]) -> Any:
        """The step itself."""
        if self.cell == "lstm":
            return self.lstm(x, memory, params)
        h = memory
        n = self.candidate_of(x, h, params)
        if self.cell == "rnn":
            h = self.act("candidate", n)
            return h, h
        z = self.act("gate", self.given("z", x, h, params))
        if self.flipped:
            z = 1 - self.act("gate", -self.given("z", x, h, params))
        n = self.act("candidate", n)
        h = CHOICES[self.choice](z, *((h, n) if self.update == "keep" else (n, h)))
        return h, h

    def candidate_of(self, x: Any, h: Any, params: dict[str, Any]) -> Any:
        """The candidate of an RNN or GRU, before its activation."""
        if self.cell == "rnn":
            return self.given("n", x, h, params)
        r = self.act("gate", self.given("r", x, h, params))
        if self.reset == "before":
            return self.given("n", x, r * h, params)
        return self.from_x("n", x, params) + r * self.from_h("n", h, params)

    def lstm(self, x: Any, memory: Any, params: dict[str, Any]) -> Any:
        """The step of an LSTM."""
        h, c = (memory[name] for name in "hc")
        given = {gate: self.given(gate, x, h, params) for gate in self.gates}
        if self.peephole:
            given |= {
                gate: given[gate] + params["p"]["ifo".index(gate)] * c for gate in "if" if gate in given
            }
        f = self.act("gate", given["f"])
        if self.flipped:
            f = 1 - self.act("gate", -given["f"])
        g = self.act("candidate", given["g"])
        c = CHOICES[self.choice](f, c, g) if self.coupled else g * self.act("gate", given["i"]) + f * c
        c = np.clip(c, -self.cell_clip, self.cell_clip) if self.cell_clip else c
        o = given["o"] + params["p"][2] * c if self.peephole else given["o"]
        h = self.act("output", c) * self.act("gate", o)
        h = h @ params["P"] if self.projected else h
        return h, {name: {"h": h, "c": c}[name] for name in self.memory}

    def act(self, which: str, a: Any) -> Any:
        """An activation as it is written."""
        name = getattr(self, which)
        if self.clip and which != "output":
            a = np.clip(a, -self.clip, self.clip)
        ways = {"sigmoid": SIGMOIDS[self.sigmoid], "tanh": TANHS[self.tanh]}
        return ways.get(name, ACTIVATIONS[name])(a)

    def given(self, gate: str, x: Any, h: Any, params: dict[str, Any]) -> Any:
        """The input of a gate."""
        if self.matrices in ("x|h", "h|x"):
            both = np.concatenate([x, h] if self.matrices == "x|h" else [h, x], axis=-1)
            a = self.columns(both @ params["K"], gate)
            return self.biased(self.biased(a, gate, "b", params), gate, "d", params)
        return self.from_h(gate, h, params) + self.from_x(gate, x, params)

    def columns(self, joined: Any, gate: str) -> Any:
        """The part of joined gates that is one of them."""
        place = self.gates.index(gate)
        return joined[..., place * H : (place + 1) * H]

    def biased(self, a: Any, gate: str, name: str, params: dict[str, Any]) -> Any:
        """With the bias b or d, however it is written."""
        if name == "b" and self.bias == "number":
            return a + 0.5
        if name == "b" and self.bias == "vector":
            return a + np.arange(H, dtype=np.float32) / 4
        if name == "b" and self.bias == "broadcast":
            return a + params["b"]
        return a + self.columns(params[name], gate) if name in params else a

    def from_x(self, gate: str, x: Any, params: dict[str, Any]) -> Any:
        """The product of the input."""
        if self.matrices == "halves of x":
            W = params["W"]
            a = self.columns(x[:, 1:] @ W[1:], gate) + self.columns(x[:, :1] @ W[:1], gate)
        else:
            a = self.product("W", x, gate, params, X)
        return self.biased(a, gate, "b", params)

    def from_h(self, gate: str, h: Any, params: dict[str, Any]) -> Any:
        """The product of the memory."""
        h = h * params["s"] if self.matrices == "scaled" else h
        a = self.product("R", h, gate, params, self.width)
        a = a * params["t"] * -2 if self.matrices == "scaled" else a
        return self.biased(a, gate, "d", params)

    def product(self, name: str, value: Any, gate: str, params: dict[str, Any], size: int) -> Any:
        """The product with W or R, or with its part of K."""
        place = self.gates.index(gate)
        match self.matrices:
            case "apart":
                return value @ params[name + gate]
            case "transposed":
                return self.columns(value @ params[name].T, gate)
            case "stacked":
                return value @ params[name][place]
            case "interleaved":
                flat = params[name].reshape(size, H * len(self.gates))
                return (value @ flat).reshape(-1, H, len(self.gates))[:, :, place]
            case "x|h" | "h|x":
                first = name == ("W" if self.matrices == "x|h" else "R")
                K = params["K"][:size] if first else params["K"][-size:]
                return self.columns(value @ K, gate)
            case _:
                return self.columns(value @ params[name], gate)

    def rnn(self, dtype: Any = np.float64) -> sn.RNN:
        """The recurrence."""
        sizes = {"h": self.width, "c": H}
        memory: Any = {name: sizes[name] for name in self.memory} if self.cell == "lstm" else H
        step = partial(Spelling.step, self)
        return sn.RNN(step, self.params(dtype), memory=memory, inputs=sn.Spec(X, dtype))

    @property
    def semantics(self) -> dict[str, Any]:
        """The fields of the semantics that it has to be recognised with, except the sense of z."""
        known: dict[str, Any] = {
            "gate_activation": self.gate,
            "candidate_activation": self.candidate,
            "clip": self.clip,
        }
        if self.cell == "gru":
            known["reset"] = self.reset
        if self.cell == "rnn":
            del known["gate_activation"]
        if self.cell == "lstm":
            known |= {"coupled": self.coupled, "output_activation": self.output, "cell_clip": self.cell_clip}
        return known


# ---- the recognised cell, run ------------------------------------------------------------------------------


def arrays_of(known: Recognised, body_inputs: list[Array]) -> dict[str, Array]:
    """The arrays of a cell in float64, by name, from those of the body's inputs."""
    wide = replace(known, weights=widened(known.weights))
    return wide.arrays(known.recur.operands_by_kind(body_inputs).others)


def by_gates(known: Recognised, arrays: dict[str, Array]) -> dict[str, Any]:
    """The arrays as the equations of the semantics take them."""
    gates = GATES[known.cell]
    wide = {name: array for name, array in arrays.items() if name in "WRbd"}
    params: dict[str, Any] = {
        name: {
            gate: array[..., place * known.hidden : (place + 1) * known.hidden]
            for place, gate in enumerate(gates)
        }
        for name, array in wide.items()
    }
    if "p" in arrays:
        params["p"] = {gate: arrays["p"][place] for place, gate in enumerate("ifo")}
    return params | ({"P": arrays["P"]} if "P" in arrays else {})


def both(recur: Recur, known: Recognised, steps: int = 3, rows: int = 3) -> tuple[list[Array], list[Array]]:
    """The memories after some steps on random numbers, in float64: by the body, and by the cell."""
    random = np.random.default_rng(7)
    body = widened(recur.body)
    scale = 0.5  # so that gates do not saturate, where all functions are alike
    inputs = [
        scale * random.normal(size=t.shape if not t.extent else (rows, *t.shape))
        for t in (body.type_of(number) for number in body.inputs)
    ]
    kinds = recur.operands_by_kind(inputs)
    params = by_gates(known, arrays_of(known, inputs))
    ours, theirs = list(kinds.memories), list(kinds.memories)
    step = step_of(known.semantics)
    for _ in range(steps):
        xs = [scale * random.normal(size=array.shape) for array in kinds.sequences]
        results = interpret(body, [*xs, *ours, *kinds.others], LevelSizes(rows), np.zeros(rows, np.int64))
        ours = recur.results_by_kind(results).memories
        x = np.concatenate(
            [np.zeros((rows, 0)), *(xs[place].reshape(rows, -1) for place in known.sequences)], -1
        )
        if known.projected is not None:
            x = x[:, list(known.projected)]
            params["W"] = dict(
                zip(GATES[known.cell], np.split(np.eye(x.shape[1]), len(GATES[known.cell]), 1), strict=True)
            )
        with np.errstate(all="ignore"):
            if known.c is None:
                theirs[known.h] = step(x, theirs[known.h], params)[1]
            else:
                after = step(x, {"h": theirs[known.h], "c": theirs[known.c]}, params)[1]
                theirs[known.h], theirs[known.c] = after["h"], after["c"]
    return ours, theirs
