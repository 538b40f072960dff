"""Operations of steps on tensors, by name: each case is a function of an `o` that holds a step's values.

They are a [rows, 4], b [rows, 4] (a memory), m [rows, 2, 3], s [rows], k [rows] (integers from 0 to 4) and
t [rows, 4] (booleans); of parameters W [4, 3], v [4], E [5, 3] and B [2, 3].
"""

from collections.abc import Callable
from typing import Any

import torch

Case = Callable[[Any], Any]
F: Any = torch.nn.functional
SHAPES: dict[str, tuple[int, ...]] = {"a": (4,), "b": (4,), "m": (2, 3), "s": (), "k": (), "t": (4,)}
PARAMETERS = {"W": (4, 3), "v": (4,), "E": (5, 3), "B": (2, 3)}
CLOSED = torch.arange(8.0).reshape(2, 4) / 8
CUBE = torch.arange(48.0, dtype=torch.float64).reshape(3, 4, 4) / 48
TABLE_OF_3 = CUBE[:, :, :3]
PLACES = torch.tensor([2, 0])

POINTWISE: dict[str, Case] = {
    "add": lambda o: o.a + o.b,
    "add alpha": lambda o: torch.add(o.a, o.b, alpha=2),
    "subtract": lambda o: o.a - o.b - 1,
    "subtract alpha": lambda o: torch.sub(o.a, o.b, alpha=0.5),
    "from a number": lambda o: 1 - o.a,
    "rsub": lambda o: torch.rsub(o.a, 2, alpha=3),
    "multiply": lambda o: o.a * o.b * 2,
    "divide": lambda o: o.a / (o.b.abs() + 1) / 3,
    "divide by rows": lambda o: o.a / (2 + o.s[:, None]),
    "divide down": lambda o: torch.div(o.a * 7, 2, rounding_mode="floor"),
    "divide towards zero": lambda o: torch.div(o.a * 7, o.v + 3, rounding_mode="trunc"),
    "integers towards zero": lambda o: torch.div(o.k - 3, 2, rounding_mode="trunc"),
    "floor_divide": lambda o: (o.k - 3) // 2,
    "remainder": lambda o: torch.remainder(o.a * 7, 3) + (o.a * 7) % (o.v + 2),
    "integers towards zero and down": lambda o: (
        torch.div(3 - o.k, o.k + 1, rounding_mode="trunc") - (3 - o.k) // (o.k + 1)
    ),
    "by no rounding": lambda o: torch.div(o.a, o.b.abs() + 1, rounding_mode=None),
    "remainder of a number": lambda o: (7 % (o.k + 2))[:, None] + torch.remainder(2.5, o.a + 3),
    "negative": lambda o: -o.a,
    "abs": lambda o: abs(o.a),
    "sign": lambda o: torch.sign(o.a) + torch.sign(o.a.log()).nan_to_num(5.0),
    "floor, ceil, round, trunc": lambda o: torch.stack(
        [(3 * o.a).floor(), (3 * o.a).ceil(), (3 * o.a).round(), (3 * o.a).trunc()], -1
    ),
    "integers are whole": lambda o: torch.stack([o.k.floor(), o.k.ceil(), o.k.round(), o.k.trunc()], -1),
    "signs of others": lambda o: torch.sign(o.k - 2)[:, None] * torch.sign(o.t),
    "exp": lambda o: o.a.exp() + torch.expm1(o.b),
    "log": lambda o: torch.log(o.a + 3) + torch.log1p(o.b.abs()),
    "log2": lambda o: torch.log2(o.a + 3) + torch.log10(o.b + 3),
    "sqrt": lambda o: o.a.abs().sqrt() + (o.a.abs() + 1).rsqrt() + (o.a + 3).reciprocal(),
    "powers": lambda o: o.a**2 + o.a**3 + (o.a + 3) ** 0.5 + (o.a + 3) ** -1 + (o.a + 3) ** 1.7 + 2**o.a,
    "other powers": lambda o: (
        (o.a + 3) ** 0 + (o.a + 3) ** -0.5 + (o.a + 3) ** -2 + o.a**20 + 2.0 ** o.k[:, None]
    ),
    "powers of integers": lambda o: o.k**19 + o.k**0 + (o.k - 2) ** 3,
    "sin": lambda o: torch.sin(9 * o.a) + o.b.cos() + torch.tan(o.a / 2),
    "sinh": lambda o: torch.sinh(o.a) + o.b.cosh() + torch.atan(3 * o.a),
    "norms of groups": lambda o: (
        F.group_norm(o.a, 2, o.v, o.v) + F.instance_norm(o.a[:, :, None] * o.v).mean(-1)
    ),
    "norms of instances": lambda o: F.instance_norm(o.m * o.s[:, None, None]),
    "arcs": lambda o: torch.asin(o.a.tanh()) + torch.acos(o.b.tanh()) + torch.asinh(3 * o.a),
    "area functions": lambda o: torch.acosh(o.a.abs() + 1.5) + torch.atanh(o.b.tanh()) + torch.exp2(o.a),
    "atan2": lambda o: torch.atan2(o.a, o.b) + torch.hypot(o.a, o.v) + torch.logaddexp(o.a, o.b),
    "powers by values": lambda o: (o.a.abs() + 0.1) ** o.b + o.a ** o.k[:, None] + (-2.0) ** o.b.round(),
    "fmod": lambda o: torch.fmod(7 * o.a, 2) + torch.fmod(7 * o.a, o.v.abs() + 1),
    "prod": lambda o: o.a * o.m.prod(1).prod(-1, keepdim=True),
    "tanh": lambda o: torch.tanh(o.a) + torch.sigmoid(o.b) + torch.erf(o.a),
    "relu": lambda o: torch.relu(o.a) + F.leaky_relu(o.b, 0.2) + F.leaky_relu(o.b),
    "elu": lambda o: F.elu(o.a, 0.7) + F.selu(o.b) + F.celu(o.a, 2.0),
    "gelu": lambda o: F.gelu(o.a) + F.gelu(o.b, approximate="tanh"),
    "silu": lambda o: F.silu(o.a) + F.mish(o.b) + F.softplus(o.a) + F.softsign(o.b),
    "hard": lambda o: F.hardtanh(o.a, -0.3, 0.4) + F.hardsigmoid(o.b) + F.hardswish(o.a) + F.relu6(o.b),
    "logsigmoid": lambda o: F.logsigmoid(o.a) + F.tanhshrink(o.b) + F.glu(o.a).repeat(1, 2),
    "hardtanh": lambda o: F.hardtanh(o.a) + F.hardtanh(o.k, -1, 2)[:, None] + F.relu6(o.k)[:, None],
    "minimum": lambda o: torch.minimum(o.a, o.b) + torch.maximum(o.a, o.v),
    "clamp": lambda o: o.a.clamp(-0.3, 0.3) + o.b.clamp(min=0) + o.b.clamp_max(0.2),
    "clamp by tensors": lambda o: o.a.clamp(-o.v.abs(), o.b.abs() - o.v.abs()),
    "lerp": lambda o: torch.lerp(o.a, o.b, 0.3) + torch.addcmul(o.a, o.b, o.v, value=2),
    "copy in place": lambda o: o.a.clone().add_(o.b).mul_(2).detach(),
    "alias": lambda o: torch.ops.aten.alias(o.a),
    "copy": lambda o: torch.zeros_like(o.a).copy_(o.v),
    "features in place": lambda o: in_place(o.a.clone(), o.b),
    "integers beside floats": lambda o: o.a * o.k[:, None] + o.k[:, None] / 2,
    "exp of integers": lambda o: torch.exp(o.k) + o.k**2,
    "number of another dtype": lambda o: o.k + 0.5,
    "closed tensor": lambda o: o.a + CLOSED[0] + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "parameters alone": lambda o: o.a + (o.v.exp() * 2 - o.W.sum(-1)),
    "masked": lambda o: o.a.masked_fill(o.t, 0.5) + F.threshold(o.b, 0.1, -1),
}

CONDITIONS: dict[str, Case] = {
    "where": lambda o: torch.where(o.a > o.b, o.a, o.b),
    "where number": lambda o: torch.where(o.a >= 0, o.a, 0.0),
    "where integers": lambda o: torch.where(o.t, o.k[:, None], o.a),
    "comparisons": lambda o: torch.stack(
        [o.a == o.b, o.a != o.b, o.a < o.b, o.a <= o.b, o.a > o.b, o.a >= o.b], 1
    ),
    "with numbers": lambda o: torch.stack(
        [o.k == 2, o.k != 2, o.k < 2.5, o.k <= 2, o.k > 1.5, o.k >= 2, o.s < 0], 1
    ),
    "logical": lambda o: torch.stack(
        [
            torch.logical_and(o.a, o.t),
            torch.logical_or(o.t, o.a > 0),
            torch.logical_xor(o.t, o.a),
            torch.logical_not(o.t),
        ],
        1,
    ),
    "bitwise": lambda o: torch.stack([o.t & (o.a > 0), o.t | (o.a > 0), o.t ^ (o.a > 0), ~o.t], 1),
    "bits of integers": lambda o: torch.stack([o.k & 6, o.k | 1, o.k ^ 5, ~o.k], 1),
    "bitwise with numbers": lambda o: torch.stack([o.t & True, o.t | False, o.t ^ True], 1),
    "booleans added": lambda o: torch.add(o.t, o.a > 0, alpha=3),
    "nan": lambda o: torch.stack([o.a.log().isnan(), (o.a / 0).isinf()], 1),
    "any": lambda o: torch.stack([o.t.any(-1), o.t.all(-1), (o.m > 0.5).any(1).all(1)], 1),
    "any of several axes": lambda o: torch.any(o.m > 0.9, dim=(1, 2)),
    "any of parameters": lambda o: o.a * (o.v > 0).any() + o.b * (o.E > 5).any(),
    "casts": lambda o: torch.stack([(4 * o.a).int().double(), o.t.to(o.a.dtype), o.a.bool().double()], 1),
    "cast of integers": lambda o: o.k.to(torch.int32) + o.k.float().long(),
}

FEATURES: dict[str, Case] = {
    "sum": lambda o: o.a.sum(-1) + o.m.sum((1, 2)) + o.v.sum() + o.E.sum(0)[0],
    "sum of integers": lambda o: o.k[:, None].int().sum(-1) + o.t.sum(1),
    "mean": lambda o: o.m.mean(1) + o.m.mean((1, 2))[:, None] + o.E.mean(),
    "extremes of parameters": lambda o: o.a * o.v.max() + o.E.min(),
    "extremes of integers": lambda o: torch.stack([o.k, 2 - o.k, 3 * o.k], 1).min(1),
    "extremes of booleans": lambda o: (*o.t.min(1), o.t.amax(1)),
    "extremes": lambda o: o.m.amax(1) + o.m.amin((1, 2), keepdim=True)[:, 0],
    "extremes and places": lambda o: (*o.m.max(1), *o.m.min(-1, keepdim=True)),
    "places": lambda o: o.a.argmax(-1) - o.a.argmin(1),
    "variance": lambda o: o.m.var(1) + o.m.std(1, correction=0) + sum(torch.var_mean(o.m, 1)),
    "norm": lambda o: o.a.norm(dim=-1) + o.a.norm(1, dim=1) + o.a.norm(float("inf"), dim=1),
    "normalize": lambda o: F.normalize(o.a) + F.cosine_similarity(o.a, o.b)[:, None],
    "softmax": lambda o: o.m.softmax(1) + F.log_softmax(o.m, -1) + F.softmin(o.m, dim=-1),
    "softmax of large numbers": lambda o: (2000 * o.m).softmax(-1) + F.log_softmax(2000 * o.m, 1),
    "logsumexp": lambda o: o.m.logsumexp(-1),
    "layer norm": lambda o: F.layer_norm(o.a, (4,), o.v, o.v) + F.layer_norm(o.a, (4,)),
    "layer norm of matrices": lambda o: F.layer_norm(o.m, (2, 3), o.B),
    "other norms": lambda o: F.rms_norm(o.a, (4,), o.v) + F.group_norm(o.a, 2),
    "views": lambda o: (
        o.m.view(-1, 6)[:, :4]
        + o.a.reshape(o.a.shape[0], 2, 2).flatten(1)
        + o.a.unflatten(1, (2, 2)).sum(1, keepdim=True).squeeze(1).repeat(1, 2)
    ),
    "axes": lambda o: o.m.transpose(1, 2).permute(0, 2, 1).movedim(1, 2).mT,
    "ones": lambda o: o.a.unsqueeze(1).squeeze(1)[:, None, :, None].squeeze((1, 3)),
    "expand": lambda o: o.s[:, None].expand(-1, 4) + o.v.expand_as(o.a) + o.v[None].expand(o.a.shape[0], 4),
    "slices": lambda o: o.a[:, 1:3] + o.a[..., ::2] + o.a[:, -2:] + o.m[:, 0, :2] + o.m[:, -1][:, [0, 2]],
    "all rows": lambda o: o.a[: o.a.shape[0]] + o.a[:],
    "splits": lambda o: (
        o.a.chunk(2, -1)[0] + o.a.split([1, 3], 1)[1][:, :2] + torch.stack(o.a.unbind(1)[:2], 1)
    ),
    "joins": lambda o: torch.cat([o.a, o.s[:, None], o.t], -1),
    "joins of parameters": lambda o: o.a @ torch.cat([o.W, o.W]).view(2, 4, 3).sum(0),
    "stack": lambda o: torch.stack([o.a, o.b], 2),
    "flip": lambda o: o.m.flip(1, 2) + o.m.roll(1, -1) + o.m.roll((1, 1), (1, 2)),
    "repeat": lambda o: o.a.repeat(1, 2) + o.a.tile(2) + o.a.repeat_interleave(2, 1),
    "repeat by rows": lambda o: o.a + o.v.repeat(o.a.shape[0], 1) + o.v[:2].repeat(o.a.shape[0], 2),
    "repeat to nothing": lambda o: torch.cat([o.a, o.a.repeat(1, 0)], 1),
    "pad": lambda o: (
        F.pad(o.a, (1, 2), value=0.5) + F.pad(o.a, (4, -1)) + F.pad(o.m, (1, 1, 1, -1)).sum((1, 2))[:, None]
    ),
    "scatter": lambda o: scattered(o.a.clone(), o.b),
}

SCANS: dict[str, Case] = {
    "cumsum": lambda o: torch.cumsum(o.a, 1) + o.m.cumsum(1).flatten(1)[:, :4],
    "cumsum of integers": lambda o: o.t.cumsum(-1) + torch.cumsum(o.k[:, None], 1, dtype=torch.int32),
    "cumprod": lambda o: torch.cumprod(o.a, -1) + o.v.cumprod(0),
}

PRODUCTS: dict[str, Case] = {
    "mm": lambda o: o.a @ o.W,
    "linear": lambda o: F.linear(o.a, o.W.T, o.E[0]) + F.linear(o.a, o.W.T),
    "addmm": lambda o: torch.addmm(o.a, o.b, o.W @ o.E[:4].T, beta=0.5, alpha=2),
    "matrices by a parameter": lambda o: o.m @ o.E.T + F.linear(o.m, o.E, o.E[:, 0]),
    "matrices": lambda o: o.m @ o.m.transpose(1, 2),
    "vector by matrices": lambda o: (o.m @ o.a[:, :3, None]).squeeze(-1),
    "parameter by matrices": lambda o: o.B.T @ o.m,
    "matrix by vector": lambda o: o.a @ o.v + (o.m @ o.B[0]).sum(-1),
    "parameters": lambda o: o.a @ (o.W @ o.B.T),
    "baddbmm": lambda o: torch.baddbmm(o.m, o.m, o.m.transpose(1, 2) @ o.m, beta=0.5, alpha=2),
    "einsum": lambda o: (
        torch.einsum("bi,ij->bj", o.a, o.W) + torch.einsum("btk,bk->bt", o.m, o.a[:, 1:]).sum(1, keepdim=True)
    ),
    "einsum of matrices": lambda o: torch.einsum("bij,jk->bik", o.m, o.E.T),
    "einsum of heads by a parameter": lambda o: (
        torch.einsum("bhk,hkn->bhn", o.m, CUBE[:2, :3]) + torch.einsum("bhk,hk->bh", o.m, o.B)[..., None]
    ),
    "einsum of a parameter's heads first": lambda o: torch.einsum("hkn,bhk->bnh", [CUBE[:2, :3], o.m]),
    "einsum of heads": lambda o: torch.einsum("bhk,bhkn->bhn", o.m, o.m[..., None] * o.a[:, None, None]),
    "einsum outer": lambda o: (
        torch.einsum("bk,bn->bkn", o.a, o.b) + torch.einsum("bk,k->bk", o.a, o.v)[:, None]
    ),
    "heads by a parameter": lambda o: (o.m[:, :, None] @ CUBE[:2, :3]).squeeze(2),
    "heads by heads": lambda o: (o.m[:, :, None] @ (o.m[..., None] * o.a[:, None, None])).squeeze(2),
    "attention": lambda o: F.scaled_dot_product_attention(o.m[:, :1], o.m, o.m),
    "attention with heads": lambda o: F.scaled_dot_product_attention(
        o.m[:, None, :1], o.m[:, None], o.m[:, None]
    ).squeeze(1),
    "bilinear": lambda o: F.bilinear(o.a, o.m[:, 0], TABLE_OF_3, o.E[0]) + F.bilinear(o.a, o.a, CUBE),
    "einsum of three": lambda o: torch.einsum("bi,kij,bj->bk", o.a, CUBE, o.b),
    "outer": lambda o: o.a[:, :, None] * o.b[:, None],
    "bilinear by hand": lambda o: torch.bmm(o.a[:, None], o.b[:, :, None]).view(-1),
}

INTEGERS: dict[str, Case] = {
    "embedding": lambda o: F.embedding(o.k, o.E) + o.E[o.k],
    "embedding of a closed table": lambda o: F.embedding(o.k % 2, CLOSED),
    "index_select": lambda o: o.a.index_select(1, PLACES),
    "index_select of a parameter": lambda o: torch.index_select(o.E, 0, o.k),
    "gather": lambda o: o.a.gather(1, o.k[:, None] % 4) + o.m.gather(2, o.m.argmax(2, keepdim=True))[:, :, 0],
    "gather of a parameter": lambda o: (
        o.a[:, :2] + o.W.gather(1, PLACES[None]) + o.W.gather(0, PLACES[None])[0]
    ),
    "places in a matrix": lambda o: o.a[:, [[0, -1], [2, 1]]],
    "one place": lambda o: o.a[:, torch.tensor(2)] + o.a.index_select(1, torch.tensor(1))[:, 0],
    "gather along the middle": lambda o: o.m.gather(1, o.m.argmin(1, keepdim=True)),
    "one_hot": lambda o: F.one_hot(o.k, 5),
    "one_hot of an argmax": lambda o: F.one_hot(o.a.argmax(-1), 4).to(o.a.dtype) @ o.W,
    "new values": lambda o: o.a + torch.zeros(4) + torch.full((o.a.shape[0], 4), 2.0) + o.a.new_ones(4),
    "like": lambda o: o.a + torch.ones_like(o.a) + torch.full_like(o.a, 0.5) + torch.zeros_like(o.k)[:, None],
    "empty": lambda o: o.a + torch.empty(4).fill_(2) + torch.empty_like(o.a).copy_(o.v),
    "arange": lambda o: o.a * torch.arange(4) + torch.eye(4).to(o.a.dtype)[1] + torch.arange(0, 1, 0.25),
    "identities": lambda o: o.a @ torch.eye(4, 3, dtype=torch.float64) + torch.eye(3)[0],
    "triangle": lambda o: (
        o.a[:, :3, None].masked_fill(torch.ones(3, 3).tril() == 0, float("-inf")).softmax(1)
    ),
}

GROUPS = {
    "pointwise": POINTWISE,
    "conditions": CONDITIONS,
    "features": FEATURES,
    "scans": SCANS,
    "products": PRODUCTS,
    "integers": INTEGERS,
}


def in_place(a: Any, b: Any) -> Any:
    a[:, 1:3] = b[:, :2]
    a[:, 0] = 7
    a[:, -1] += 1
    return a


def scattered(a: Any, b: Any) -> Any:
    a[:, 2:].mul_(2)
    a.view(-1, 2, 2)[:, 1] = b[:, :2]
    return a
