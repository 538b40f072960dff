"""Whole layers of the gated delta rule, and of Kimi's, as steps for single tokens.

projections of x         q, k, v        gate       decay a      rate b
Qwen3-Next               in_proj, by heads of keys             rates
Qwen3.5, Qwen4           in_proj        gate       decay        rate
OLMo, Kimi, ...          in_proj, k_proj, v_proj   ...
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.trace.functions import sigmoid, softplus
from stepnet.compiler.values.records import dataclass
from stepnet.torch.patches.transformers.blocks import NAMES, convolved, linear, root_mean_square_normed
from stepnet.torch.patches.transformers.delta_rule import Delta
from stepnet.torch.patches.transformers.records import CONVOLUTION, FILES, GATES, LINEAR, TokenLayer
from stepnet.torch.patches.transformers.scan import Step

# ---- the steps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeltaLayer:
    """Step of a whole layer of the gated delta rule: projections, convolution, delta rule, norm and gate.

    groups: the number of heads of keys.
    eps: the number that the norm adds to the mean square.
    gate: the function of the gate, a key of `GATES`.
    is_wide: whether rates are twice as large, up to 2, so that eigenvalues may be negative.
    low: the lower bound of the logarithms of decays; None for none.
    is_shared: whether queries, keys, values and gates are one projection, in which those of a head of keys
        lie next to one another, as in Qwen3-Next.
    """

    groups: int
    eps: float
    gate: str = "silu"
    is_wide: bool = False
    low: float | None = None
    is_shared: bool = False

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Runs a token through a gated DeltaNet layer (projections, a convolution, the delta rule and a
        norm): computes the output [rows, features] and the next memory.

        x: a dict of the input x [rows, features]. memory: the last inputs of the convolution [rows, channels,
            kernel], and the state [rows, heads, key, value].
        params: the weights by name; `MIXERS` says where the layer has them. dt_bias has a number for each
            head, or as Kimi's for each feature of its keys.
        """
        window, state = memory
        heads, key, value = state.shape[1:]
        keys = self.groups * key
        if self.is_shared:
            u, gate, a, b = self.by_heads(x["x"], params, heads, key, value)
        else:
            names = [name for name in ("in_proj", "k_proj", "v_proj") if name in params]
            u = [linear(x["x"], params[name], None) for name in names]
            u = u[0] if len(u) == 1 else np.concatenate(u, axis=-1)
            gate, a, b = (projected(x["x"], params, name) for name in ("gate", "decay", "rate"))
        u, window = convolved(u, window, params)
        inputs = {
            "q": u[:, :keys].reshape(-1, self.groups, key),
            "k": u[:, keys : 2 * keys].reshape(-1, self.groups, key),
            "v": u[:, 2 * keys :].reshape(-1, heads, value),
            "g": self.decays(a + params["dt_bias"], params["A_log"].reshape(-1)),
            "beta": 2 * sigmoid(b) if self.is_wide else sigmoid(b),
        }
        o, state = Delta(normed=True)(inputs, state, None)
        gate = GATES[self.gate](gate.reshape(-1, heads, value))
        o = root_mean_square_normed(o, self.eps) * params["norm"] * gate
        return linear(o.reshape(-1, heads * value), params["out_proj"], None), (window, state)

    def decays(self, a: Any, logarithms: Any) -> Any:
        """Computes the logarithms of decays [rows, heads], or [rows, heads, key] if `a` has as many numbers.

        a: the projected input. logarithms: the logarithms of the factors of the heads.
        """
        heads = logarithms.shape[0]
        rates = np.exp(logarithms)
        if a.shape[1] != heads:
            a, rates = a.reshape(-1, heads, a.shape[1] // heads), rates.reshape(heads, 1)
        return -rates * softplus(a) if self.low is None else self.low * sigmoid(rates * a)

    def by_heads(self, x: Any, params: Any, heads: int, key: int, value: int) -> tuple[Any, ...]:
        """Computes the projections of Qwen3-Next: queries, keys and values in one vector, gates, decays and
        rates, each [rows, features]. x: the input. heads, key, value: the sizes of the state.
        """
        shared = heads // self.groups
        parts = linear(x, params["in_proj"], None).reshape(-1, self.groups, 2 * (key + shared * value))
        begin, end = 2 * key, 2 * key + shared * value
        rates = linear(x, params["rate"], None).reshape(-1, self.groups, 2 * shared)
        vectors = parts[..., :key], parts[..., key:begin], parts[..., begin:end]
        sizes = self.groups * key, self.groups * key, heads * value
        u = np.concatenate([v.reshape(-1, n) for v, n in zip(vectors, sizes, strict=True)], axis=-1)
        return (
            u,
            parts[..., end:],
            rates[..., shared:].reshape(-1, heads),
            rates[..., :shared].reshape(-1, heads),
        )


def projected(x: Any, params: Any, name: str) -> Any:
    """Returns a projection of x; one of low rank is two in a row, the first one named `<name>_first`."""
    first = params.get(f"{name}_first")
    return linear(x if first is None else linear(x, first, None), params[name], None)


def bounded(groups: int, eps: float, gate: str, low: float | None) -> Step:
    """Makes a layer's step with a lower bound of its decays, or None. Arguments: options of `DeltaLayer`."""
    return DeltaLayer(groups, eps, gate, low=low)


def perhaps_bounded(groups: int, eps: float, gate: str, is_bounded: bool, low: float) -> Step:
    """Makes a layer's step, with a lower bound of decays if `is_bounded`. Others: as of `DeltaLayer`."""
    return DeltaLayer(groups, eps, gate, low=low if is_bounded else None)


# ---- the rows ----------------------------------------------------------------------------------------------

SIZES = {
    "hidden_size": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 3,
    "linear_value_head_dim": 2,
    "linear_num_heads": 2,
    "linear_head_dim": 3,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 0.5,
}


QKV = {"in_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj"}
QWEN = {
    "in_proj": "in_proj_qkv",
    "gate": "in_proj_z",
    "decay": "in_proj_a",
    "rate": "in_proj_b",
    "out_proj": "out_proj",
}
KIMI = {
    **QKV,
    "gate_first": "g_a_proj",
    "gate": "g_b_proj",
    "decay_first": "forget_gate.f_a_proj",
    "decay": "forget_gate.f_b_proj",
    "rate": "b_proj",
    "out_proj": "o_proj",
}
"""The linear layers of models, by the names of their weights in the step."""


def delta_layer(
    model: str,
    projections: dict[str, str],
    norm: str = "norm",
    step: Callable[..., Step] = DeltaLayer,
    options: tuple[tuple[str, str], ...] = (),
    groups: str = "num_k_heads",
    forget: str = "",
) -> TokenLayer:
    """Describes a layer of the delta rule of a model: returns its entry of the table.

    Args:
        model: The model's file in transformers, and the beginning of the names of its classes.
        projections: The linear layers by the names of their weights in the step.
        norm: The name of the layer's norm, which has the gate.
        step: Makes the step.
        options: The options of the step besides those that all have.
        groups: The attribute that is the number of heads of keys.
        forget: The part that has the decays, of the model's class ForgetGate; "" for the layer itself.
    """
    file, _, name = model.partition(".")
    classes = f"{FILES}{file}.modeling_{file}.{name}"
    return TokenLayer(
        step,
        (("", groups), (norm, "variance_epsilon"), (norm, "activation"), *options),
        {key: (part, "weight") for key, part in projections.items()}
        | {"conv": NAMES["conv"], "conv_bias": NAMES["conv_bias"], "norm": (norm, "weight")}
        | {name: (forget, name) for name in ("A_log", "dt_bias")},
        ({forget: (f"{classes}ForgetGate",)} if forget else {})
        | dict.fromkeys(projections.values(), LINEAR)
        | {"conv1d": CONVOLUTION, norm: (f"{classes}RMSNormGated",)},
        SIZES,
    )


MIXERS = {
    "Qwen3NextGatedDeltaNet": delta_layer(
        "qwen3_next.Qwen3Next",
        {"in_proj": "in_proj_qkvz", "rate": "in_proj_ba", "out_proj": "out_proj"},
        step=partial(DeltaLayer, is_shared=True),
    ),
    "Qwen3_5GatedDeltaNet": delta_layer("qwen3_5.Qwen3_5", QWEN),
    "Qwen3_5MoeGatedDeltaNet": delta_layer("qwen3_5_moe.Qwen3_5Moe", QWEN),
    "Qwen4ExpTextGatedDeltaNet": delta_layer("qwen4_exp.Qwen4ExpText", QWEN),
    "OlmoHybridGatedDeltaNet": delta_layer(
        "olmo_hybrid.OlmoHybrid",
        {**QKV, "gate": "g_proj", "decay": "a_proj", "rate": "b_proj", "out_proj": "o_proj"},
        "o_norm",
        options=(("", "allow_neg_eigval"),),
    ),
    "KimiLinearDeltaAttention": delta_layer(
        "kimi_linear.KimiLinear", KIMI, "o_norm", groups="num_heads", forget="forget_gate"
    ),
    "BailingHybridDeltaAttention": delta_layer(
        "bailing_hybrid.BailingHybrid",
        {**QKV, "gate": "g_proj", "decay": "forget_gate.f_proj", "rate": "b_proj", "out_proj": "o_proj"},
        "o_norm",
        perhaps_bounded,
        (("forget_gate", "safe_gate"), ("forget_gate", "lower_bound")),
        "num_heads",
        "forget_gate",
    ),
    "Glm5NextTextLinearAttention": delta_layer(
        "glm5_next.Glm5NextText",
        KIMI,
        "o_norm",
        bounded,
        (("forget_gate", "safe_gate_lower_bound"),),
        "num_heads",
        "forget_gate",
    ),
}
