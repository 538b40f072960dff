"""MiniMax's lightning attention, S = a S + k v and o = q S, whose decays a are constants of the layer.

transformers writes it into the `forward` of the layer, in blocks of steps; stepnet replaces that method.
Z. Qin and others, "Lightning attention-2: a free lunch for handling unlimited sequence lengths in large
language models", 2024 (arXiv 2401.04658).
"""

from typing import Any

import numpy as np

from stepnet.cells.keyed import read, written
from stepnet.compiler.trace.functions import sigmoid, silu
from stepnet.compiler.values.records import dataclass
from stepnet.torch.patches.transformers.adjoints import Decayed, decayed, in_one_dtype, needs_gradients
from stepnet.torch.patches.transformers.blocks import LINEAR, NAMES, linear, root_mean_square_normed
from stepnet.torch.patches.transformers.records import FILES, CachedStates, FunctionPatch, TokenLayer
from stepnet.torch.patches.transformers.scan import dtype_of, scan
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


@dataclass(frozen=True)
class LightningLayer:
    """Step of a whole layer of lightning attention: projections, recurrence, norm and gate.

    heads: the number of heads. size: the number of features of a head.
    eps: the number that the norm adds to the mean square.
    """

    heads: int
    size: int
    eps: float

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Runs a token through a layer of lightning attention: computes the output [rows, features] and the
        next state [rows, heads, key, value].

        x: a dict of the input x [rows, features]. memory: the state before.
        params: the weights by name; `MIXERS` says where the layer has them.
        """
        size = self.size
        vectors = silu(linear(x["x"], params["in_proj"], None)).reshape(-1, self.heads, 3 * size)
        q, k, v = vectors[..., :size], vectors[..., size : 2 * size], vectors[..., 2 * size :]
        state = written(np.exp(-params["slopes"]) * memory, k, v)
        o = root_mean_square_normed(read(state, q).reshape(-1, self.heads * size), self.eps)
        o = sigmoid(linear(x["x"], params["gate"], None)) * (o * params["norm"])
        return linear(o, params["out_proj"], None), state


def lightning_attention(
    self: Any, hidden_states: Any, position_embeddings: Any, attention_mask: Any, past_key_values: Any = None
) -> tuple[Any, Any]:
    """Computes a layer of lightning attention in place of `MiniMaxLightningAttention.forward`.

    Returns the outputs [batch, time, features] and the last state [batch, heads, key, value], which it also
    saves in the cache.

    Args:
        self: The layer.
        hidden_states: The inputs [batch, time, features].
        position_embeddings: Ignored, as by transformers.
        attention_mask: [batch, time], by which queries, keys and values are multiplied; or none.
        past_key_values: The cache with the state before, or none.
    """
    rows, steps, _ = hidden_states.shape
    heads, size = self.num_attention_heads, self.head_dim
    vectors = self.act_fn(self.qkv_proj(hidden_states))
    if attention_mask is not None:
        vectors = (vectors * attention_mask[:, :, None]).to(vectors.dtype)
    q, k, v = vectors.reshape(rows, steps, heads, 3 * size).split(size, dim=3)
    before = None if past_key_values is None else past_key_values.get_linear_cache(self.layer_idx)
    outputs, state = attended(q, k, v, self.slope_rate, before)
    outputs = self.norm(outputs.reshape(rows, steps, heads * size))
    outputs = self.out_proj(torch.sigmoid(self.output_gate(hidden_states)) * outputs)
    if past_key_values is not None:
        past_key_values.set_linear_cache(self.layer_idx, state.clone())  # tokens overwrite it
    return outputs, state


def attended(q: Any, k: Any, v: Any, slopes: Any, before: Any) -> tuple[Any, Any]:
    """Computes lightning attention's recurrence. Returns the outputs [batch, time, heads, value] and the last
    state [batch, heads, key, value], in the dtype of v.

    q, k, v: the queries, keys and values [batch, time, heads, features]. slopes: the negated logarithms of
        the decays [heads, 1, 1]. before: the first state; None for zeros.
    """
    rows, steps, heads, size = v.shape
    shape = heads, size, k.shape[3]
    g = -slopes.reshape(heads).to(dtype_of(v)).expand(rows, steps, heads)
    memory = None if before is None else before.mT
    x = {"u": v, "B": k, "C": q}
    if needs_gradients(*x.values(), memory):
        x, (first,) = in_one_dtype(x, [memory], [shape])
        outputs, last = Decayed.apply(g, x["u"], x["B"], x["C"], first)
    else:
        outputs, last = scan(decayed, {**x, "a": g.exp()}, [memory], [shape], {})
    return outputs.to(v.dtype), last.mT.to(v.dtype)


@dataclass(frozen=True)
class Ones:
    """A cache for `check`, whose state is always a tensor of ones. shape: the shape of the state."""

    shape: tuple[int, ...]

    def get_linear_cache(self, layer_idx: int) -> Any:
        """Returns the state, as MiniMax's cache does. layer_idx: the number of the layer, not read."""
        return torch.ones(self.shape)

    def set_linear_cache(self, layer_idx: int, linear_cache: Any) -> None:
        """Ignores a new state, which the layer returns as well."""


@dataclass(frozen=True)
class LinearStates(CachedStates):
    """The state of a layer of lightning attention in a `MiniMaxCache`."""

    def of(self, cache: Any, number: int) -> list[Any]:
        """Returns the state of the layer with this `number` in a cache, or None if it is not there yet."""
        return [cache.get_linear_cache(number)]

    def cache(self, file: Any, config: Any) -> Any:
        """Makes an empty cache. file: the file of transformers that has the layer. config: not read."""
        return file.MiniMaxCache()


SIZES = (
    ("hidden_size", 4),
    ("num_attention_heads", 2),
    ("head_dim", 3),
    ("num_hidden_layers", 2),
    ("block_size", 2),
    ("rms_norm_eps", 0.5),
)
METHODS = {
    "MiniMaxLightningAttention.forward": FunctionPatch(
        lightning_attention,
        "hidden_states:btc attention_mask:bt",
        (("position_embeddings", None),),
        variants=((), (("past_key_values", Ones((2, 2, 3, 3))),)),
        config=SIZES,
        arguments=(("layer_idx", 0),),
    ),
}
MIXERS = {
    "MiniMaxLightningAttention": TokenLayer(
        LightningLayer,
        (("", "num_attention_heads"), ("", "head_dim"), ("norm", "variance_epsilon")),
        {
            "in_proj": ("qkv_proj", "weight"),
            "slopes": ("", "slope_rate"),
            "norm": ("norm", "weight"),
            "gate": ("output_gate", "weight"),
            "out_proj": NAMES["out_proj"],
        },
        {
            "qkv_proj": LINEAR,
            "act_fn": ("transformers.activations.SiLUActivation",),
            "norm": (f"{FILES}minimax.modeling_minimax.MiniMaxRMSNorm",),
            "output_gate": LINEAR,
            "out_proj": LINEAR,
        },
        dict(SIZES),
        states=LinearStates(),
        returns_state=True,
    ),
}
