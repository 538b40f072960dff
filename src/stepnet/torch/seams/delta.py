"""What stands in for transformers' functions of delta rules. The arguments are those of transformers."""

from typing import Any

from stepnet.torch.pytorch import pytorch
from stepnet.torch.seams.adjoints import Corrected, in_one_dtype, is_for
from stepnet.torch.seams.scan import scan
from stepnet.torch.seams.steps import Delta

torch: Any = pytorch("torch")


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
    """The outputs [batch, time, heads, value] of the gated delta rule, and with `output_final_state` the last
    state [batch, heads, key, value], else None.

    Args:
        query: [batch, time, key heads, key].
        key: As query.
        value: [batch, time, heads, value].
        g: The logarithm of the decay [batch, time, heads].
        beta: [batch, time, heads].
        chunk_size: How transformers cuts time into pieces.
        initial_state: The state to begin with, or none.
        output_final_state: Whether the last state is given.
        use_qk_l2norm_in_kernel: Whether queries and keys are divided by their norms.
    """
    return delta(
        Delta(use_qk_l2norm_in_kernel, by_key=False),
        (query, key, value, g, beta),
        initial_state,
        output_final_state,
    )


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
    """As `torch_chunk_gated_delta_rule`."""
    return delta(
        Delta(use_qk_l2norm_in_kernel, by_key=False),
        (query, key, value, g, beta),
        initial_state,
        output_final_state,
    )


def chunk_kimi_delta_attention(
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
    """As `torch_chunk_gated_delta_rule`, with g [batch, time, heads, key]."""
    return delta(
        Delta(use_qk_l2norm_in_kernel, by_key=True),
        (query, key, value, g, beta),
        initial_state,
        output_final_state,
    )


def recurrent_kimi_delta_attention(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Any, Any]:
    """As `chunk_kimi_delta_attention`."""
    return delta(
        Delta(use_qk_l2norm_in_kernel, by_key=True),
        (query, key, value, g, beta),
        initial_state,
        output_final_state,
    )


def delta(step: Delta, inputs: tuple[Any, ...], state: Any, is_last_wanted: bool) -> tuple[Any, Any]:
    """The outputs of a delta rule, and its last state where that is wanted."""
    names = "q", "k", "v", "g", "beta"
    named: dict[str, Any] = dict(zip(names, inputs, strict=True))
    value = named["v"]
    shape = value.shape[2], named["k"].shape[3], value.shape[3]
    if is_for(*inputs, state):
        outputs, last = with_gradients(step, named, state, shape)
        return outputs.to(named["q"].dtype), last if is_last_wanted else None
    outputs, (last,) = scan(step, named, [state], [shape], {})
    return outputs.to(named["q"].dtype), last if is_last_wanted else None


def with_gradients(step: Delta, x: dict[str, Any], state: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The same with the gradients of `Corrected`: the vectors of the step are made by PyTorch."""
    x, first = in_one_dtype(x, state, shape)
    q, k = (normed(x[name]) if step.normed else x[name] for name in ("q", "k"))
    shared = shape[0] // k.shape[2]
    q, k = (vector.repeat_interleave(shared, 2) for vector in (q * q.shape[-1] ** -0.5, k))
    outputs, last, _ = Corrected.apply(q, k, x["v"], x["g"], x["beta"], first)
    return outputs, last.clone()  # the cache gets a copy of what backward needs


def normed(x: Any) -> Any:
    """Vectors divided by their norms, as in `steps`."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
