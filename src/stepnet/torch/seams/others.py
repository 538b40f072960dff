"""What stands in for transformers' other functions: RecurrentGemma's RG-LRU and RWKV's attention."""

from typing import Any

from stepnet.torch.pytorch import pytorch
from stepnet.torch.seams.scan import scan
from stepnet.torch.seams.steps import linear_recurrence, weighted_mean

torch: Any = pytorch("torch")
LOWEST = -1e38
"""The exponent of RWKV before the first step."""


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
        reset: Where the state begins anew [batch, time, 1].
        recurrent_states: The state to begin with [batch, features], or none.
        acc_dtype: In what transformers computes.
    """
    gate = recurrent_gate * ~reset
    x = {"x": hidden_states, "a": gate}
    outputs, (last,) = scan(linear_recurrence, x, [recurrent_states], [(gate.shape[2],)], {})
    return outputs.to(hidden_states.dtype), last


def rwkv_linear_attention(
    time_decay: Any, time_first: Any, key: Any, value: Any, state: Any = None, return_state: bool = False
) -> tuple[Any, Any]:
    """Computes RWKV's attention in place of transformers' function.

    Returns the outputs [batch, time, features] and the last state; None instead of the state if there was no
    state before and no `return_state`.

    Args:
        time_decay: The logarithm of the decay's exponent [features].
        time_first: What is added to the key of the step itself [features].
        key: [batch, time, features].
        value: As key.
        state: Three tensors [batch, features], or none.
        return_state: Whether the last state is given.
    """
    rows, time, features = key.shape
    begin = [None, None, key.new_full((rows, features), LOWEST)] if state is None else list(state)
    is_state_wanted = return_state or state is not None
    # The output of a single step does not depend on the decay, whose gradient is then None.
    decay = time_decay if time > 1 or is_state_wanted else time_decay.detach()
    x, params = {"k": key, "v": value}, {"decay": -torch.exp(decay), "first": time_first}
    if time == 1:  # as inputs of the step, for which `scans` has a step without parameters prepared
        x |= {name: vector.expand(rows, 1, features) for name, vector in params.items()}
        params = {}
    outputs, last = scan(weighted_mean, x, begin, [(features,)] * 3, params)
    return outputs.to(key.dtype), last if is_state_wanted else None
