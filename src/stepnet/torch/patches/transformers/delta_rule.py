"""The gated delta rule and Kimi's, which has a decay for each feature of keys: functions.

Functions take the arguments of transformers' own, by name and meaning.
"""

from typing import Any

import numpy as np

from stepnet.cells.delta import gated_delta_rule, kda
from stepnet.compiler.values.records import dataclass
from stepnet.torch.patches.transformers.adjoints import Corrected, in_one_dtype, needs_gradients
from stepnet.torch.patches.transformers.records import FunctionPatch
from stepnet.torch.patches.transformers.scan import scan
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")


# ---- the steps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delta:
    """Step of the gated delta rule; of Kimi's, if g has a decay for each feature of keys.

    normed: whether queries and keys are divided by their norms. If there are more heads of values than of
        keys, neighbouring heads share a key.
    """

    normed: bool

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step of the gated delta rule, or of Kimi's, which has a decay for each key feature: the
        output and the next state [rows, heads, key, value].

        x: a dict of the query q, the key k, the value v, the logarithm g of the decay, and beta. memory: the
            state before.
        """
        q, k = (unit_vectors(x[name]) if self.normed else x[name] for name in ("q", "k"))
        q = q * q.shape[-1] ** -0.5
        heads, shared = int(x["v"].shape[1]), int(k.shape[1])
        if heads != shared:
            owner = [head // (heads // shared) for head in range(heads)]
            q, k = q[:, owner], k[:, owner]
        cell = kda if len(x["g"].shape) == 3 else gated_delta_rule
        return cell({**x, "q": q, "k": k}, memory)


def unit_vectors(x: Any) -> Any:
    """Divides vectors by their norms in a step, with flash-linear-attention's constant under the root."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


# ---- the functions -----------------------------------------------------------------------------------------


def torch_chunk_gated_delta_rule(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    chunk_size: int = 64,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Any, Any]:
    """Computes the gated delta rule, or Kimi's, in place of transformers' function of that name.

    Returns the outputs [batch, time, heads, value] and the last state [batch, heads, key, value], or None
    instead of the state without `output_final_state`.

    Args:
        query: [batch, time, key heads, key].
        key: As query.
        value: [batch, time, heads, value].
        g: The logarithm of the decay [batch, time, heads]; of Kimi's [batch, time, heads, key].
        beta: [batch, time, heads].
        chunk_size: Ignored; in transformers the number of steps of a chunk.
        initial_state: The initial state, or none.
        output_final_state: Whether the last state is returned.
        use_qk_l2norm_in_kernel: Whether queries and keys are divided by their norms.
    """
    x = {"q": query, "k": key, "v": value, "g": g, "beta": beta}
    shape = value.shape[2], key.shape[3], value.shape[3]
    step = Delta(use_qk_l2norm_in_kernel)
    if needs_gradients(*x.values(), initial_state):
        outputs, last = with_gradients(step, x, initial_state, shape)
    else:
        outputs, last = scan(step, x, [initial_state], [shape], {})
    return outputs.to(query.dtype), last if output_final_state else None


def torch_recurrent_gated_delta_rule(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Any, Any]:
    """Computes the gated delta rule in place of transformers' function that runs it step by step.

    Returns the outputs [batch, time, heads, value] and the last state [batch, heads, key, value], or None in
    its place. query, key: [batch, time, key heads, key]. value: [batch, time, heads, value]. g, beta: the
    logarithm of the decay and the rate, [batch, time, heads]. The others: the initial state or none, whether
    the last state is returned, and whether queries and keys are divided by their norms.
    """
    options = output_final_state, use_qk_l2norm_in_kernel
    return torch_chunk_gated_delta_rule(query, key, value, g, beta, 64, initial_state, *options)


def with_gradients(step: Delta, x: dict[str, Any], state: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Computes the delta rule by the autograd function `Corrected`, whose gradients take little memory.

    Returns the outputs and the last state.

    step: says whether q and k are divided by their norms.
    x: the query q, the key k, the value v, g (the logarithm of the decay) and beta (the share of a correction
        that is written).
    state: the first state; None for zeros. shape: of one row's state.
    """
    x, (first,) = in_one_dtype(x, [state], [shape])
    q, k = (unit_tensors(x[name]) if step.normed else x[name] for name in ("q", "k"))
    shared = shape[0] // k.shape[2]
    q, k = (vector.repeat_interleave(shared, 2) for vector in (q * q.shape[-1] ** -0.5, k))
    outputs, last, _ = Corrected.apply(q, k, x["v"], x["g"], x["beta"], first)
    return outputs, last


def unit_tensors(x: Any) -> Any:
    """Divides vectors by their norms in PyTorch, with flash-linear-attention's constant under the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


# ---- the rows ----------------------------------------------------------------------------------------------

OPTIONS = ("output_final_state", True), ("use_qk_l2norm_in_kernel", True)
CHUNKS = ("chunk_size", 2), *OPTIONS
GATED = "query:btgk key:btgk value:bthv g:bth beta:bth initial_state:bhkv"
KIMI = "query:bthk key:bthk value:bthv g:bthk beta:bth initial_state:bhkv"
FUNCTIONS = {
    "torch_chunk_gated_delta_rule": FunctionPatch(torch_chunk_gated_delta_rule, GATED, CHUNKS),
    "torch_recurrent_gated_delta_rule": FunctionPatch(
        torch_recurrent_gated_delta_rule, GATED, OPTIONS, is_token=True
    ),
    "chunk_kimi_delta_attention": FunctionPatch(torch_chunk_gated_delta_rule, KIMI, CHUNKS),
    "recurrent_kimi_delta_attention": FunctionPatch(
        torch_recurrent_gated_delta_rule, KIMI, OPTIONS, is_token=True
    ),
}
