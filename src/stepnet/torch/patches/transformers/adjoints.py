"""Gradients of recurrences with a matrix for each head, without the matrices of all steps.

    h = a h + u B         y = h C                      forward, and again with B, u and dy as u, B and C: dC
    G = K + dy C          du = G B         K = a G     backward, and with the other axis of G read: dB

The generic gradient saves a matrix of every step: 33 MB for 256 steps of 8 heads of 64 x 64. Each line here
is a recurrence of its own over vectors, whose matrix stays in the nearest cache. The gradient of a decay, d
log(a[t]), is the sum of all products of a h[t - 1] and G[t]; of neighbouring steps these differ by products
of vectors, so that it is a sum over the later steps:

    d log(a[t]) = d log(a[t + 1]) + dy[t] (a h[t - 1] C[t]) - u[t] (K[t] B[t])

where h is read before u B is written, and K before dy C. (Written out, dy y - u du has the product of both,
which cancels: 1 beside terms of size a.) S. Yang and others, "Gated linear attention transformers with
hardware-efficient training", 2023 (arXiv 2312.06635), section 4.4 and appendix C, has such a sum for a linear
recurrence. The delta rule writes k w beta in the place of u B, and its adjoint is corrected by k e:

    d log(a[t]) = d log(a[t + 1]) + q (a S do) - k (a S e) - k (K u)        u = beta w,  e = beta d

The terms of such a sum are larger than the sum, and the errors of all steps add up. So the recurrences that
give its terms run in float64, which is exact for this purpose, and takes twice their time. The identity holds
for the u and e that were really written: those of the delta rule, which depend on what was written before,
are made in float64 and stay so. All other vectors are in the dtype of the model.
"""

from collections.abc import Sequence
from typing import Any

from stepnet.cells.keyed import read, written
from stepnet.torch.patches.transformers.scan import (
    ENGINE,
    LENGTHS,
    cast_memory,
    dtype_of,
    on_engine,
    scan_in,
)
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import is_transformed, wanted_of

torch: Any = pytorch("torch")


def needs_gradients(*tensors: Any) -> bool:
    """Tells whether a call needs gradients, because a tensor requires one, and whether `Decayed` and
    `Corrected` can compute them: not under torch.func, nor with padding.
    """
    if is_transformed() or LENGTHS.get() is not None or not torch.is_grad_enabled():
        return False
    return bool(wanted_of(tensors))


def in_one_dtype(
    x: dict[str, Any], memories: Sequence[Any], shapes: Sequence[tuple[int, ...]]
) -> tuple[dict[str, Any], list[Any]]:
    """Casts inputs and initial memories to the dtype of the computation; a memory None becomes zeros.

    Returns the inputs by name, and the memories [rows, *shape] as a list. x: the inputs by name. shapes: the
    shape of one row of each memory.
    """
    first = next(iter(x.values()))
    dtype = dtype_of(first)
    begin = [
        torch.zeros(len(first), *shape, dtype=dtype) if memory is None else cast_memory(memory, dtype)
        for memory, shape in zip(memories, shapes, strict=True)
    ]
    return {name: tensor.to(dtype) for name, tensor in x.items()}, begin


# ---- the steps ---------------------------------------------------------------------------------------------


def in_memory_dtype(x: Any, memory: Any) -> Any:
    """Casts the inputs of a step, a dict x, to the dtype of its memory, in which gradients are computed."""
    return {name: value.astype(memory.dtype) for name, value in x.items()}


def decayed(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the forward recurrence h = a h + u B, y = h C, with h [rows, heads, features,
    states] as its memory. Returns y and h.

    x: a dict of the decay a [rows, heads], the input u [rows, heads, features], and B and C [rows, heads,
        states].
    params: not read.
    """
    h = x["a"][..., None, None] * memory + x["u"][..., None] * x["B"][:, :, None]
    return (h * x["C"][:, :, None]).sum(-1), h


def decayed_again(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step that repeats the recurrence h = a h + u B in the backward pass, for gradients of C and
    the decay a. Returns (y = h C, the term that a h adds to the decay's gradient) and h.

    x: a dict of a [rows, heads], u [rows, heads, features], B and C [rows, heads, states], and z, the value
        whose gradient y is. For the forward pass's C as z, the u, B and C here are its B, u and dy (the
        output's gradient).
    memory: h [rows, heads, features, states]. params: not read.
    """
    narrow, x = x["u"].dtype, in_memory_dtype(x, memory)
    before = x["a"][..., None, None] * memory
    return read_beside(x, before, narrow), before + x["u"][..., None] * x["B"][:, :, None]


def decayed_back(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the backward recurrence G = K + u B, y = G C, K = a G, where K is the cotangent of
    the state. Returns (y, the term that K adds to the decay's gradient) and the next K.

    x: a dict of a [rows, heads], u, B, C, and z, the value whose gradient y is. For the forward pass's
        u as z, the others are dy (the output's gradient), C and B; for its B as z, they are C, dy and u.
    memory: K. params: not read.
    """
    narrow, x = x["u"].dtype, in_memory_dtype(x, memory)
    G = memory + x["u"][..., None] * x["B"][:, :, None]
    return read_beside(x, memory, narrow), x["a"][..., None, None] * G


def read_beside(x: Any, memory: Any, narrow: Any) -> tuple[Any, Any]:
    """Computes (y, a term of the decay's gradient) for a step of a backward pass. y is (memory + u B) C, the
    gradient of z; the term is the sum of z times the part of y that is read from the memory.

    x: a dict with u, B, C, and z, the value whose gradient y is. narrow: the dtype of y.
    """
    u, B, C, z = (x[name] for name in "uBCz")
    y = (memory * C[:, :, None]).sum(-1)
    return (y + u * (B * C).sum(-1)[..., None]).astype(narrow), (z * y).sum(-1)


def along_key(a: Any) -> Any:
    """Reshapes decays [heads] or [heads, key] of each row to multiply a memory [heads, key, value]."""
    return a[..., None] if len(a.shape) == 3 else a[..., None, None]


def across_key(a: Any) -> Any:
    """Reshapes decays [heads] or [heads, key] of each row to multiply a memory [heads, value, key]."""
    return a[..., None, :] if len(a.shape) == 3 else a[..., None, None]


def by_decay(a: Any, products: Any) -> Any:
    """Sums products [rows, heads, key] over keys if the decay a has one number per head."""
    return products if len(a.shape) == 3 else products.sum(-1)


def corrected(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the gated delta rule, whose memory is a matrix for each head.

    Returns (the output, w) and the next memory. w is the value minus what its key read from the memory.

    x: a dict of the query q, the key k, the value v, the decay a, and beta, the share of w that is written.
    params: not read.
    """
    narrow, x = x["q"].dtype, in_memory_dtype(x, memory)
    state = along_key(x["a"]) * memory
    w = x["v"] - read(state, x["k"])
    state = written(state, x["k"], x["beta"][..., None] * w)
    return (read(state, x["q"]).astype(narrow), w), state


def corrected_back(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the delta rule's backward recurrence G = K + q do, d = G k, K = a (G - beta k d).
    Returns d, the gradient of the written vector beta w, and the next K.

    x: a dict of the query q, the key k, the decay a, beta, and the gradient do of the output.
    memory: K, the cotangent of the state. params: not read.
    """
    x = in_memory_dtype(x, memory)
    G = written(memory, x["q"], x["do"])
    d = read(G, x["k"])
    return d, along_key(x["a"]) * written(G, x["k"], -x["beta"][..., None] * d)


def keys_back(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the delta rule's backward recurrence G = K + q do, K = a (G - k e). Returns (G u,
    the gradient of the key in the write k u; the term that K adds to the decay's gradient) and the next K.

    x: a dict of the query q, the key k, the decay a, the gradient do of the output, the written vector u, and
        the gradient e of the value.
    memory: K, the transposed cotangent of the state. params: not read.
    """
    x = in_memory_dtype(x, memory)
    q, k, do = x["q"], x["k"], x["do"]
    writes = read(memory, x["u"])
    after = across_key(x["a"]) * written(written(memory, do, q), -x["e"], k)
    return (writes + q * (do * x["u"]).sum(-1)[..., None], by_decay(x["a"], k * writes)), after


def keys_again(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step that repeats the delta rule S = a S + k u in the backward pass. Returns (S do, the
    query's gradient; a S e, which is subtracted from the key's gradient, as the key reads a S; the term that
    a S adds to the decay's gradient) and the next S.

    x: a dict of the query q, the key k, the decay a, the gradient do of the output, the written vector u, and
        the gradient e of the value.
    memory: S, transposed. params: not read.
    """
    x = in_memory_dtype(x, memory)
    q, k, do = x["q"], x["k"], x["do"]
    before = across_key(x["a"]) * memory
    dq, reads = read(before, do), read(before, x["e"])
    outputs = dq + k * (do * x["u"]).sum(-1)[..., None], reads, by_decay(x["a"], q * dq - k * reads)
    return outputs, written(before, x["u"], k)


# ---- functions of PyTorch ----------------------------------------------------------------------------------


def run_step(step: Any, memory: Any, reverse: bool = False, **x: Any) -> list[Any]:
    """Runs a step over inputs `x` [rows, steps, ...] by name, in the dtype of the initial memory.

    Returns the outputs [rows, steps, ...] and then the last memory. reverse: from the last step to the first.
    """
    return scan_in(memory.dtype, step, x, [memory], [tuple(memory.shape[1:])], {}, reverse)


def sum_to_end(differences: Any, last: Any) -> Any:
    """Sums `differences` [rows, steps, ...] from each step to the last, and adds `last` [rows, ...]: the
    gradient of a decay's logarithm at each step.
    """
    return differences.flip(1).cumsum(1).flip(1) + last[:, None]


class Decayed(torch.autograd.Function):
    """Autograd function of the recurrence h = exp(g) h + u B, y = h C.

    Inputs: g [rows, steps, heads], u [rows, steps, heads, features], B and C [rows, steps, heads, states],
    and the first h [rows, heads, features, states]. Results: y and the last h.
    """

    @staticmethod
    def forward(ctx: Any, g: Any, u: Any, B: Any, C: Any, first: Any) -> Any:
        """Runs, for PyTorch's autograd, the recurrence h = exp(g) h + u B from the state `first`; returns y =
        h C at each step, and the last h. g, u, B, C: tensors per step.
        """
        y, last = run_step(decayed, first, a=g.exp(), u=u, B=B, C=C)
        ctx.engine = ENGINE.get()
        ctx.save_for_backward(g, u, B, C, first)
        return y, last

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Computes, for PyTorch's autograd, the gradients of the recurrence h' = exp(g) h + outer product of
        u and B, y = h C: the gradients of g, u, B, C and the first h, from `cotangents` of y and the last h.
        ctx: has the values that the forward pass saved.

        The two recurrences whose terms add up to the gradient of g run in float64, as these terms cancel; if
        g needs no gradient, in the dtype of the others.
        """
        dy, dlast = cotangents
        g, u, B, C, first = ctx.saved_tensors
        a, wide = g.exp(), torch.float64 if ctx.needs_input_grad[0] else first.dtype
        with on_engine(ctx.engine):
            du, _, dfirst = run_step(decayed_back, dlast, reverse=True, a=a, u=dy, B=C, C=B, z=u)
            dB, back, _ = run_step(decayed_back, dlast.mT.to(wide), reverse=True, a=a, u=C, B=dy, C=u, z=B)
            dC, again, last = run_step(decayed_again, first.mT.to(wide), a=a, u=B, B=u, C=dy, z=C)
        if not ctx.needs_input_grad[0]:
            return None, du, dB, dC, dfirst
        dg = sum_to_end(again - back, (dlast.mT * last).sum((-2, -1)))
        return dg.to(g.dtype), du, dB, dC, dfirst


class Corrected(torch.autograd.Function):
    """Autograd function of the gated delta rule.

    Inputs: q and k [rows, steps, heads, key], v [rows, steps, heads, value], g (the logarithm of the decay)
    [rows, steps, heads] or [rows, steps, heads, key], beta [rows, steps, heads], and the first state.
    Results: the outputs, the last state, and w, which backward reads.
    """

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, first: Any) -> Any:
        """Runs the gated delta rule in float64; returns the outputs, the last state, and w for the backward
        pass.

        q, k, v: queries, keys and values. g: the logarithm of the decay. beta: the share of a correction that
        is written. first: the initial state.
        """
        o, w, last = run_step(corrected, first.double(), q=q, k=k, v=v, a=g.exp(), beta=beta)
        ctx.engine = ENGINE.get()
        ctx.mark_non_differentiable(w)
        ctx.save_for_backward(q, k, v, g, beta, first, w)
        return o, last.to(first.dtype), w

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Computes, for PyTorch's autograd, the gradients of the gated delta rule: the gradients of q, k, v,
        g, beta and the first state, from `cotangents` of the outputs and the last state. ctx: has the values
        that the forward pass saved.
        """
        do, dlast, _ = cotangents
        q, k, v, g, beta, first, w = ctx.saved_tensors
        a, first, dlast = g.exp(), first.double(), dlast.double()
        with on_engine(ctx.engine):
            if torch.is_grad_enabled():  # a gradient of this gradient needs that of w, too
                _, w, _ = run_step(corrected, first, q=q, k=k, v=v, a=a, beta=beta)
            d, dfirst = run_step(corrected_back, dlast, reverse=True, q=q, k=k, a=a, beta=beta, do=do)
            u, e = beta[..., None] * w, beta[..., None] * d
            writes, back, _ = run_step(keys_back, dlast.mT, reverse=True, q=q, k=k, a=a, do=do, u=u, e=e)
            dq, reads, again, last = run_step(keys_again, first.mT, q=q, k=k, a=a, do=do, u=u, e=e)
        ended = (dlast * last.mT).sum(-1)
        dg = sum_to_end(again - back, ended if g.dim() == 4 else ended.sum(-1))
        gradients = dq, writes - reads, e, dg, (d * w).sum(-1), dfirst
        return tuple(one.to(q.dtype) for one in gradients)
