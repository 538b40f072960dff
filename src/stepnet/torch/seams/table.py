"""Which functions and methods of transformers are seams, and what of stepnet stands in for each.

transformers writes these functions into the file of every model that uses them, always the same text, and
a layer's `forward` reads them as globals of its file. So they are known by name, and taken for what they
are only after `check` has compared them with ours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepnet.torch.seams import delta, others, selective, xlstm

PACKAGE = "transformers.models."
"""The package with the files of models. In files from elsewhere the same names may mean other things."""


def always(*_: Any, **__: Any) -> bool:
    """Returns True: stepnet runs every call of the function."""
    return True


@dataclass(frozen=True)
class Seam:
    """Function or method of transformers that stepnet replaces.

    Attributes:
        ours: The function that replaces it, with the same arguments.
        step: The name of stepnet's cell that computes it, for people.
        sizes: The tensors of the call with which `check` compares both functions, each as name:axes with a
            letter
            for each axis. Along an axis with a capital letter all numbers are equal.
        options: Other arguments of that call.
        runs: Tells from the arguments of a call whether stepnet runs it; transformers runs other calls.
        config: The configuration of the layer in that call, for a method that reads its layer.
    """

    ours: Callable[..., Any]
    step: str
    sizes: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    runs: Callable[..., bool] = always
    config: tuple[tuple[str, Any], ...] = ()


FUNCTIONS = {
    "mamba_selective_scan": Seam(
        selective.mamba_selective_scan,
        "mamba",
        "hidden_states:bct dt:bct A:cn B:bnt C:bnt D:c z:bct delta_bias:c",
        (("delta_softplus", True), ("return_last_state", True)),
    ),
    "mamba_selective_state_update": Seam(
        selective.selective_state_update,
        "mamba",
        "state:bcn hidden_states:bc dt:bc A:cn B:bn C:bn D:c z:bc dt_bias:c",
        (("dt_softplus", True),),
    ),
    "mamba2_chunk_scan": Seam(
        selective.mamba2_chunk_scan,
        "mamba2",
        "hidden_states:bthp dt:bth A:h B:btgn C:btgn D:h dt_bias:h initial_states:bhpn",
        (("chunk_size", 2), ("dt_softplus", True), ("return_final_states", True)),
    ),
    "mamba2_selective_state_update": Seam(
        selective.selective_state_update,
        "mamba2",
        "state:bhpn hidden_states:bhp dt:bhP A:hPN B:bgn C:bgn D:hP dt_bias:hP",
        (("dt_softplus", True),),
        selective.is_per_head,
    ),
    "torch_chunk_gated_delta_rule": Seam(
        delta.torch_chunk_gated_delta_rule,
        "gated_delta_rule",
        "query:btgk key:btgk value:bthv g:bth beta:bth initial_state:bhkv",
        (("chunk_size", 2), ("output_final_state", True), ("use_qk_l2norm_in_kernel", True)),
    ),
    "torch_recurrent_gated_delta_rule": Seam(
        delta.torch_recurrent_gated_delta_rule,
        "gated_delta_rule",
        "query:btgk key:btgk value:bthv g:bth beta:bth initial_state:bhkv",
        (("output_final_state", True), ("use_qk_l2norm_in_kernel", True)),
    ),
    "chunk_kimi_delta_attention": Seam(
        delta.torch_chunk_gated_delta_rule,
        "kda",
        "query:bthk key:bthk value:bthv g:bthk beta:bth initial_state:bhkv",
        (("chunk_size", 2), ("output_final_state", True), ("use_qk_l2norm_in_kernel", True)),
    ),
    "recurrent_kimi_delta_attention": Seam(
        delta.torch_recurrent_gated_delta_rule,
        "kda",
        "query:bthk key:bthk value:bthv g:bthk beta:bth initial_state:bhkv",
        (("output_final_state", True), ("use_qk_l2norm_in_kernel", True)),
    ),
    "rwkv_linear_attention": Seam(
        others.rwkv_linear_attention,
        "rwkv",
        "time_decay:c time_first:c key:btc value:btc",
        (("return_state", True),),
    ),
}
"""Functions that a `forward` reads as globals of its file, by name."""

METHODS = {
    "RecurrentGemmaRglru._rnn_scan": Seam(
        others.rnn_scan,
        "h = a h + x",
        "hidden_states:btc recurrent_gate:btc reset:bt1 recurrent_states:bc",
    ),
    "xLSTMBackend.forward": Seam(
        xlstm.mlstm,
        "mlstm",
        "query:bhtk key:bhtk value:bhtv igate:bht fgate:bht c_initial:bhkv n_initial:bhk m_initial:bh1",
        config=(("chunk_size", 2), ("eps", 0.5)),
    ),
}
"""Methods of layers, as class.method."""

WHOLE = frozenset({"mamba_inner_fn", "mamba2_split_conv1d_scan_combined"})
"""Functions for a whole layer at once, from kernels for other devices. Without these kernels they are None,
and the layer runs its parts one by one; stepnet's replacement is None too.
"""

OWN = "its recurrence is written inside its class, not as a function that stepnet can replace"
SLOWER = "PyTorch's own convolution takes less time"
LEFT = {"causal_conv1d_fn": SLOWER, "causal_conv1d_update": SLOWER}
"""Functions that are not replaced, each with the reason."""

STATES = {
    "update_recurrent_state": OWN,
    "set_linear_cache": OWN,
    "update_ssm_state": OWN,
    "update_conv_state": SLOWER,
}
"""Methods of caches whose use shows that a layer runs over steps, each with the reason why a layer without a
seam is not replaced.
"""
