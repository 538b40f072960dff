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
    """Computes the gated delta rule, or Kimi's, in place of transformers' function of that name.

    Returns the outputs [batch, time, heads, value] and the last state [batch, heads, key, value], or None
    instead of the state without `output_final_state`.

    Args:
        query: [batch, time, key heads, key].
        key: As query.
        value: [batch, time, heads, value].
        g: The logarithm of the decay [batch, time, heads]; of Kimi's [batch, time, heads, key].
        beta: [batch, time, heads].
        chunk_size: How transformers cuts time into pieces.
        initial_state: The state to begin with, or none.
        output_final_state: Whether the last state is given.
        use_qk_l2norm_in_kernel: Whether queries and keys are divided by their norms.
    """
    x = {"q": query, "k": key, "v": value, "g": g, "beta": beta}
    shape = value.shape[2], key.shape[3], value.shape[3]
    step = Delta(use_qk_l2norm_in_kernel)
    if is_for(*x.values(), initial_state):
        outputs, last = with_gradients(step, x, initial_state, shape)
    else:
        outputs, (last,) = scan(step, x, [initial_state], [shape], {})
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
    """Computes the gated delta rule, in place of transformers' function that goes step by step."""
    options = output_final_state, use_qk_l2norm_in_kernel
    return torch_chunk_gated_delta_rule(query, key, value, g, beta, 64, initial_state, *options)


def with_gradients(step: Delta, x: dict[str, Any], state: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Computes the delta rule with the gradients of `Corrected`; PyTorch makes the step's vectors and their
    gradients.

    Returns the outputs and the last state. state: the first one; None for zeros.
    """
    x, (first,) = in_one_dtype(x, [state], [shape])
    q, k = (normed(x[name]) if step.normed else x[name] for name in ("q", "k"))
    shared = shape[0] // k.shape[2]
    q, k = (vector.repeat_interleave(shared, 2) for vector in (q * q.shape[-1] ** -0.5, k))
    outputs, last, _ = Corrected.apply(q, k, x["v"], x["g"], x["beta"], first)
    return outputs, last


def normed(x: Any) -> Any:
    """Divides vectors by their norms in PyTorch, as `steps.normed` does in a step."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
