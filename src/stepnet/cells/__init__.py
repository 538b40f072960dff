"""Cells as step functions: gated ones by name with `rnn`, and those of `FORMS`, to be given to `RNN`.

The gated ones take a vector of inputs, and have parameters that this module makes and checks. The others
take a dict of arrays by name, [rows, heads, ...]: what the projections of a layer give. They are loaded when
they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from stepnet.cells.convolution import causal_convolution
    from stepnet.cells.delta import delta_rule, gated_delta_rule, kda
    from stepnet.cells.state_space import mamba, mamba2

__all__ = [
    "CELLS",
    "FORMS",
    "Cell",
    "Form",
    "causal_convolution",
    "cell",
    "delta_rule",
    "gated_delta_rule",
    "gru",
    "gru_reset_before",
    "kda",
    "lstm",
    "lstm_peephole",
    "lstm_projection",
    "mamba",
    "mamba2",
    "memory",
    "minimal_gated_unit",
    "rnn",
    "simple_rnn",
    "simple_rnn_relu",
]


def __getattr__(name: str) -> Any:
    if name not in FORMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{FORMS[name].family}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
