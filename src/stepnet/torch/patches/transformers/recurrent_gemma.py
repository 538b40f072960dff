"""RecurrentGemma's recurrence, h = a h + x: a method, its step and its row.

A new family of models is a file such as this one, whose rows `table` adds to its own.
"""

from typing import Any

from stepnet.torch.patches.transformers.records import FunctionPatch
from stepnet.torch.patches.transformers.scan import scan
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


def linear_recurrence(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of an RG-LRU after its gates, h = a h + x; returns (output h, next memory h).

    S. De and others, "Griffin: mixing gated linear recurrences with local attention for efficient language
    models", 2024 (arXiv 2402.19427).

    x: a dict of the decay a and the gated input x. params: not read.
    """
    h = x["a"] * memory + x["x"]
    return h, h


def rnn_scan(
    self: Any,
    hidden_states: Any,
    recurrent_gate: Any,
    reset: Any,
    recurrent_states: Any,
    acc_dtype: Any = torch.float32,
) -> tuple[Any, Any]:
    """Computes RecurrentGemma's linear recurrence in place of its method; returns outputs [batch, time,
    features] and the last state.

    Args:
        self: The layer.
        hidden_states: The inputs [batch, time, features].
        recurrent_gate: The decay [batch, time, features].
        reset: Whether the state is reset before a step [batch, time, 1].
        recurrent_states: The initial state [batch, features], or none.
        acc_dtype: Ignored; the dtype in which transformers computes.
    """
    gate = recurrent_gate * ~reset
    x = {"x": hidden_states, "a": gate}
    outputs, last = scan(linear_recurrence, x, [recurrent_states], [(gate.shape[2],)], {})
    return outputs.to(hidden_states.dtype), last


METHODS = {
    "RecurrentGemmaRglru._rnn_scan": FunctionPatch(
        rnn_scan, "hidden_states:btc recurrent_gate:btc reset:bt1 recurrent_states:bc"
    ),
}
