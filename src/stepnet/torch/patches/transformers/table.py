"""The tables: functions, methods and layers of transformers, by the names that they have there.

The entries are in the files of their families. `check` has compared a function with stepnet's before it is
replaced.
"""

from stepnet.torch.patches.transformers import (
    delta_layers,
    delta_rule,
    lightning,
    mamba,
    mamba_layers,
    recurrent_gemma,
    rwkv,
    short_convolution,
    xlstm,
)

FUNCTIONS = mamba.FUNCTIONS | delta_rule.FUNCTIONS | rwkv.FUNCTIONS
"""Functions that a `forward` reads as globals of its file."""
METHODS = recurrent_gemma.METHODS | xlstm.METHODS | lightning.METHODS
"""Methods of layers, as class.method."""
MIXERS = mamba_layers.MIXERS | delta_layers.MIXERS | short_convolution.MIXERS | lightning.MIXERS
"""Layers whose tokens are one step."""
LAYERS = MIXERS | mamba_layers.BLOCKS
"""Layers, and the blocks around them, whose tokens are one step."""

WHOLE = frozenset({"mamba_inner_fn", "mamba2_split_conv1d_scan_combined"})
"""Functions for a whole layer at once, from kernels for other devices. Without these kernels they are None,
and the layer runs its parts one by one; stepnet's replacement is None too.
"""

OWN = "its recurrence is written inside its class, not as a function that stepnet can replace"
SLOWER = "PyTorch's own convolution takes less time"
WINDOW = "it remembers only its last inputs, which needs no recurrence"
LEFT = {"causal_conv1d_fn": SLOWER, "causal_conv1d_update": SLOWER}
"""Functions that are not replaced, each with the reason."""

STATES = {
    "update_recurrent_state": OWN,
    "set_linear_cache": OWN,
    "update_ssm_state": OWN,
    "update_conv_state": WINDOW,
    "conv1d_state": WINDOW,
    "time_shift": WINDOW,
}
"""Methods of caches, and attributes of layers, whose use shows that a layer runs over steps, each with the
reason why a layer without a function of a table is not replaced.
"""
