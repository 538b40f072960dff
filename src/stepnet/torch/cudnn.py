"""Layers that stay with cuDNN on a GPU with `engine="auto"`: cuDNN was measured to be as fast or faster
there. Modules choose by the table `KNOWN`; their `repr` and `explain`, and docs/gpu.md, show it. The
measurements are of one direction and of sequences of equal length; where lengths differ, or both directions
run, cuDNN launches kernels for every step.
"""

from typing import Any

from stepnet.compiler.values.records import dataclass
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
CELLS = "PyTorch has kernels for a single step"
"""Why a cell stays with PyTorch: nothing is kept on the chip from step to step."""


@dataclass(frozen=True)
class KnownLayer:
    """A kind of layer that cuDNN runs in one kernel.

    units: up to this width; None for any. measured: the times of 16 sequences of 1024 steps on an H100.
    """

    modes: tuple[str, ...]
    dtype: Any
    units: int | None
    measured: str

    def has(self, module: Any, dtype: Any) -> bool:
        """Tells whether a module of torch.nn that runs in a dtype is a layer of this kind."""
        fits = self.units is None or module.hidden_size <= self.units
        return module.mode in self.modes and dtype == self.dtype and fits

    def __str__(self) -> str:
        """Describes the kind, for people."""
        kinds = " and ".join(dict.fromkeys(mode.partition("_")[0] for mode in self.modes))
        units = "" if self.units is None else f" of up to {self.units} units"
        return f"{kinds} in {str(self.dtype)[6:]}{units}"


KNOWN = (
    KnownLayer(
        ("GRU", "RNN_TANH", "RNN_RELU"),
        torch.float32,
        128,
        "GRU of 64 and 128 units: 0.8 and 1.0 ms, where the target takes 1.7 and 1.8",
    ),
    KnownLayer(("LSTM",), torch.float32, 64, "64 units: 0.8 ms, where the target takes 2.1"),
    KnownLayer(("LSTM",), torch.float16, None, "the step no slower than that of the target's prototype"),
)


def known_layer(module: Any, dtype: Any, has_lengths: bool) -> KnownLayer | None:
    """Returns the kind of a layer that stays with cuDNN; None if it does not. module: of torch.nn. dtype: in
    which it runs. has_lengths: whether sequences may differ in length.
    """
    if has_lengths or module.bidirectional or module.proj_size:
        return None
    return next((kind for kind in KNOWN if kind.has(module, dtype)), None)


def reason_for_cudnn(module: Any, dtype: Any, has_lengths: bool) -> str:
    """Returns the reason why a layer stays with cuDNN, or "". It takes the arguments of `known_layer`."""
    known = known_layer(module, dtype, has_lengths)
    return "" if known is None else f"cuDNN is as fast for {known}"
