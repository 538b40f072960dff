"""Gradients of recurrences with a matrix for each head, without the matrices of all steps.

    h = a h + u B         y = h C                      forward, and again with B, u and dy as u, B and C: dC
    G = K + dy C          du = G B         K = a G     backward, and with the other axis of G read: dB

What the generic gradient reads of every step, a matrix, is 33 MB for 256 steps of 8 heads of 64 x 64. Each
line here is a recurrence of its own over vectors, whose matrix stays in the nearest cache. The gradient of a
decay a needs the sum of all products of G and the matrix before it; of neighbouring steps these differ by
products of vectors, so that it is a sum over the later steps:

    d log(a[t]) = d log(a[t + 1]) + dy[t] y[t] - u[t] du[t]

S. Yang and others, "Gated linear attention transformers with hardware-efficient training", 2023 (arXiv
2312.06635), section 4.4 and appendix C, has it for a linear recurrence; the delta rule has the same sum with
v dv in the place of u du, and with a decay for each feature of the key, k (G u + e a S) in its place.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.cells.keyed import read, written
from stepnet.torch.function import is_transformed, wanted_of
from stepnet.torch.pytorch import pytorch
from stepnet.torch.seams.scan import LENGTHS, dtype_of, own, scans

torch: Any = pytorch("torch")


def is_for(*tensors: Any) -> bool:
    """Whether a call has gradients that are computed here: not those of torch.func, nor with padding."""
    if is_transformed() or LENGTHS.get() is not None or not torch.is_grad_enabled():
        return False
    return bool(wanted_of(tensors))


def in_one_dtype(
    x: dict[str, Any], memories: Sequence[Any], shapes: Sequence[tuple[int, ...]]
) -> tuple[dict[str, Any], list[Any]]:
    """Inputs and memories [rows, *shape], zeros for None, as `scans` takes them."""
    first = next(iter(x.values()))
    dtype = dtype_of(first)
    begin = [
        torch.zeros(len(first), *shape, dtype=dtype) if memory is None else own(memory, dtype)
        for memory, shape in zip(memories, shapes, strict=True)
    ]
    return {name: tensor.to(dtype) for name, tensor in x.items()}, begin


# ---- the steps ---------------------------------------------------------------------------------------------


def decayed(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """h = a h + u B, y = h C."""
    h = np.exp(x["g"])[..., None, None] * memory + x["u"][..., None] * x["B"][:, :, None]
    return (h * x["C"][:, :, None]).sum(-1), h


def decayed_back(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """G = K + u B, y = G C, K = a G."""
    G = memory + x["u"][..., None] * x["B"][:, :, None]
    return (G * x["C"][:, :, None]).sum(-1), np.exp(x["g"])[..., None, None] * G


def along_key(g: Any) -> Any:
    """The decay of a memory [heads, key, value], for g [heads] or [heads, key]."""
    return np.exp(g)[..., None] if len(g.shape) == 3 else np.exp(g)[..., None, None]


def across_key(g: Any) -> Any:
    """The decay of a memory [heads, value, key]."""
    return np.exp(g)[..., None, :] if len(g.shape) == 3 else np.exp(g)[..., None, None]


def corrected(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """The gated delta rule: what is read after the step, and the difference w of the value and what its key
    read.
    """
    state = along_key(x["g"]) * memory
    w = x["v"] - read(state, x["k"])
    state = written(state, x["k"], x["beta"][..., None] * w)
    return (read(state, x["q"]), w), state


def corrected_back(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """The gradient of what was written, beta w."""
    G = written(memory, x["q"], x["do"])
    d = read(G, x["k"])
    return d, along_key(x["g"]) * written(G, x["k"], -x["beta"][..., None] * d)


def keys_back(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """The gradient of the key that writes, where that of the value, e, is known: G u."""
    G = written(memory, x["do"], x["q"])
    return read(G, x["u"]), across_key(x["g"]) * written(G, -x["e"], x["k"])


def keys_again(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """The gradient of the query, and that of the key that reads, but for its sign: e a S."""
    before = across_key(x["g"]) * memory
    state = written(before, x["u"], x["k"])
    return (read(state, x["do"]), read(before, x["e"])), state


# ---- what PyTorch runs -------------------------------------------------------------------------------------


def run(step: Any, memory: Any, **x: Any) -> list[Any]:
    """The outputs of a step, and its last memory."""
    return scans(step, x, [memory], [tuple(memory.shape[1:])], {})


def run_back(step: Any, memory: Any, **x: Any) -> list[Any]:
    """The same from the last step to the first one."""
    *outputs, last = run(step, memory, **{name: tensor.flip(1) for name, tensor in x.items()})
    return [*(output.flip(1) for output in outputs), last]


def later(differences: Any, last: Any) -> Any:
    """The sums of the steps from each one on [rows, steps, ...], to which `last` [rows, ...] is added."""
    return differences.flip(1).cumsum(1).flip(1) + last[:, None]


class Decayed(torch.autograd.Function):
    """y and the last h of g (the logarithm of a) [rows, steps, heads], u [..., features], B and C
    [..., states], and the first h [rows, heads, features, states].
    """

    @staticmethod
    def forward(ctx: Any, g: Any, u: Any, B: Any, C: Any, first: Any) -> Any:
        """See the class."""
        y, last = run(decayed, first, g=g, u=u, B=B, C=C)
        ctx.save_for_backward(g, u, B, C, first, y, last)
        return y, last

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The gradients of all."""
        dy, dlast = cotangents
        g, u, B, C, first, y, last = ctx.saved_tensors
        du, dfirst = run_back(decayed_back, dlast, g=g, u=dy, B=C, C=B)
        dB, _ = run_back(decayed_back, dlast.mT, g=g, u=C, B=dy, C=u)
        dC, _ = run(decayed, first.mT, g=g, u=B, B=u, C=dy)
        dg = later((dy * y - u * du).sum(-1), (dlast * last).sum((-2, -1)))
        return dg, du, dB, dC, dfirst


class Corrected(torch.autograd.Function):
    """o and the last state of q, k [rows, steps, heads, key], v [..., value], g (as the logarithm of a decay
    [rows, steps, heads] or [..., key]), beta [rows, steps, heads] and the first state.
    """

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, first: Any) -> Any:
        """See the class."""
        o, w, last = run(corrected, first, q=q, k=k, v=v, g=g, beta=beta)
        ctx.mark_non_differentiable(w)
        ctx.save_for_backward(q, k, v, g, beta, first, last, w)
        return o, last, w

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The gradients of all."""
        do, dlast, _ = cotangents
        q, k, v, g, beta, first, last, w = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a gradient of this gradient w has one, too
            _, w, _ = run(corrected, first, q=q, k=k, v=v, g=g, beta=beta)
        d, dfirst = run_back(corrected_back, dlast, q=q, k=k, g=g, beta=beta, do=do)
        u, e = beta[..., None] * w, beta[..., None] * d
        writes, _ = run_back(keys_back, dlast.mT, q=q, k=k, g=g, do=do, u=u, e=e)
        dq, reads, _ = run(keys_again, first.mT, k=k, g=g, do=do, u=u, e=e)
        dg = later(q * dq - k * (writes + reads), (dlast * last).sum(-1))
        return dq, writes - reads, e, dg if g.dim() == 4 else dg.sum(-1), (d * w).sum(-1), dfirst
