"""Layers of transformers' models of audio whose `forward` computes padding from the number of steps.

    EncodecConv1d       a convolution with copies of steps ahead, and so many behind that the last stride ends

A graph has sequences of any lengths, so a trace replaces such a `forward` by one whose padding is the same
for all: with stride - 1 copies behind there are as many results, and each reads the same steps.
"""

from collections.abc import Callable, Mapping
from typing import Any

from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


def encodec_convolution(module: Any) -> Callable[[Any], Any]:
    """Makes the forward of an `EncodecConv1d` for traces, which takes a tensor [sequences, features, steps].

    Sequences with too few steps for reflection, behind which transformers puts zeros, are refused in a call.
    """
    stride, total = int(module.stride), int(module.padding_total)
    behind = 0 if module.causal else total // 2

    def forward(hidden_states: Any) -> Any:
        """Computes the convolution of the sequences with copies of their steps at both ends."""
        pads = total - behind, behind + stride - 1
        made = module.conv(torch.nn.functional.pad(hidden_states, pads, module.pad_mode))
        return module.norm(made) if module.norm_type == "time_group_norm" else made

    return forward


CODECS: Mapping[str, Callable[[Any], Callable[[Any], Any]]] = {
    "transformers.models.encodec.modeling_encodec.EncodecConv1d": encodec_convolution,
}
"""The classes of layers whose `forward` a trace replaces, each with the function that makes the other."""


def codec_forward(module: Any) -> Callable[[Any], Any] | None:
    """Returns the function that replaces the forward of a layer of `CODECS` in a trace; None for others."""
    kind: Any = module.__class__
    make = CODECS.get(f"{kind.__module__}.{kind.__qualname__}")
    return None if make is None or "forward" in module.__dict__ else make(module)
