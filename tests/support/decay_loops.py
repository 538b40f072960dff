"""Recurrences with decays as plain loops of PyTorch's operations over steps: what stands in for the functions
of transformers is to be as near to them in float64 as the same loops are in float32.

The arguments and results are those of transformers' functions. Long loops are taken in pieces, whose steps
are computed again for their gradients: what all steps save would be gigabytes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

PIECE = 512
Tensors = tuple[torch.Tensor, ...]


def looped(
    step: Callable[..., tuple[Any, Tensors]], state: Tensors, x: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    """The outputs [batch, time, ...] of a step, which takes x and the state, over x [batch, time, ...],
    and the last state.
    """

    def piece(*given: torch.Tensor) -> Tensors:
        state, outputs = given[: len(now)], list[torch.Tensor]()
        for values in zip(*(tensor.unbind(1) for tensor in given[len(now) :]), strict=True):
            output, state = step(*values, *state)
            outputs.append(output)
        return torch.stack(outputs, 1), *state

    now, parts = state, list[torch.Tensor]()
    for begin in range(0, x[0].shape[1], PIECE):
        given = (*now, *(tensor[:, begin : begin + PIECE] for tensor in x))
        output, *rest = (
            checkpoint(piece, *given, use_reentrant=False) if x[0].shape[1] > PIECE else piece(*given)
        )
        now, parts = tuple(rest), [*parts, output]
    return torch.cat(parts, 1), now


def shared(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Vectors [batch, time, groups, ...] of so many heads, of which neighbours share one."""
    return x.repeat_interleave(heads // x.shape[2], 2)


def normed(x: torch.Tensor) -> torch.Tensor:
    """Vectors divided by their norms."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def delta(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    chunk_size: int = 64,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Any, Any]:
    """The gated delta rule, or with g [batch, time, heads, key] Kimi's."""
    rows, _, heads, size = value.shape
    q, k = (normed(x) if use_qk_l2norm_in_kernel else x for x in (query, key))
    q, k = shared(q * key.shape[-1] ** -0.5, heads), shared(k, heads)
    first = value.new_zeros(rows, heads, key.shape[-1], size) if initial_state is None else initial_state

    def step(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[Any, Tensors]:
        state = state * (g.exp()[..., None] if g.dim() == 3 else g.exp()[..., None, None])
        error = beta[..., None] * (v - (k[..., None, :] @ state)[..., 0, :])
        state = state + k[..., None] * error[..., None, :]
        return (q[..., None, :] @ state)[..., 0, :], (state,)

    outputs, (last,) = looped(step, (first,), (q, k, value, g, beta))
    return outputs, last if output_final_state else None


def mamba2(
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    chunk_size: int = 64,
    D: Any = None,
    dt_bias: Any = None,
    initial_states: Any = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    """Mamba-2."""
    rows, _, heads, size = hidden_states.shape
    dt = dt if dt_bias is None else dt + dt_bias
    dt = torch.clamp(torch.nn.functional.softplus(dt) if dt_softplus else dt, *dt_limit)
    zeros = hidden_states.new_zeros(rows, heads, size, B.shape[-1])

    def step(x: Any, dt: Any, B: Any, C: Any, h: Any) -> tuple[Any, Tensors]:
        h = h * torch.exp(dt * A)[..., None, None] + (dt[..., None] * x)[..., None] * B[..., None, :]
        return (h @ C[..., None])[..., 0], (h,)

    first = zeros if initial_states is None else initial_states
    outputs, (last,) = looped(step, (first,), (hidden_states, dt, shared(B, heads), shared(C, heads)))
    outputs = outputs if D is None else outputs + D[:, None] * hidden_states
    return (outputs, last) if return_final_states else outputs


def mlstm(
    self: Any,
    query: Any,
    key: Any,
    value: Any,
    igate: Any,
    fgate: Any,
    c_initial: Any = None,
    n_initial: Any = None,
    m_initial: Any = None,
    **_: Any,
) -> Any:
    """The mLSTM, and its last states."""
    rows, heads, _, size = key.shape
    zeros = value.new_zeros(rows, heads, size, value.shape[-1])
    C = zeros if c_initial is None else c_initial
    n = zeros[..., 0] if n_initial is None else n_initial
    m = zeros[..., 0, 0] if m_initial is None else m_initial[..., 0]

    def step(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> tuple[Any, Tensors]:
        forget = torch.nn.functional.logsigmoid(f) + m
        m = torch.maximum(forget, i)
        f, i = torch.exp(forget - m)[..., None], torch.exp(i - m)[..., None]
        C, n = f[..., None] * C + (i * k)[..., None] * v[..., None, :], f * n + i * k
        over = torch.maximum((q * n).sum(-1).abs(), torch.exp(-m)) + self.config.eps
        return (q[..., None, :] @ C)[..., 0, :] / over[..., None], (C, n, m)

    x = query * size**-0.5, key, value, igate, fgate
    outputs, (C, n, m) = looped(step, (C, n, m), [tensor.transpose(1, 2) for tensor in x])
    return outputs.transpose(1, 2), (C, n, m[..., None])
