"""RWKV-4: its attention as a recurrence."""

from typing import Any

import numpy as np

from stepnet.torch.patches.transformers.records import FunctionPatch
from stepnet.torch.patches.transformers.scan import scan
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
LOWEST = -1e38
"""The exponent of RWKV before the first step."""


def weighted_mean(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of RWKV-4: a mean of values v weighted by exp(k), whose weights decay. Returns (mean,
    next memory).

    B. Peng and others, "RWKV: reinventing RNNs for the transformer era", 2023 (arXiv 2305.13048), appendix D:
    the sums are divided by exp(m), where m is the greatest exponent so far, so that nothing overflows.

    x: a dict of the keys k and the values v. memory: (sum of values, sum of weights, m).
    params: a dict of the vectors decay, which is added to exponents at each step, and first, which is added
        to the key of the current one. They may be in x instead.
    """
    k, v, (a, b, m) = x["k"], x["v"], memory
    decay, first = (x[name] if name in x else params[name] for name in ("decay", "first"))
    top = np.maximum(m, k + first)
    before, now = np.exp(m - top), np.exp(k + first - top)
    y = (before * a + now * v) / (before * b + now)
    decayed = m + decay
    top = np.maximum(decayed, k)
    before, now = np.exp(decayed - top), np.exp(k - top)
    return y, (before * a + now * v, before * b + now, top)


def rwkv_linear_attention(
    time_decay: Any, time_first: Any, key: Any, value: Any, state: Any = None, return_state: bool = False
) -> tuple[Any, Any]:
    """Computes RWKV's attention in place of transformers' function.

    Returns the outputs [batch, time, features] and the last state; None instead of the state if there was no
    state before and no `return_state`.

    Args:
        time_decay: The logarithm of the decay's exponent [features].
        time_first: The bonus that is added to the key of the current step [features].
        key: [batch, time, features].
        value: As key.
        state: Three tensors [batch, features], or none.
        return_state: Whether the last state is returned.
    """
    rows, time, features = key.shape
    begin = [None, None, key.new_full((rows, features), LOWEST)] if state is None else list(state)
    is_state_wanted = return_state or state is not None
    # The output of a single step does not depend on the decay, whose gradient is then None.
    decay = time_decay if time > 1 or is_state_wanted else time_decay.detach()
    x, params = {"k": key, "v": value}, {"decay": -torch.exp(decay), "first": time_first}
    if time == 1:  # as inputs, because `scan` caches only steps without parameters
        x |= {name: vector.expand(rows, 1, features) for name, vector in params.items()}
        params = {}
    outputs, *last = scan(weighted_mean, x, begin, [(features,)] * 3, params)
    return outputs.to(key.dtype), last if is_state_wanted else None


FUNCTIONS = {
    "rwkv_linear_attention": FunctionPatch(
        rwkv_linear_attention,
        "time_decay:c time_first:c key:btc value:btc",
        (("return_state", True),),
    ),
}
