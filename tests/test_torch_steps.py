"""Steps written with PyTorch: a recurrence of them gives what PyTorch gives, one step after another."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tolerance import assert_close

import stepnet as sn
import stepnet.torch.replay
from stepnet.errors import InputError, StepError
from stepnet.structure import leaves, named_leaves, transform
from stepnet.torch import trace
from stepnet.torch.aten import TABLE

Array = np.ndarray
Case = Callable[[Any], Any]
F: Any = torch.nn.functional
LENGTHS = (3, 0, 1, 4)
SHAPES: dict[str, tuple[int, ...]] = {"a": (4,), "b": (4,), "m": (2, 3), "s": (), "k": (), "t": (4,)}
PARAMETERS = {"W": (4, 3), "v": (4,), "E": (5, 3), "B": (2, 3)}
CLOSED = torch.arange(8.0).reshape(2, 4) / 8
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
    "negative": lambda o: -o.a,
    "abs": lambda o: abs(o.a),
    "sign": lambda o: torch.sign(o.a) + torch.sign(o.a.log()).nan_to_num(5.0),
    "floor, ceil, round, trunc": lambda o: torch.stack(
        [(3 * o.a).floor(), (3 * o.a).ceil(), (3 * o.a).round(), (3 * o.a).trunc()], -1
    ),
    "exp": lambda o: o.a.exp() + torch.expm1(o.b),
    "log": lambda o: torch.log(o.a + 3) + torch.log1p(o.b.abs()),
    "log2": lambda o: torch.log2(o.a + 3) + torch.log10(o.b + 3),
    "sqrt": lambda o: o.a.abs().sqrt() + (o.a.abs() + 1).rsqrt() + (o.a + 3).reciprocal(),
    "powers": lambda o: o.a**2 + o.a**3 + (o.a + 3) ** 0.5 + (o.a + 3) ** -1 + (o.a + 3) ** 1.7 + 2**o.a,
    "tanh": lambda o: torch.tanh(o.a) + torch.sigmoid(o.b) + torch.erf(o.a),
    "relu": lambda o: torch.relu(o.a) + F.leaky_relu(o.b, 0.2) + F.leaky_relu(o.b),
    "elu": lambda o: F.elu(o.a, 0.7) + F.selu(o.b) + F.celu(o.a, 2.0),
    "gelu": lambda o: F.gelu(o.a) + F.gelu(o.b, approximate="tanh"),
    "silu": lambda o: F.silu(o.a) + F.mish(o.b) + F.softplus(o.a) + F.softsign(o.b),
    "hard": lambda o: F.hardtanh(o.a, -0.3, 0.4) + F.hardsigmoid(o.b) + F.hardswish(o.a) + F.relu6(o.b),
    "logsigmoid": lambda o: F.logsigmoid(o.a) + F.tanhshrink(o.b) + F.glu(o.a).repeat(1, 2),
    "hardtanh": lambda o: F.hardtanh(o.a),
    "minimum": lambda o: torch.minimum(o.a, o.b) + torch.maximum(o.a, o.v),
    "clamp": lambda o: o.a.clamp(-0.3, 0.3) + o.b.clamp(min=0) + o.b.clamp_max(0.2),
    "clamp by tensors": lambda o: o.a.clamp(-o.v.abs(), o.b.abs() - o.v.abs()),
    "lerp": lambda o: torch.lerp(o.a, o.b, 0.3) + torch.addcmul(o.a, o.b, o.v, value=2),
    "copy in place": lambda o: o.a.clone().add_(o.b).mul_(2).detach(),
    "copy": lambda o: torch.zeros_like(o.a).copy_(o.v),
    "features in place": lambda o: in_place(o.a.clone(), o.b),
    "integers beside floats": lambda o: o.a * o.k[:, None] + o.k[:, None] / 2,
    "exp of integers": lambda o: torch.exp(o.k) + o.k**2,
    "number of another dtype": lambda o: o.k + 0.5,
    "closed tensor": lambda o: o.a + CLOSED[0] + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "parameters alone": lambda o: o.a + (o.v.exp() * 2 - o.W.sum(-1)),
    "masked": lambda o: o.a.masked_fill(o.t, 0.5) + F.threshold(o.b, 0.1, -1),
}

ATEN: Any = torch.ops.aten
BY_NAME: dict[str, Case] = {
    "sub.Scalar": lambda o: ATEN.sub.Scalar(o.a, 1, 2),
    "div.Scalar": lambda o: ATEN.div.Scalar(o.a, 3),
    "div.Scalar_mode": lambda o: ATEN.div.Scalar_mode(o.a * 7, 3, rounding_mode="floor"),
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
    "extremes": lambda o: o.m.amax(1) + o.m.amin((1, 2), keepdim=True)[:, 0],
    "extremes and places": lambda o: (*o.m.max(1), *o.m.min(-1, keepdim=True)),
    "places": lambda o: o.a.argmax(-1) - o.a.argmin(1),
    "variance": lambda o: o.m.var(1) + o.m.std(1, correction=0) + sum(torch.var_mean(o.m, 1)),
    "norm": lambda o: o.a.norm(dim=-1) + o.a.norm(1, dim=1) + o.a.norm(float("inf"), dim=1),
    "normalize": lambda o: F.normalize(o.a) + F.cosine_similarity(o.a, o.b)[:, None],
    "softmax": lambda o: o.m.softmax(1) + F.log_softmax(o.m, -1) + F.softmin(o.m, dim=-1),
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
    "pad": lambda o: (
        F.pad(o.a, (1, 2), value=0.5) + F.pad(o.a, (4, -1)) + F.pad(o.m, (1, 1, 1, -1)).sum((1, 2))[:, None]
    ),
    "scatter": lambda o: scattered(o.a.clone(), o.b),
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
    "attention": lambda o: F.scaled_dot_product_attention(o.m[:, :1], o.m, o.m),
    "attention with heads": lambda o: F.scaled_dot_product_attention(
        o.m[:, None, :1], o.m[:, None], o.m[:, None]
    ).squeeze(1),
    "outer": lambda o: o.a[:, :, None] * o.b[:, None],
    "bilinear by hand": lambda o: torch.bmm(o.a[:, None], o.b[:, :, None]).view(-1),
}

INTEGERS: dict[str, Case] = {
    "embedding": lambda o: F.embedding(o.k, o.E) + o.E[o.k],
    "embedding of a closed table": lambda o: F.embedding(o.k % 2, CLOSED),
    "index_select": lambda o: o.a.index_select(1, PLACES),
    "index_select of a parameter": lambda o: torch.index_select(o.E, 0, o.k),
    "gather": lambda o: o.a.gather(1, o.k[:, None] % 4) + o.m.gather(2, o.m.argmax(2, keepdim=True))[:, :, 0],
    "gather along the middle": lambda o: o.m.gather(1, o.m.argmin(1, keepdim=True)),
    "one_hot": lambda o: F.one_hot(o.k, 5),
    "one_hot of an argmax": lambda o: F.one_hot(o.a.argmax(-1), 4).to(o.a.dtype) @ o.W,
    "new values": lambda o: o.a + torch.zeros(4) + torch.full((o.a.shape[0], 4), 2.0) + o.a.new_ones(4),
    "like": lambda o: o.a + torch.ones_like(o.a) + torch.full_like(o.a, 0.5) + torch.zeros_like(o.k)[:, None],
    "arange": lambda o: o.a * torch.arange(4) + torch.eye(4).to(o.a.dtype)[1] + torch.arange(0, 1, 0.25),
    "triangle": lambda o: (
        o.a[:, :3, None].masked_fill(torch.ones(3, 3).tril() == 0, float("-inf")).softmax(1)
    ),
}

GROUPS = {
    "pointwise": POINTWISE,
    "by name": BY_NAME,
    "conditions": CONDITIONS,
    "features": FEATURES,
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


# ---- what is right ----------------------------------------------------------------------------------


def numbers(shape: tuple[int, ...], seed: int, name: str = "") -> Any:
    random = np.random.default_rng(seed)
    if name == "k":
        return torch.from_numpy(random.integers(0, 5, shape))
    if name == "t":
        return torch.from_numpy(random.random(shape) < 0.5)
    return torch.from_numpy(random.uniform(-1, 1, shape))


def stepped(
    step: Callable[..., Any], sequences: list[Any], memories: list[Any], params: Any, **statics: list[Any]
) -> tuple[list[list[Any]], list[Any]]:
    """Per sequence the output of each step, and the last memory: PyTorch on one row at a time."""
    outputs: list[list[Any]] = []
    finals: list[Any] = []
    with torch.no_grad():
        for place, (sequence, memory) in enumerate(zip(sequences, memories, strict=True)):
            found: list[Any] = []
            for at in range(len(leaves(sequence)[0])):
                x = transform(lambda tensor, at=at: tensor[at : at + 1].clone(), sequence)
                given = {name: values[place] for name, values in statics.items()}
                output, memory = step(x, memory, params, **given)
                found.append(output)
            outputs.append(found)
            finals.append(memory)
    return outputs, finals


def agree(outputs: Any, expected: list[list[Any]], width: int = 8) -> None:
    """Asserts that Raggeds of outputs are what was expected step by step."""
    for place, (name, output) in enumerate(named_leaves(outputs)):
        for sequence, steps in zip(output.to_list(), expected, strict=True):
            assert len(sequence) == len(steps), name
            for found, right in zip(sequence, steps, strict=True):
                assert_close(found, leaves(right)[place][0].detach(), len(steps), width, dtype=output.dtype)


def group_step(cases: dict[str, Case]) -> Callable[..., Any]:
    """The step that gives what every case gives, of its inputs, of a memory in place of b, and parameters."""

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        o = SimpleNamespace(**x, b=h, **params)
        return {name: case(o) for name, case in cases.items()}, torch.tanh(h + 0.5 * x["a"])

    return step


def group_example() -> tuple[Any, Any, Any]:
    x = {name: numbers((1, *shape), 1, name) for name, shape in SHAPES.items() if name != "b"}
    params = {name: numbers(shape, place) for place, (name, shape) in enumerate(PARAMETERS.items())}
    return x, numbers((1, 4), 2), params


@pytest.fixture(scope="module")
def traced_groups() -> tuple[dict[str, sn.RNN], set[str]]:
    """The recurrence of each group, and the rows of the table that they used."""
    used: set[str] = set()

    class Noting(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            used.add(name)
            return super().__getitem__(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepnet.torch.replay, "TABLE", Noting(TABLE))
        return {name: trace(group_step(cases), group_example()) for name, cases in GROUPS.items()}, used


def test_every_row_of_the_table_is_used_by_an_operation_here(traced_groups: Any) -> None:
    _, used = traced_groups
    assert set(TABLE) - used == set()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("engine", ["interpret", "llvm"])
def test_every_operation_is_what_pytorch_gives(traced_groups: Any, group: str, engine: str) -> None:
    rnn, step, (example, _, params) = traced_groups[0][group], group_step(GROUPS[group]), group_example()
    sequences = [
        {
            name: numbers((length, *SHAPES[name]), 10 * place + length, name)
            for place, name in enumerate(example)
        }
        for length in LENGTHS
    ]
    initial = numbers((len(LENGTHS), 4), 3)
    expected, finals = stepped(step, sequences, list(initial.split(1)), params)
    batch = {name: sn.Ragged.from_list([one[name].numpy() for one in sequences]) for name in example}
    outputs, final = rnn(batch, initial.numpy(), engine=engine)
    agree(outputs, expected)
    assert_close(final, torch.cat(finals), 4, 4)


# ---- random steps -----------------------------------------------------------------------------------

UNARY = (
    "torch.tanh({a})", "torch.sigmoid({a})", "F.gelu({a})", "F.silu({a})", "0.5 * {a}", "1 - {a}",
    "{a}.abs()",
    "F.softplus({a}) - 1", "torch.exp(-{a}.abs())", "torch.log1p({a}.abs())", "{a}.clamp(-0.4, 0.7)",
    "F.relu({a})", "F.elu({a})", "{a} ** 2", "{a}.clone().mul_(0.5).add_(0.25)", "F.hardtanh({a}, -0.5, 0.5)",
    "torch.sqrt({a}.abs() + 0.25)", "{a} / (1 + {a}.abs())", "{a}.softmax(-1)", "{a}.flip(-1)",
    "F.layer_norm({a} + 3 * torch.arange({n}), ({n},))", "{a} - {a}.mean(-1, keepdim=True)",
    "{a} / (1 + {a}.norm(dim=-1, keepdim=True))", "{a}.roll(1, -1)", "{a}.amax(-1, keepdim=True) * {a}",
    "{a}.view(-1, {n}, 1).expand(-1, -1, 2).sum(2) / 2", "changed({a})", "{a}[:, list(range({n}))[::-1]]",
)  # fmt: skip
BINARY = (
    "({a} + {b}) / 2", "{a} * {b}", "({a} - {b}) / 2", "torch.minimum({a}, {b})", "torch.maximum({a}, {b})",
    "torch.where(x[:, :1] > 0, {a}, {b})", "torch.lerp({a}, {b}, 0.3)",
    "torch.stack([{a}, {b}], 1).mean(1)", "torch.cat([{a}, {b}], -1).chunk(2, -1)[1]",
    "F.glu(torch.cat([{a}, {b}], -1))", "{a}.masked_fill(x[:, :1] < 0.2, 0.5) * {b}",
)  # fmt: skip
MIXING = (
    "torch.tanh(F.linear({a}, {w}))", "torch.sigmoid({a} @ {w}.T)",
    "torch.tanh(torch.addmm({w}.sum(1), {a}, {w}.T))",
    "torch.tanh(torch.einsum('bi,ji->bj', {a}, {w}))", "{w}.T[x.argmax(-1) % {n}]",
    "F.one_hot(x.argmin(-1), {n} + 3)[:, :{n}].to({a}.dtype) @ {w}.T",
)  # fmt: skip


def changed(a: Any) -> Any:
    a = a.clone()
    a[:, 0] = 0.5
    a[:, -1:] *= 2
    return a


@dataclass(frozen=True)
class RandomStep:
    """A step as text, and its parameters; its memory has three features, and its input `inputs`."""

    source: str
    params: dict[str, Any]
    inputs: int

    @property
    def function(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {"torch": torch, "F": F, "changed": changed}
        exec(self.source, scope)
        return scope["step"]


@st.composite
def random_steps(draw: st.DrawFn) -> RandomStep:
    """A few lines on values [rows, n], each of numbers within about [-1, 1]."""
    inputs = draw(st.integers(1, 4))
    values, lines, params = [("x", inputs), ("h", 3)], list[str](), dict[str, Any]()

    def add(text: str, size: int) -> None:
        lines.append(f"v{len(lines)} = {text}")
        values.append((f"v{len(lines) - 1}", size))

    def mixed(size: int) -> str:
        name, width = draw(st.sampled_from(values))
        weight = f"w{len(params)}"
        params[weight] = numbers((size, width), len(params))
        return draw(st.sampled_from(MIXING)).format(a=name, w=f"params['{weight}']", n=width)

    for _ in range(draw(st.integers(2, 8))):
        name, size = draw(st.sampled_from(values))
        others = [other for other, width in values if width == size]
        kind = draw(st.sampled_from(["one", "two", "mixed"]))
        if kind == "mixed":
            size = draw(st.integers(1, 5))
            add(mixed(size), size)
        elif kind == "two":
            add(draw(st.sampled_from(BINARY)).format(a=name, b=draw(st.sampled_from(others))), size)
        else:
            add(draw(st.sampled_from(UNARY)).format(a=name, n=size), size)
    shown = draw(st.lists(st.sampled_from([name for name, _ in values]), min_size=1, max_size=3))
    following = f"0.5 * h + 0.5 * torch.tanh({mixed(3)})"
    body = [*lines, f"return ({', '.join(shown)},), {following}"]
    source = "def step(x, h, params):\n" + "".join(f"    {line}\n" for line in body)
    return RandomStep(source, params, inputs)


@settings(max_examples=20)
@given(random_steps(), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 9))
def test_random_steps_are_what_pytorch_gives(step: RandomStep, lengths: list[int], seed: int) -> None:
    sequences = [numbers((length, step.inputs), seed + place) for place, length in enumerate(lengths)]
    initial = numbers((len(lengths), 3), seed)
    rnn = trace(step.function, (numbers((1, step.inputs), 0), initial[:1], step.params))
    expected, finals = stepped(step.function, sequences, list(initial.split(1)), step.params)
    batch = sn.Ragged.from_list([sequence.numpy() for sequence in sequences])
    for engine in ("interpret", "llvm"):
        outputs, final = rnn(batch, initial.numpy(), engine=engine)
        agree(outputs, expected, width=32)
        assert_close(final, torch.cat(finals), 5, 32)


# ---- cells ------------------------------------------------------------------------------------------


class State(NamedTuple):
    h: Any
    c: Any


class NormalisedLSTM(torch.nn.Module):
    """An LSTM with a LayerNorm of its gates and of its cell, a buffer, and an output of its own."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs + hidden, 4 * hidden)
        self.norm = torch.nn.LayerNorm(4 * hidden)
        self.norm_c = torch.nn.LayerNorm(hidden, bias=False)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.linspace(0.5, 1, hidden))
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, x: Any, state: State) -> tuple[Any, State]:
        i, f, g, o = self.norm(self.linear(torch.cat([x, state.h], -1))).chunk(4, dim=-1)
        c = torch.sigmoid(f + 1).mul_(state.c).add_(torch.sigmoid(i) * torch.tanh(g))
        h = torch.sigmoid(o) * torch.tanh(self.norm_c(c)) * self.scale
        return {"h": self.drop(h), "gates": torch.stack([i, f], 1)}, State(h, c)


class MaskedGRU(torch.nn.Module):
    """A GRU with a dropout mask of its sequence on the state, and another every third step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(inputs, hidden)

    def forward(self, x: Any, state: Any, statics: Any, index: Any) -> Any:
        other = torch.where((index % 3 == 2)[:, None], statics["other"], statics["mask"])
        return self.cell(x, state * other)


class Twice(torch.nn.Module):
    """GRU cells over one another that share weights: one of two names, and one with a tensor of another."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.below = torch.nn.GRUCell(hidden, hidden)
        self.above = self.below
        self.third = torch.nn.GRUCell(hidden, hidden, bias=False)
        self.third.weight_hh = self.below.weight_hh

    def forward(self, x: Any, state: dict[str, Any]) -> dict[str, Any]:
        below = self.below(x, state["below"])
        return {"below": below, "above": self.third(self.above(below, state["above"]), below)}


@dataclass(frozen=True)
class Cell:
    """A cell, the features of its input, its state from a function of an array, and how to call it."""

    module: Any
    inputs: int
    state: Any
    statics: Any = None


CELLS: dict[str, Callable[[], Cell]] = {
    "GRUCell": lambda: Cell(torch.nn.GRUCell(3, 5), 3, 5),
    "GRUCell without bias": lambda: Cell(torch.nn.GRUCell(3, 5, bias=False), 3, 5),
    "LSTMCell": lambda: Cell(torch.nn.LSTMCell(3, 5), 3, (5, 5)),
    "LSTMCell without bias": lambda: Cell(torch.nn.LSTMCell(3, 5, bias=False), 3, (5, 5)),
    "RNNCell": lambda: Cell(torch.nn.RNNCell(3, 5), 3, 5),
    "RNNCell of relu": lambda: Cell(torch.nn.RNNCell(3, 5, nonlinearity="relu"), 3, 5),
    "LayerNorm": lambda: Cell(NormalisedLSTM(3, 5).eval(), 3, State(5, 5)),
    "masks as statics": lambda: Cell(MaskedGRU(3, 5), 3, 5, {"mask": 5, "other": 5}),
    "shared weights": lambda: Cell(Twice(4), 4, {"below": 4, "above": 4}),
}


def called(module: Any, features: Any) -> Callable[..., Any]:
    """The module as a step, as the documentation says: its state alone gives the first of it as output."""

    def step(x: Any, state: Any, _: Any, **further: Any) -> tuple[Any, Any]:
        found = module(x, state, **further)
        if isinstance(found, tuple) and isinstance(found[0], dict):
            return found
        return (found if isinstance(features, int) else leaves(found)[0]), found

    return step


def filled(features: Any, rows: int, seed: int, dtype: Any) -> Any:
    """Numbers in the structure of these features."""
    return transform(lambda size: numbers((rows, size), seed + size).to(dtype), features)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(("engine", "dtype"), [("interpret", torch.float64), ("llvm", torch.float32)])
def test_a_cell_is_what_pytorch_gives(name: str, engine: str, dtype: Any) -> None:
    torch.manual_seed(1)
    cell = CELLS[name]()
    cell.module.to(dtype)
    rows = len(LENGTHS)
    sequences = [numbers((length, cell.inputs), length).to(dtype) for length in LENGTHS]
    initial = filled(cell.state, rows, 5, dtype)
    statics = filled(cell.statics, rows, 9, dtype)
    rnn = trace(cell.module, (sequences[0][:1], filled(cell.state, 1, 0, dtype)), statics=statics)
    assert repr(rnn).startswith(f"RNN({type(cell.module).__name__}")

    expected: list[list[Any]] = []
    finals: list[Any] = []
    for place, sequence in enumerate(sequences):
        row = slice(place, place + 1)
        step = called(cell.module, cell.state)
        state = transform(lambda tensor, row=row: tensor[row], initial)
        static = transform(lambda tensor, row=row: tensor[row], statics)
        found: list[Any] = []
        for at in range(len(sequence)):
            further = {} if statics is None else {"statics": static, "index": torch.tensor([at])}
            with torch.no_grad():
                output, state = step(sequence[at : at + 1], state, None, **further)
            found.append(output)
        expected.append(found)
        finals.append(state)

    outputs, final = rnn(
        sn.Ragged.from_list([sequence.numpy() for sequence in sequences]),
        transform(lambda tensor: tensor.numpy(), initial),
        transform(lambda tensor: tensor.numpy(), statics),
        engine=engine,
    )
    agree(outputs, expected, width=20)
    for place, array in enumerate(leaves(final)):
        assert array.dtype == str(dtype).removeprefix("torch.")
        assert_close(array, torch.cat([leaves(one)[place] for one in finals]), 4, 20)
    assert type(final) is type(initial) or isinstance(cell.state, int)


def test_parameters_and_buffers_keep_their_names_and_are_copies() -> None:
    module = NormalisedLSTM(3, 5).eval()
    rnn = trace(module, (torch.zeros(1, 3), State(torch.zeros(1, 5), torch.zeros(1, 5))))
    names = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    assert set(rnn.params) == names
    assert "norm_c.weight" in names
    inputs = {rnn.net.nodes[number].name for number in rnn.net.inputs}
    assert names <= inputs
    before = rnn.params["norm.weight"].copy()
    with torch.no_grad():
        module.norm.weight.mul_(2)
    assert np.array_equal(rnn.params["norm.weight"], before)


def test_shared_weights_are_one_parameter() -> None:
    rnn = trace(Twice(4), (torch.zeros(1, 4), {"below": torch.zeros(1, 4), "above": torch.zeros(1, 4)}))
    shared = {f"below.{kind}_{side}" for kind in ("weight", "bias") for side in ("ih", "hh")}
    assert set(rnn.params) == {*shared, "third.weight_ih"}


def test_parameters_of_a_function_keep_their_structure() -> None:
    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return None, torch.tanh(x @ params["in"][0] + h @ params["in"][1])

    params = {"in": (torch.ones(2, 3), torch.eye(3))}
    rnn = trace(step, (torch.zeros(1, 2), torch.zeros(1, 3), params))
    assert rnn.params["in"][0].shape == (2, 3)
    outputs, final = rnn(np.ones((1, 1, 2), np.float32))
    assert outputs is None
    assert_close(final, np.tanh(np.full((1, 3), 2, np.float32)))


def test_without_parameters_and_backwards() -> None:
    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        h = 0.5 * h + x
        return h, h

    rnn = trace(step, (torch.zeros(1, 1), torch.zeros(1, 1)), reverse=True)
    outputs, final = rnn(np.array([[[1], [2], [4]]], np.float32))
    assert outputs[0, :, 0].tolist() == [3, 4, 4]
    assert final.tolist() == [[3]]


def test_tensors_may_be_given_to_the_recurrence() -> None:
    cell = torch.nn.GRUCell(3, 4)
    x = torch.rand(2, 5, 3)
    rnn = trace(cell, (x[:, 0], torch.zeros(2, 4)))
    outputs, _ = rnn(x)
    h = torch.zeros(2, 4)
    for at in range(5):
        h = cell(x[:, at], h)
        assert_close(outputs[:, at], h.detach(), 5, 8)


def test_tensors_made_in_a_step_may_change_and_those_it_closes_over_may_not() -> None:
    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        made = torch.tensor([1.0, 2.0])
        made.add_(1)
        made[0] = 5
        h.mul_(0.5).add_(x)
        F.relu(h, inplace=True)
        x.zero_()
        return h * made + x, h

    rnn = trace(step, (torch.zeros(1, 2), torch.zeros(1, 2)))
    x, h = numbers((1, 3, 2), 1).float(), torch.zeros(1, 2)
    outputs, _ = rnn(x)
    for at in range(3):
        output, h = step(x[:, at].clone(), h.clone(), None)
        assert_close(outputs[:, at], output)


def test_the_users_line_is_in_the_net() -> None:
    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        h = torch.tanh(x - h)  # here
        return h, h

    rnn = trace(step, (torch.zeros(1, 1), torch.zeros(1, 1)))
    body = next(node for node in rnn.net.nodes if node.operation == "recur").attributes["body"]
    sources = {node.operation: node.source for node in body.nodes}
    assert sources["tanh"].endswith("h = torch.tanh(x - h)  # here")
    assert __file__ in sources["tanh"]


def test_another_dtype_is_traced_anew_and_pytorch_says_what_does_not_fit() -> None:
    rnn = trace(torch.nn.GRUCell(3, 4), (torch.zeros(1, 3), torch.zeros(1, 4)))
    with pytest.raises(StepError, match=r"aten.addmm.default: PyTorch multiplies matrices of one dtype"):
        rnn(np.ones((1, 2, 3), np.float64))


# ---- what is refused --------------------------------------------------------------------------------

HELD = torch.ones(4)
HELD_CHANGES = "the step changes a tensor that it closes over in place, .* or call .eval\\(\\)"
DEPENDS = "what is done depends on the number of rows, which a step does not know"
NORM = torch.nn.BatchNorm1d(4)
REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "not in the table": (lambda x, h: x.cumsum(-1), "aten.cumsum.default is not an operation of a step$"),
    "sort": (lambda x, h: x.sort(-1)[0], "aten.sort.default is not an operation of a step$"),
    "mean over rows": (lambda x, h: x - x.mean(0), "aten.mean.dim: the result has no rows, which mixes them"),
    "sum of all": (lambda x, h: x / x.sum(), "aten.sum.dim_IntList: the result has no rows"),
    "one row": (lambda x, h: x[0] + h, "aten.select.int: the result has no rows"),
    "softmax over rows": (lambda x, h: x.softmax(0), "aten._softmax.default: .* mixes rows"),
    "rows backwards": (lambda x, h: x.flip(0), "aten.flip.default: .*first index is the rows"),
    "rows rolled": (lambda x, h: x.roll(1, 0), "aten.roll.default: the number of rows is not known"),
    "rows rolled flat": (lambda x, h: x.roll(1), "aten.roll.default: roll over all axes mixes rows"),
    "some rows": (lambda x, h: x[1:], DEPENDS),
    "every other row": (lambda x, h: x[::2], DEPENDS),
    "rows replaced": (lambda x, h: in_rows(x), DEPENDS),
    "rows by rows": (lambda x, h: x @ x.T, "aten.permute.default: the result is \\[4, rows\\], which mixes"),
    "rows below rows": (lambda x, h: torch.cat([x, h]), "aten.cat.default: the first axis holds more than"),
    "rows repeated": (lambda x, h: x.repeat(2, 1), "aten.repeat.default: the first axis holds more than"),
    "rows flat": (lambda x, h: x.view(-1), "a result of the step mixes rows: it is \\[rows, features"),
    "rows of rows": (lambda x, h: x[x.argmax(-1)], "aten.index.Tensor: .*picked at constant places"),
    "gather of rows": (lambda x, h: x.gather(0, x.long()), "aten.gather.default: gather over axis 0 mixes"),
    "norm over rows": (lambda x, h: x.norm(dim=0) * x, "aten.linalg_vector_norm.default: the result has no"),
    "rows counted": (
        lambda x, h: x + torch.arange(x.shape[0])[:, None],
        "aten.arange.start_step: the number",
    ),
    "number of rows": (lambda x, h: x / x.shape[0], "aten.div.Tensor: the number of rows enters a value"),
    "branch on rows": (
        lambda x, h: x if x.shape[0] > 2 else torch.tanh(x),
        DEPENDS,
    ),
    "rows asked for": (
        lambda x, h: torch.take_along_dim(x, torch.tensor([[1, 0]]), 1),
        DEPENDS,
    ),
    "branch": (lambda x, h: x if x.sum() > 0 else h, "a step cannot branch on a value.*torch.where"),
    "number": (lambda x, h: x * x.sum(-1)[0].item(), "aten.select.int: the result has no rows"),
    "list": (lambda x, h: x * x[:, 0].tolist()[0], DEPENDS),
    "dropout": (lambda x, h: F.dropout(x, 0.5), "dropout draws anew at every step: call .eval\\(\\)"),
    "alpha dropout": (lambda x, h: F.alpha_dropout(x, 0.5, True), "dropout draws anew at every step"),
    "random": (lambda x, h: x * torch.rand(4), "aten.rand.default is not .*: random numbers enter a step as"),
    "random like": (
        lambda x, h: x + torch.randn_like(x),
        "aten.randn_like.default is not .*: random",
    ),
    "half": (lambda x, h: x.half().float(), "aten._to_copy.default: a value of dtype float16 is not one"),
    "constant of bytes": (
        lambda x, h: x * torch.ones(4, dtype=torch.uint8),
        "aten.full.default: a value of dtype uint8 is not one of a step",
    ),
    "held bytes": (lambda x, h: x * BYTES, "a constant of dtype uint8 cannot enter a step"),
    "held tensor changed within": (lambda x, h: x + F.relu(HELD, inplace=True), HELD_CHANGES),
    "held tensor written": (
        lambda x, h: torch.tanh(torch.zeros(4), out=HELD) + x,
        HELD_CHANGES,
    ),
    "held tensor changed": (lambda x, h: x + HELD.add_(1), HELD_CHANGES),
    "statistics kept": (lambda x, h: NORM(x), HELD_CHANGES),
    "shapes": (lambda x, h: x @ torch.ones(3, 3), "PyTorch refuses: .*\\[rows, 4\\] X \\[3, 3\\]"),
    "an axis too many": (lambda x, h: x.sum(5), "PyTorch refuses: Dimension out of range"),
    "order 3": (lambda x, h: x.norm(3, -1, True), "aten.linalg_vector_norm.default: a norm of order 3"),
    "negative base": (lambda x, h: (-2) ** x, "aten.pow.Scalar: -2 to the power of a value"),
    "reflect": (lambda x, h: F.pad(x[:, None], (1, 1), mode="reflect"), "padding of mode reflect"),
    "every second feature": (
        lambda x, h: every_second(x),
        "aten.slice_scatter.default: every second",
    ),
    "two axes at once": (
        lambda x, h: x.view(-1, 2, 2)[:, PLACES % 2, PLACES % 2],
        "aten.index.Tensor: features are picked along one axis",
    ),
    "put": (lambda x, h: put(x), "aten.index_put.default is not an operation of a step: use torch.where"),
    "bits": (lambda x, h: x.long() & 1, "aten.bitwise_and.Scalar is not an operation of a step$"),
}
BYTES = torch.ones(4, dtype=torch.uint8)


def in_rows(x: Any) -> Any:
    x = x.clone()
    x[1:] = 0
    return x


def every_second(x: Any) -> Any:
    x = x.clone()
    x[:, ::2] = 0
    return x


def put(x: Any) -> Any:
    x = x.clone()
    x[:, PLACES] = 0
    return x


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_step_cannot_do_is_refused_with_the_users_line(name: str, capfd: Any) -> None:
    function, expected = REFUSED[name]

    def step(x: Any, h: Any, _: Any) -> tuple[Any, Any]:
        return function(x, h), h

    with pytest.raises(StepError) as caught:
        trace(step, (torch.zeros(1, 4), torch.zeros(1, 4)))
    message, line = str(caught.value).split("\n")  # a line that holds what is expected is no message
    assert re.search(f"^{expected}", message), message
    assert line.startswith(f"  at {__file__}:"), line
    assert HELD.tolist() == [1] * 4
    assert capfd.readouterr().err == ""


def test_a_parameter_read_as_a_number_is_refused() -> None:
    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        return x * params.sum().item(), h

    with pytest.raises(StepError, match=r"^aten._local_scalar_dense.default is .*cannot read a value as a"):
        trace(step, (torch.zeros(1, 4), torch.zeros(1, 4), torch.ones(3)))


def test_inner_sequences_are_refused() -> None:
    rnn = trace(torch.nn.GRUCell(3, 4), (torch.zeros(1, 3), torch.zeros(1, 4)))
    with pytest.raises(
        StepError, match=r"^x holds inner sequences, which a step written with PyTorch cannot"
    ):
        rnn(sn.Ragged.from_list([[np.ones((2, 3), np.float32)], [np.ones((1, 3), np.float32)]]))


def test_a_buffer_that_changes_is_refused_by_its_name() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count: Any
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: Any, state: Any) -> Any:
            self.count.add_(1)
            return state + x * self.count

    with pytest.raises(StepError, match=r"the step changes `count` in place.*make it a memory"):
        trace(Counting(), (torch.zeros(1, 4), torch.zeros(1, 4)))


def test_dropout_in_training_is_refused_and_in_evaluation_left_out() -> None:
    module = NormalisedLSTM(3, 5)
    example = torch.zeros(1, 3), State(torch.zeros(1, 5), torch.zeros(1, 5))
    with pytest.raises(StepError, match=r"dropout draws anew .* given as a static") as caught:
        trace(module, example)
    assert 'return {"h": self.drop(h)' in str(caught.value)
    trace(module.eval(), example)


X, H = torch.zeros(1, 3), torch.zeros(1, 4)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a layer": (
        lambda: trace(torch.nn.LSTM(3, 4), (X, H)),
        "torch.nn.LSTM runs over the steps itself; .*LSTMCell",
    ),
    "no step": (lambda: trace(3, (X, H)), "a step is a torch.nn.Module or a function, not a int"),
    "no example": (
        lambda: trace(torch.nn.GRUCell(3, 4), X),
        "example is .* a tuple \\(x, state\\), not a Tensor",
    ),
    "too many": (
        lambda: trace(torch.nn.GRUCell(3, 4), (X, H, {})),
        "example is .* a tuple \\(x, state\\), not a tuple of 3",
    ),
    "too few": (lambda: trace(put, (X,)), "example is .* a tuple \\(x, memory, params\\), not a tuple of 1"),
    "no tensor": (lambda: trace(torch.nn.GRUCell(3, 4), (X, 4)), "a memory of the example is .*, not a int"),
    "no rows": (
        lambda: trace(torch.nn.GRUCell(3, 4), (torch.tensor(1.0), H)),
        "an input .*one of 0 axes",
    ),
    "half": (
        lambda: trace(torch.nn.GRUCell(3, 4), (X.half(), H)),
        "an input .* has dtype float16; use one",
    ),
    "half weights": (lambda: trace(torch.nn.GRUCell(3, 4).half(), (X, H)), "a parameter has dtype float16"),
    "statics": (
        lambda: trace(torch.nn.GRUCell(3, 4), (X, H), statics=X),
        "statics were given, but the step has no parameter named `statics`",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_step_or_example_is_refused(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(InputError, match=f"^{message}"):
        make()


def test_a_state_of_another_structure_is_refused() -> None:
    class Pair(torch.nn.Module):
        def forward(self, x: Any, state: Any) -> Any:
            return x, state, state

    with pytest.raises(StepError, match=r"Pair is given the state \* and gives \(\*, \*, \*\); a cell gives"):
        trace(Pair(), (X, H))


def test_a_memory_of_another_shape_is_refused() -> None:
    with pytest.raises(StepError, match=r"the memory enters the step as f32\[4\] and leaves as f32\[8\]"):
        trace(lambda x, h, _: (h, torch.cat([h, h], -1)), (X, H))
