"""Cells as step functions: gated cells, by name with `rnn`, and the cells of `FORMS`, for `RNN`.

Gated cells take a vector of inputs, and a `Cell` makes and checks their parameters. The cells of `FORMS`
take a dict of arrays by name, [rows, heads, ...], which the projections of a layer compute. Their modules are
imported at first access.
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.cells.at_test_time import ttt_linear
    from stepnet.cells.attention import gla, hgrn2, linear_attention, retnet, simple_gla
    from stepnet.cells.convolution import causal_convolution
    from stepnet.cells.delta import delta_rule, gated_delta_product, gated_delta_rule, kda
    from stepnet.cells.diagonal import lru, rg_lru, s5
    from stepnet.cells.forms import FORMS, Form, memory
    from stepnet.cells.gated import (
        CELLS,
        Cell,
        cell,
        gru,
        gru_reset_before,
        lstm,
        lstm_peephole,
        lstm_projection,
        minimal_gated_unit,
        rnn,
        simple_rnn,
        simple_rnn_relu,
    )
    from stepnet.cells.minimal import min_gru, min_lstm
    from stepnet.cells.rwkv import rwkv4, rwkv6, rwkv7
    from stepnet.cells.state_space import mamba, mamba2
    from stepnet.cells.xlstm import mlstm, slstm

__all__ = [
    "CELLS",
    "FORMS",
    "Cell",
    "Form",
    "causal_convolution",
    "cell",
    "delta_rule",
    "gated_delta_product",
    "gated_delta_rule",
    "gla",
    "gru",
    "gru_reset_before",
    "hgrn2",
    "kda",
    "linear_attention",
    "lru",
    "lstm",
    "lstm_peephole",
    "lstm_projection",
    "mamba",
    "mamba2",
    "memory",
    "min_gru",
    "min_lstm",
    "minimal_gated_unit",
    "mlstm",
    "retnet",
    "rg_lru",
    "rnn",
    "rwkv4",
    "rwkv6",
    "rwkv7",
    "s5",
    "simple_gla",
    "simple_rnn",
    "simple_rnn_relu",
    "slstm",
    "ttt_linear",
]

__getattr__ = late_names(
    __name__,
    ("at_test_time", "ttt_linear"),
    ("attention", "gla hgrn2 linear_attention retnet simple_gla"),
    ("convolution", "causal_convolution"),
    ("delta", "delta_rule gated_delta_product gated_delta_rule kda"),
    ("diagonal", "lru rg_lru s5"),
    ("forms", "FORMS Form memory"),
    ("gated", "CELLS Cell cell gru gru_reset_before lstm lstm_peephole lstm_projection"),
    ("gated", "minimal_gated_unit rnn simple_rnn simple_rnn_relu"),
    ("minimal", "min_gru min_lstm"),
    ("rwkv", "rwkv4 rwkv6 rwkv7"),
    ("state_space", "mamba mamba2"),
    ("xlstm", "mlstm slstm"),
)
__dir__ = __all__.copy
