"""The common parts of whole layers and blocks as steps: their operations, and entries of the table.

mixer    in_proj, conv1d, recurrence, gate, out_proj      an entry of `MIXERS` in the file of its family
block    x + mixer(norm(x))                               `block` makes its entry from that of the mixer
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.trace.functions import silu
from stepnet.compiler.values.records import dataclass
from stepnet.torch.patches.transformers.records import CONVOLUTION, FILES, LINEAR, TokenLayer
from stepnet.torch.patches.transformers.scan import Step

PARTS = {"in_proj": LINEAR, "conv1d": CONVOLUTION, "out_proj": LINEAR}
"""The classes of the parts of a mixer, by the parts' names."""
NAMES = {
    "in_proj": ("in_proj", "weight"),
    "in_bias": ("in_proj", "bias"),
    "conv": ("conv1d", "weight"),
    "conv_bias": ("conv1d", "bias"),
    "A_log": ("", "A_log"),
    "D": ("", "D"),
    "out_proj": ("out_proj", "weight"),
    "out_bias": ("out_proj", "bias"),
}
"""The parameters of a mixer: for each of the step's, the part of the layer that has it and its name there."""


@dataclass(frozen=True)
class ResidualBlock:
    """Step of a block: a layer's step on the normalised input, added to the input.

    eps: the number that the norm adds to the mean square.
    """

    layer: Callable[[Any, Any, Any], Any]
    eps: float

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step of a residual block, x + layer(norm(x)): the output [rows, features] and the
        layer's next memory.

        x: a dict of the input x [rows, features]. memory: the memory of the layer. params: the parameters of
        the layer, and `scale`, by which normalised inputs are multiplied.
        """
        u = root_mean_square_normed(x["x"], self.eps) * params["scale"]
        y, memory = self.layer({"x": u}, memory, params)
        return x["x"] + y, memory


def block(file: str, mixer: str, inner: TokenLayer, norm: str) -> TokenLayer:
    """Describes a residual block of transformers, x + mixer(norm(x)), as a layer whose single tokens, as in
    generation, run as one step: returns the entry of the table `LAYERS` for it.

    file: the file of transformers that has the classes `mixer` and `norm`, given by name. inner: the
    description of the mixer.
    """

    def inside(part: str) -> str:
        """Returns the path in the block of a part of the mixer."""
        return f"mixer.{part}".rstrip(".")

    def step(eps: float, *options: Any) -> Step:
        """Makes the step of the block. eps: of its norm. options: arguments that make the mixer's step."""
        return ResidualBlock(inner.step(*options), eps)

    return TokenLayer(
        step,
        (("norm", "variance_epsilon"), *((inside(part), name) for part, name in inner.options)),
        {key: (inside(part), name) for key, (part, name) in inner.names.items()}
        | {"scale": ("norm", "weight")},
        {"norm": (f"{FILES}{file}.{norm}",), "mixer": (f"{FILES}{file}.{mixer}",)}
        | {inside(part): kind for part, kind in inner.parts.items()},
        inner.config,
        "mixer",
        widens="residual_in_fp32",
    )


def convolved(u: Any, window: Any, params: Any) -> tuple[Any, Any]:
    """Computes a causal convolution over time, and silu, for one step, with the arguments of `windowed`."""
    u, window = windowed(u, window, params)
    return silu(u), window


def windowed(u: Any, window: Any, params: Any) -> tuple[Any, Any]:
    """Computes a causal convolution over time for one step.

    u: the new inputs [rows, channels]. window: the last inputs [rows, channels, kernel]. params: conv, and
        perhaps conv_bias. Returns the outputs [rows, channels], and the window with the new inputs.
    """
    window = np.concatenate([window[..., 1:], u[:, :, None]], axis=-1)
    u = (window * params["conv"][:, 0]).sum(-1)
    return (u + params["conv_bias"] if "conv_bias" in params else u), window


def root_mean_square_normed(x: Any, eps: float) -> Any:
    """Divides vectors by the root of their mean square, to which eps is added, as an RMS norm does."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """Computes a linear layer in a step, as `torch.nn.Linear` does. bias: None for no bias."""
    y = x @ weight.T
    return y if bias is None else y + bias
