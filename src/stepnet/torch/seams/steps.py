"""The steps of the seams: cells of stepnet, with what transformers does around them in the same function.

A step is a frozen dataclass where it has options: its net is kept by it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.cells.delta import gated_delta_rule, kda
from stepnet.cells.state_space import mamba, mamba2
from stepnet.cells.xlstm import divided
from stepnet.compiler.trace.functions import sigmoid, silu, softplus


@dataclass(frozen=True)
class StepSize:
    """Rule that makes a step size from dt: adds the parameter dt_bias if there is one, then limits the sum.

    positive: whether softplus makes the sum positive.
    low, high: the limits.
    """

    positive: bool
    low: float = 0.0
    high: float = float("inf")

    def __call__(self, dt: Any, params: Any) -> Any:
        """Computes the step size from dt."""
        dt = dt + params["dt_bias"] if "dt_bias" in params else dt
        dt = softplus(dt) if self.positive else dt
        dt = np.maximum(dt, self.low) if self.low > 0 or not self.positive else dt
        return np.minimum(dt, self.high) if self.high < float("inf") else dt


@dataclass(frozen=True)
class StateSpace:
    """Step of Mamba, or with `heads` of Mamba-2. Its output is gated by the input z if there is one."""

    rate: StepSize
    heads: bool

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes the output and the next memory."""
        cell = mamba2 if self.heads else mamba
        inputs = {name: x[name] for name in ("x", "B", "C")} | {"dt": self.rate(x["dt"], params)}
        y, memory = cell(inputs, memory, {name: params[name] for name in ("A", "D") if name in params})
        return (y * silu(x["z"]) if "z" in x else y), memory


@dataclass(frozen=True)
class Delta:
    """Step of the gated delta rule; of Kimi's, if g has a decay for each feature of keys.

    normed: whether queries and keys are divided by their norms. Queries are divided by the root of their
    size. If there are more heads of values than of keys, neighbouring heads share a key.
    """

    normed: bool

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes the output and the next memory."""
        q, k = (normed(x[name]) if self.normed else x[name] for name in ("q", "k"))
        q = q * q.shape[-1] ** -0.5
        heads, shared = int(x["v"].shape[1]), int(k.shape[1])
        if heads != shared:
            owner = [head // (heads // shared) for head in range(heads)]
            q, k = q[:, owner], k[:, owner]
        cell = kda if len(x["g"].shape) == 3 else gated_delta_rule
        return cell({**x, "q": q, "k": k}, memory)


@dataclass(frozen=True)
class MatrixLSTM:
    """Step of the mLSTM, whose memory is (C, n, m). eps: added to the divisor of outputs."""

    eps: float

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes the output and the next memory."""
        query = x["q"] * x["q"].shape[-1] ** -0.5
        output, over, after = divided({**x, "q": query}, dict(zip("Cnm", memory, strict=True)))
        return output / (over + self.eps)[..., None], tuple(after.values())


def normed(x: Any) -> Any:
    """Divides vectors by their norms, with flash-linear-attention's constant under the root."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def linear_recurrence(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Step of an RG-LRU after its gates: h = a h + x.

    S. De and others, "Griffin: mixing gated linear recurrences with local attention for efficient language
    models", 2024 (arXiv 2402.19427).
    """
    h = x["a"] * memory + x["x"]
    return h, h


def weighted_mean(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Step of RWKV-4: a mean of values weighted by exp(key), whose weights decay.

    B. Peng and others, "RWKV: reinventing RNNs for the transformer era", 2023 (arXiv 2305.13048), appendix D:
    the sums are divided by exp(m), where m is the greatest exponent so far, so that nothing overflows. The
    vectors decay and first are parameters, or inputs.
    """
    k, v, (a, b, m) = x["k"], x["v"], memory
    decay, first = (x[name] if name in x else params[name] for name in ("decay", "first"))
    top = np.maximum(m, k + first)
    before, now = np.exp(m - top), np.exp(k + first - top)
    y = (before * a + now * v) / (before * b + now)
    decayed = m + decay
    top = np.maximum(decayed, k)
    before, now = np.exp(decayed - top), np.exp(k - top)
    return y, (before * a + now * v, before * b + now, top)


@dataclass(frozen=True)
class MambaLayer:
    """Step of a whole layer of Mamba: projections, convolution, state space and gate.

    eps: what the norms of dt, B and C, which Falcon-Mamba has, add to the mean square; empty without norms.
    """

    eps: tuple[float, ...]

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes the output [rows, features] and the next memory.

        Args:
            x: The input x [rows, features].
            memory: The last inputs of the convolution [rows, channels, kernel], and h
                [rows, channels, states].
            params: Weights as of `torch.nn.Linear` and `Conv1d`: in_proj, conv, conv_bias, x_proj, dt_proj,
                dt_bias, out_proj; A_log [channels, states] and D [channels]; in_bias and out_bias or none.
        """
        window, h = memory
        channels, states = params["A_log"].shape
        both = linear(x["x"], params["in_proj"], params.get("in_bias"))
        u, window = convolved(both[:, :channels], window, params)
        whole, rank = u @ params["x_proj"].T, params["dt_proj"].shape[1]
        parts = whole[:, :rank], whole[:, rank : rank + states], whole[:, rank + states :]
        dt, B, C = map(root_mean_square_normed, parts, self.eps) if self.eps else parts
        inputs = {
            "x": u,
            "dt": softplus(linear(dt, params["dt_proj"], params.get("dt_bias"))),
            "B": B,
            "C": C,
        }
        y, h = mamba(inputs, h, {"A": -np.exp(params["A_log"]), "D": params["D"]})
        return linear(y * silu(both[:, channels:]), params["out_proj"], params.get("out_bias")), (window, h)


@dataclass(frozen=True)
class Mamba2Layer:
    """Step of a whole layer of Mamba-2: projections, convolution, state space, and the norm of the gated
    output.

    groups: the number of groups of heads that share B and C.
    size: the number of features that the norm is over.
    eps: what the norm adds to the mean square.
    """

    groups: int
    size: int
    eps: float

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes the output [rows, features] and the next memory: the last inputs of the convolution [rows,
        channels, kernel], and h [rows, heads, features, states].
        """
        window, h = memory
        heads, features, states = h.shape[1:]
        inner, shared = heads * features, self.groups * states
        parts = linear(x["x"], params["in_proj"], params.get("in_bias"))
        gate, u, dt = parts[:, :inner], parts[:, inner:-heads], parts[:, -heads:]
        u, window = convolved(u, window, params)
        inputs = {
            "x": u[:, :inner].reshape(-1, heads, features),
            "dt": softplus(dt + params["dt_bias"]),
            "B": u[:, inner : inner + shared].reshape(-1, self.groups, states),
            "C": u[:, inner + shared :].reshape(-1, self.groups, states),
        }
        y, h = mamba2(inputs, h, {"A": -np.exp(params["A_log"]), "D": params["D"]})
        y = (y.reshape(-1, inner) * silu(gate)).reshape(-1, inner // self.size, self.size)
        y = root_mean_square_normed(y, self.eps).reshape(-1, inner) * params["norm"]
        return linear(y, params["out_proj"], params.get("out_bias")), (window, h)


@dataclass(frozen=True)
class DeltaLayer:
    """Step of a whole layer of the gated delta rule: projections, convolution, delta rule, norm and gate.

    groups: the number of heads of keys. In the projections the queries, keys, values and gates of such a head
        lie next to one another.
    eps: what the norm adds to the mean square.
    """

    groups: int
    eps: float

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes the output [rows, features] and the next memory: the last inputs of the convolution [rows,
        channels, kernel], and the state [rows, heads, key, value].
        """
        window, state = memory
        heads, key, value = state.shape[1:]
        keys, shared = self.groups * key, heads // self.groups
        parts = linear(x["x"], params["in_proj"], None).reshape(-1, self.groups, 2 * (key + shared * value))
        begin, gate = 2 * key, parts[..., 2 * key + shared * value :].reshape(-1, heads, value)
        rates = linear(x["x"], params["rates"], None).reshape(-1, self.groups, 2 * shared)
        vectors = parts[..., :key], parts[..., key:begin], parts[..., begin : begin + shared * value]
        sizes = keys, keys, heads * value
        u = np.concatenate([v.reshape(-1, n) for v, n in zip(vectors, sizes, strict=True)], axis=-1)
        u, window = convolved(u, window, params)
        inputs = {
            "q": u[:, :keys].reshape(-1, self.groups, key),
            "k": u[:, keys : 2 * keys].reshape(-1, self.groups, key),
            "v": u[:, 2 * keys :].reshape(-1, heads, value),
            "g": -np.exp(params["A_log"])
            * softplus(rates[..., shared:].reshape(-1, heads) + params["dt_bias"]),
            "beta": sigmoid(rates[..., :shared].reshape(-1, heads)),
        }
        o, state = Delta(normed=True)(inputs, state, None)
        o = root_mean_square_normed(o, self.eps) * params["norm"] * silu(gate)
        return linear(o.reshape(-1, heads * value), params["out_proj"], None), (window, state)


@dataclass(frozen=True)
class ResidualBlock:
    """Step of a block: a layer's step behind a norm, added to the block's input.

    eps: what the norm adds to the mean square.
    """

    layer: Callable[[Any, Any, Any], Any]
    eps: float

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes the output [rows, features] and the layer's next memory. The parameter `scale` is the
        norm's weight.
        """
        u = root_mean_square_normed(x["x"], self.eps) * params["scale"]
        y, memory = self.layer({"x": u}, memory, params)
        return x["x"] + y, memory


def convolved(u: Any, window: Any, params: Any) -> tuple[Any, Any]:
    """Computes a causal convolution and its activation for one step.

    u: new inputs [rows, channels]. window: the last inputs [rows, channels, kernel]. Returns outputs [rows,
    channels], and the window with the new inputs.
    """
    window = np.concatenate([window[..., 1:], u[:, :, None]], axis=-1)
    u = (window * params["conv"][:, 0]).sum(-1)
    return silu(u + params["conv_bias"] if "conv_bias" in params else u), window


def root_mean_square_normed(x: Any, eps: float) -> Any:
    """Divides vectors by the root of their mean square, to which eps is added."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """Computes a linear layer as `torch.nn.Linear` does. bias: None for no bias."""
    y = x @ weight.T
    return y if bias is None else y + bias
