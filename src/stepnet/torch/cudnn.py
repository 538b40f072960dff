"""Layers that stay with cuDNN on a GPU with `engine="auto"`: it was measured to be as fast or faster there.

The measurements are in docs/design/gpu.md. They are of one direction and of sequences of equal length; where
lengths differ, or both directions run, cuDNN launches kernels for every step.
"""

from dataclasses import dataclass
from typing import Any

from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
CELLS = "PyTorch has kernels for a single step"
"""Why a cell stays with PyTorch: nothing is kept on the chip from step to step."""


@dataclass(frozen=True)
class KnownLayer:
    """A kind of layer that cuDNN runs in one kernel. units: up to this width; None for any."""

    modes: tuple[str, ...]
    dtype: Any
    units: int | None

    def has(self, module: Any) -> bool:
        """Tells whether a module of torch.nn is a layer of this kind."""
        dtype = module.weight_hh_l0.dtype
        fits = self.units is None or module.hidden_size <= self.units
        return module.mode in self.modes and dtype == self.dtype and fits

    def __str__(self) -> str:
        """Describes the kind, for people."""
        kinds = " and ".join(dict.fromkeys(mode.partition("_")[0] for mode in self.modes))
        units = "" if self.units is None else f" of up to {self.units} units"
        return f"{kinds} in {str(self.dtype)[6:]}{units}"


KNOWN = (
    KnownLayer(("GRU", "RNN_TANH", "RNN_RELU"), torch.float32, 128),
    KnownLayer(("LSTM",), torch.float32, 64),
    KnownLayer(("LSTM",), torch.float16, None),
)


def reason_for_cudnn(module: Any, has_lengths: bool) -> str:
    """Returns why a layer stays with cuDNN; "" if it does not.

    module: of torch.nn. has_lengths: whether sequences may differ in length.
    """
    if has_lengths or module.bidirectional or module.proj_size:
        return ""
    known = next((kind for kind in KNOWN if kind.has(module)), None)
    return "" if known is None else f"cuDNN is as fast for {known}"
