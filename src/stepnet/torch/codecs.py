"""Layers of transformers' models of audio whose `forward` computes padding from the number of steps.

    EncodecConv1d       a convolution with copies of steps ahead, and so many behind that the last stride ends
    MimiConv1d          the same, with zeros or copies
    MimiTransformerModel, MimiAttention     attention to the last steps, as a mask made of their indices

A graph has sequences of any lengths, so a trace replaces such a `forward` by one whose padding is the same
for all: with stride - 1 more steps behind there are as many results, and each reads the same steps.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from stepnet.compiler.trace.traced import refuse
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


def codec_convolution(module: Any) -> Callable[..., Any]:
    """Makes the forward of an `EncodecConv1d` or a `MimiConv1d` for traces, which takes a tensor [sequences,
    features, steps].

    Sequences with too few steps for reflection, behind which transformers puts zeros, are refused in a call.
    """
    stride, total = int(module.stride), int(module.padding_total)
    behind = 0 if module.causal else total // 2
    has_norm = getattr(module, "norm_type", "") == "time_group_norm"

    def forward(hidden_states: Any, padding_cache: Any = None) -> Any:
        """Computes the convolution of the sequences with zeros or copies of their steps at both ends; raises
        `StepError` for a cache of the steps before them.
        """
        if padding_cache is not None:
            raise refuse("a graph has streams in place of a padding_cache: leave it out, and use_streaming")
        pads = total - behind, behind + stride - 1
        made = module.conv(torch.nn.functional.pad(hidden_states, pads, module.pad_mode))
        return module.norm(made) if has_norm else made

    return forward


def mimi_transformer(module: Any) -> Callable[..., Any]:
    """Makes the forward of a `MimiTransformerModel` for traces, which takes a tensor [sequences, steps,
    features]: each step attends to itself and to the steps ahead of it, to as many in all as the module's
    `sliding_window` says.
    """
    made, window = sys.modules[module.__class__.__module__], module.config.sliding_window
    left_out = {"attention_mask", "position_ids", "past_key_values", "use_cache"}

    def forward(hidden_states: Any, **given: Any) -> Any:
        """Computes the layers, each of which adds what it computes to the steps; raises `StepError` for a
        mask, a cache and positions, which a graph has not.
        """
        named = [name for name in left_out & given.keys() if given[name] not in (None, False)]
        if named:
            raise refuse(f"a graph runs whole sequences, each alone: leave out {' and '.join(sorted(named))}")
        # The indices of the steps, as there is no range over steps behind a stride.
        positions = torch.ones_like(hidden_states[..., 0]).cumsum(1) - 1
        embeddings = rotations(module.rotary_emb, positions)
        back = positions[:, :, None] - positions[:, None, :]
        seen = (back >= 0) & (back < window)
        for layer in module.layers:
            hidden_states = layer(hidden_states, attention_mask=seen[:, None], position_embeddings=embeddings)
        return made.BaseModelOutputWithPast(last_hidden_state=hidden_states)

    return forward


def rotations(module: Any, positions: Any) -> tuple[Any, Any]:
    """Computes the cosines and sines [sequences, steps, features] of a rotary embedding; raises `StepError`
    for one whose frequencies depend on the number of steps.

    module: the embedding. positions: the indices of the steps.
    """
    if module.rope_type in ("dynamic", "longrope"):
        raise refuse(f"the frequencies of rope_type={module.rope_type!r} follow from the number of steps")
    angles = positions[..., None].float() * module.inv_freq.float()
    both = torch.cat([angles, angles], dim=-1)
    cos, sin = (each * module.attention_scaling for each in (both.cos(), both.sin()))
    return cos.to(positions.dtype), sin.to(positions.dtype)


def mimi_attention(module: Any) -> Callable[..., Any]:
    """Makes the forward of a `MimiAttention` for traces: `transformers` reads the number of steps to choose a
    mask, which is given here.
    """
    made = sys.modules[module.__class__.__module__]

    def forward(hidden_states: Any, attention_mask: Any, position_embeddings: Any, **_: Any) -> Any:
        """Computes attention [sequences, steps, features], each step to the steps that the mask allows."""
        shape = (*hidden_states.shape[:-1], -1, module.head_dim)
        projections = module.q_proj, module.k_proj, module.v_proj
        query, key, value = (each(hidden_states).view(shape).transpose(1, 2) for each in projections)
        query, key = made.apply_rotary_pos_emb(query, key, *position_embeddings)
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attention_mask, scale=module.scaling, enable_gqa=True
        )
        return module.o_proj(attended.transpose(1, 2).flatten(2)), None

    return forward


CODECS: Mapping[str, Callable[[Any], Callable[..., Any]]] = {
    "transformers.models.encodec.modeling_encodec.EncodecConv1d": codec_convolution,
    "transformers.models.mimi.modeling_mimi.MimiConv1d": codec_convolution,
    "transformers.models.mimi.modeling_mimi.MimiTransformerModel": mimi_transformer,
    "transformers.models.mimi.modeling_mimi.MimiAttention": mimi_attention,
}
"""The classes of layers whose `forward` a trace replaces, each with the function that makes the other."""


def codec_forward(module: Any) -> Callable[..., Any] | None:
    """Returns the function that replaces the forward of a layer of `CODECS` in a trace; None for others."""
    kind: Any = module.__class__
    make = CODECS.get(f"{kind.__module__}.{kind.__qualname__}")
    return None if make is None or "forward" in module.__dict__ else make(module)
