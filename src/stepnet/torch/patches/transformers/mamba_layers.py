"""Whole layers of Mamba and Mamba-2, and the blocks around them, as steps for single tokens.

The layers of hybrid models are the same but for names, norms and a few numbers, which are in the tables.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from stepnet.cells.state_space import mamba, mamba2
from stepnet.compiler.trace.functions import silu, softplus
from stepnet.compiler.values.records import dataclass
from stepnet.torch.patches.transformers.blocks import (
    NAMES,
    PARTS,
    block,
    convolved,
    linear,
    root_mean_square_normed,
)
from stepnet.torch.patches.transformers.records import FILES, LINEAR, TokenLayer

# ---- the steps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MambaLayer:
    """Step of a whole layer of Mamba: projections, convolution, state space and gate.

    eps: the numbers that the norms of dt, B and C add to the mean square; empty for a layer without these
        norms, which Falcon-Mamba and Jamba have.
    is_interleaved: whether inputs and gates take turns in the input projection, as in Zamba, whose heads have
        projections of their own. In others the inputs come first.
    """

    eps: tuple[float, ...]
    is_interleaved: bool = False

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Runs a token through a Mamba layer (projections, a convolution and the selective scan): computes
        the output [rows, features] and the next memory.

        Args:
            x: The input x [rows, features].
            memory: The last inputs of the convolution [rows, channels, kernel], and h
                [rows, channels, states].
            params: Weights as of `torch.nn.Linear` and `Conv1d`: in_proj, conv, conv_bias, x_proj, dt_proj,
                dt_bias, out_proj; A_log [channels, states] and D [channels]; in_bias and out_bias or none;
                perhaps dt_scale, B_scale and C_scale, by which the norms multiply.

        Zamba's h, x_proj, dt_proj, dt_bias, A_log and D have an axis of heads before that of channels.
        """
        window, h = memory
        both = linear(x["x"], params["in_proj"], params.get("in_bias"))
        if self.is_interleaved:
            pairs = both.reshape(-1, both.shape[1] // 2, 2)
            u, gate = pairs[..., 0], pairs[..., 1]
        else:
            u, gate = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
        u, window = convolved(u, window, params)
        if self.is_interleaved:
            y, h = self.by_heads(u, h, params)
        else:
            y, h = self.scanned(u, h, params)
        return linear(y * silu(gate), params["out_proj"], params.get("out_bias")), (window, h)

    def scanned(self, u: Any, h: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step of the selective scan, whose step size, B and C are projections of its input:
        the output [rows, channels] and the next state. u: the input. h, params: as of `__call__`.
        """
        states, rank = params["A_log"].shape[1], params["dt_proj"].shape[1]
        whole = u @ params["x_proj"].T
        parts = whole[:, :rank], whole[:, rank : rank + states], whole[:, rank + states :]
        parts = [*map(root_mean_square_normed, parts, self.eps)] if self.eps else parts
        if "dt_scale" in params:
            scales = (params[name] for name in ("dt_scale", "B_scale", "C_scale"))
            parts = [part * scale for part, scale in zip(parts, scales, strict=True)]
        dt, B, C = parts
        inputs = {
            "x": u,
            "dt": softplus(linear(dt, params["dt_proj"], params.get("dt_bias"))),
            "B": B,
            "C": C,
        }
        return mamba(inputs, h, {"A": -np.exp(params["A_log"]), "D": params["D"]})

    def by_heads(self, u: Any, h: Any, params: Any) -> tuple[Any, Any]:
        """Computes `scanned` for each of Zamba's heads, with the arguments and results of `scanned`."""
        heads, channels = params["D"].shape
        own = "x_proj", "dt_proj", "dt_bias", "A_log", "D"
        results = [
            self.scanned(
                u[:, head * channels : (head + 1) * channels],
                h[:, head],
                {name: params[name][head] for name in own},
            )
            for head in range(heads)
        ]
        outputs, states = zip(*results, strict=True)
        return np.concatenate(outputs, axis=1), np.concatenate([state[:, None] for state in states], axis=1)


def mamba_layer(*eps: float) -> MambaLayer:
    """Makes the step of one token through a Mamba layer. eps: of its norms of dt, B and C, if it has any."""
    return MambaLayer(eps)


@dataclass(frozen=True)
class Mamba2Layer:
    """Step of a whole layer of Mamba-2: projections, convolution, state space, and the norm of the gated
    output.

    groups: the number of groups of heads that share B and C.
    size: the number of features that the norm is over; None for those of a group.
    eps: the number that the norm adds to the mean square; None for a layer without a norm.
    is_normed_first: whether the norm comes before the gate.
    factor: the number by which inputs are multiplied.
    """

    groups: int
    size: int | None
    eps: float | None
    is_normed_first: bool | None = False
    factor: float = 1.0

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Runs a token through a Mamba-2 layer (projections, a convolution, the scan and a norm): computes
        the output [rows, features] and the next memory.

        x: a dict of the input x [rows, features]. memory: the last inputs of the convolution [rows, channels,
            kernel], and h [rows, heads, features, states].
        params: weights as of `torch.nn.Linear` and `Conv1d`: in_proj, conv, out_proj, and perhaps in_bias,
            conv_bias and out_bias; dt_bias, A_log and D [heads]; norm, the scale of the norm; perhaps
            factors, by which the results of in_proj are multiplied.
        """
        window, h = memory
        heads, features, states = h.shape[1:]
        inner, shared = heads * features, self.groups * states
        given = x["x"] if self.factor == 1.0 else x["x"] * self.factor
        parts = linear(given, params["in_proj"], params.get("in_bias"))
        if "factors" in params:
            parts = parts * params["factors"].reshape(-1)
        gate, u, dt = parts[:, :inner], parts[:, inner:-heads], parts[:, -heads:]
        u, window = convolved(u, window, params)
        inputs = {
            "x": u[:, :inner].reshape(-1, heads, features),
            "dt": softplus(dt + params["dt_bias"]),
            "B": u[:, inner : inner + shared].reshape(-1, self.groups, states),
            "C": u[:, inner + shared :].reshape(-1, self.groups, states),
        }
        y, h = mamba2(inputs, h, {"A": -np.exp(params["A_log"]), "D": params["D"]})
        y = self.normed(y.reshape(-1, inner), silu(gate), params)
        return linear(y, params["out_proj"], params.get("out_bias")), (window, h)

    def normed(self, y: Any, gate: Any, params: Any) -> Any:
        """Computes the product of outputs and gates [rows, features], with the norm before or after it."""
        if self.eps is None:
            return y * gate
        y = y if self.is_normed_first else y * gate
        inner = y.shape[1]
        size = inner // self.groups if self.size is None else self.size
        y = root_mean_square_normed(y.reshape(-1, inner // size, size), self.eps).reshape(-1, inner)
        y = y * params["norm"]
        return y * gate if self.is_normed_first else y


# ---- the rows ----------------------------------------------------------------------------------------------

MAMBA_NAMES = {
    **NAMES,
    "x_proj": ("x_proj", "weight"),
    "dt_proj": ("dt_proj", "weight"),
    "dt_bias": ("dt_proj", "bias"),
}
MAMBA_PARTS = {**PARTS, "x_proj": LINEAR, "dt_proj": LINEAR}
MAMBA_SIZES = {
    "hidden_size": 6,
    "intermediate_size": 8,
    "state_size": 3,
    "time_step_rank": 2,
    "num_hidden_layers": 1,
    "layer_norm_epsilon": 0.5,
}
HYBRID_SIZES = {
    "hidden_size": 6,
    "mamba_d_state": 3,
    "mamba_dt_rank": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 0.5,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
NORMS = "dt_layernorm", "b_layernorm", "c_layernorm"
FALCON_NORM: tuple[str, ...] = (f"{FILES}falcon_mamba.modeling_falcon_mamba.FalconMambaWeightlessRMSNorm",)
JAMBA_NORM: tuple[str, ...] = (f"{FILES}jamba.modeling_jamba.JambaRMSNorm",)
MAMBAS = {
    "MambaMixer": TokenLayer(mamba_layer, (), MAMBA_NAMES, MAMBA_PARTS, MAMBA_SIZES),
    "FalconMambaMixer": TokenLayer(
        mamba_layer,
        tuple((norm, "eps") for norm in NORMS),
        MAMBA_NAMES,
        MAMBA_PARTS | dict.fromkeys(NORMS, FALCON_NORM),
        MAMBA_SIZES | {"mixer_rms_eps": 0.25},
        arguments=(("initialize_mixer_weights", False),),
    ),
    "JambaMambaMixer": TokenLayer(
        mamba_layer,
        tuple((norm, "variance_epsilon") for norm in NORMS),
        MAMBA_NAMES
        | {
            name: (norm, "weight")
            for name, norm in zip(("dt_scale", "B_scale", "C_scale"), NORMS, strict=True)
        },
        MAMBA_PARTS | dict.fromkeys(NORMS, JAMBA_NORM),
        HYBRID_SIZES,
    ),
    "ZambaMambaMixer": TokenLayer(
        partial(MambaLayer, (), True),
        (),
        NAMES
        | {
            "x_proj": ("", "x_proj_weight"),
            "dt_proj": ("", "dt_proj_weight"),
            "dt_bias": ("", "dt_proj_bias"),
        },
        PARTS,
        HYBRID_SIZES | {"n_mamba_heads": 2, "layers_block_type": ["mamba"]},
        has_own_products=True,
    ),
}


def mamba2_layer(norm: str, config: dict[str, Any]) -> TokenLayer:
    """Describes a layer of Mamba-2 of a model: returns its entry of the table. norm: the file and class of
    its norm in transformers. config: the sizes of a small layer besides those that all have.
    """
    return TokenLayer(
        Mamba2Layer,
        (("", "n_groups"), ("norm", "group_size"), ("norm", "variance_epsilon")),
        {**NAMES, "dt_bias": ("", "dt_bias"), "norm": ("norm", "weight")},
        {**PARTS, "norm": (f"{FILES}{norm}",)},
        {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
        | config,
    )


OWN_SIZES = {"num_heads": 4, "head_dim": 4, "state_size": 3, "n_groups": 2, "layer_norm_epsilon": 0.5}
BAMBA_SIZES = {
    "mamba_n_heads": 4,
    "mamba_d_head": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 3,
    "rms_norm_eps": 0.5,
}
ZAMBA_SIZES = {
    "n_mamba_heads": 4,
    "mamba_ngroups": 2,
    "mamba_d_state": 3,
    "layers_block_type": ["mamba"],
}
NEMOTRON_SIZES = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 4,
    "ssm_state_size": 3,
    "n_groups": 2,
    "layers_block_type": ["mamba"],
    "layer_norm_epsilon": 0.5,
}
MAMBA2S = {
    "Mamba2Mixer": mamba2_layer("mamba2.modeling_mamba2.MambaRMSNormGated", OWN_SIZES),
    "BambaMixer": mamba2_layer("bamba.modeling_bamba.BambaRMSNormGated", BAMBA_SIZES),
    "Zamba2MambaMixer": mamba2_layer("zamba2.modeling_zamba2.Zamba2RMSNormGated", ZAMBA_SIZES),
    "NemotronHMamba2Mixer": mamba2_layer(
        "nemotron_h.modeling_nemotron_h.NemotronHRMSNormGated", NEMOTRON_SIZES
    ),
    "GraniteMoeHybridMambaLayer": mamba2_layer(
        "granitemoehybrid.modeling_granitemoehybrid.GraniteMoeHybridRMSNormGated",
        BAMBA_SIZES | {"layer_types": ["mamba"]},
    ),
}
FALCON_H1 = mamba2_layer(
    "falcon_h1.modeling_falcon_h1.FalconH1RMSNormGated",
    BAMBA_SIZES | {"mamba_d_ssm": 16, "head_dim": 4, "mamba_rms_norm": True, "ssm_in_multiplier": 0.5},
)
MIXERS = (
    MAMBAS
    | MAMBA2S
    | {
        "FalconH1Mixer": replace(
            FALCON_H1,
            options=(*FALCON_H1.options, ("norm", "norm_before_gate"), ("", "ssm_in_multiplier")),
            names=FALCON_H1.names | {"factors": ("", "mup_vector")},
            parts=FALCON_H1.parts | {"norm": (*FALCON_H1.parts["norm"], "torch.nn.modules.linear.Identity")},
            model=("FalconH1Model", "layers.0.mamba"),
        )
    }
)
BLOCKS = {
    f"{name}Block": block(file, f"{name}Mixer", MIXERS[f"{name}Mixer"], f"{name}RMSNorm")
    for name, file in (
        ("Mamba", "mamba.modeling_mamba"),
        ("FalconMamba", "falcon_mamba.modeling_falcon_mamba"),
        ("Mamba2", "mamba2.modeling_mamba2"),
    )
}
