"""Random steps on tensors: a recurrence of them gives what PyTorch gives, one step after another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from stepnet.torch import trace
from tests.torch.torch_loop import agree, agree_at_the_end, numbers, ragged, rows, stepped

F: Any = torch.nn.functional
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


@pytest.mark.long(examples=3)
@settings(max_examples=8)
@given(random_steps(), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 9))
def test_random_steps_are_what_pytorch_gives(step: RandomStep, lengths: list[int], seed: int) -> None:
    sequences = [numbers((length, step.inputs), seed + place) for place, length in enumerate(lengths)]
    initial = numbers((len(lengths), 3), seed)
    rnn = trace(step.function, (numbers((1, step.inputs), 0), initial[:1], step.params))
    expected, finals = stepped(step.function, sequences, rows(initial), step.params)
    for engine in ("interpret", "llvm"):
        outputs, final = rnn(ragged(sequences), initial.numpy(), engine=engine)
        agree(outputs, expected, width=32)
        agree_at_the_end(final, finals, width=32)
