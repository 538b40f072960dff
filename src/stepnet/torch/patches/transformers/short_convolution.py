"""LFM2's gated short convolution as a step, y = C * conv(B * x), for single tokens.

Longer inputs run in PyTorch's convolution, which takes less time.
"""

from typing import Any

from stepnet.torch.patches.transformers.blocks import CONVOLUTION, LINEAR, NAMES, linear, windowed
from stepnet.torch.patches.transformers.records import CachedStates, TokenLayer
from stepnet.torch.patches.transformers.scan import Step


def short_convolution(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Runs a token through a layer of LFM2 (projections, gates and a convolution): computes the output [rows,
    features] and the next memory.

    x: a dict of the input x [rows, features]. memory: the last inputs of the convolution [rows, features,
        kernel].
    params: weights as of `torch.nn.Linear` and `Conv1d`: in_proj, conv, out_proj, and perhaps in_bias,
        conv_bias and out_bias.
    """
    parts = linear(x["x"], params["in_proj"], params.get("in_bias"))
    size = parts.shape[1] // 3
    B, C, u = parts[:, :size], parts[:, size : 2 * size], parts[:, 2 * size :]
    y, memory = windowed(B * u, memory, params)
    return linear(C * y, params["out_proj"], params.get("out_bias")), memory


def short_convolution_layer() -> Step:
    """Makes the step of a layer of LFM2, which has no options."""
    return short_convolution


MIXERS = {
    f"{model}ShortConv": TokenLayer(
        short_convolution_layer,
        (),
        {
            **{name: NAMES[name] for name in ("in_proj", "in_bias", "out_proj", "out_bias")},
            "conv": ("conv", "weight"),
            "conv_bias": ("conv", "bias"),
        },
        {"in_proj": LINEAR, "conv": CONVOLUTION, "out_proj": LINEAR},
        {
            "hidden_size": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "num_hidden_layers": 1,
            "layer_types": ["conv"],
            "conv_bias": True,
        },
        states=CachedStates(("conv",)),
    )
    for model in ("Lfm2", "Lfm2Moe", "Lfm3")
}
